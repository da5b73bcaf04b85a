"""The workbench: inspect a model in a browser, on this machine, without a network."""

from .saved_page import SavedPage as SavedPage
from .saved_page import look as look

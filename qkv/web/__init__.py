"""The workbench: look inside a model in a browser, on this machine, with nothing from a network."""

from .view import View as View
from .view import look as look

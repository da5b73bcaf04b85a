"""The screens of the workbench, in the order of their tabs. A new screen is one line here and two files."""

from qkv.web.screens.atlas import Atlas
from qkv.web.screens.base import Screen
from qkv.web.screens.decoding import Decoding
from qkv.web.screens.stepwise import Stepwise
from qkv.web.screens.versus import Versus

SCREENS: tuple[Screen, ...] = (Atlas(), Stepwise(), Versus(), Decoding())

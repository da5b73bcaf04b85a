"""The screens of the workbench, in the order of their tabs. A new screen is one line here and two files."""

from importlib import import_module

from qkv.web.screens.base import Screen

NAMES = (
    "atlas",
    "stepwise",
    "versus",
    "decoding",
)
"""Modules in this folder, each with a `screen`."""

SCREENS: tuple[Screen, ...] = tuple(import_module(f"{__name__}.{name}").screen for name in NAMES)

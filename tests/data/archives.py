"""Digits, if they can be had: a machine without a package index has to have them in its cache."""

import pytest

from qkv.data import mnist
from qkv.storage import QkvError


def need(part):
    """Skip what needs this part of MNIST where it cannot be had."""
    try:
        mnist(part)
    except QkvError as error:
        pytest.skip(str(error))

"""Skips for tests that need archives; a machine without a package index needs them in its cache."""

import pytest

from qkv.data import mnist, read_corpus, ws353
from qkv.errors import QkvError


def need(part):
    """Skip a test if this variant of MNIST is not available."""
    try:
        mnist(part)
    except QkvError as error:
        pytest.skip(str(error))


def need_word_tests():
    """Skip a test if WikiText-2 or the word tests are not available."""
    try:
        ws353()
        next(iter(read_corpus("wikitext")["test"]))
    except QkvError as error:
        pytest.skip(str(error))

"""Digits and words, if they can be had: a machine without a package index has to have them in its cache."""

import pytest

from qkv.data import mnist, read_corpus, ws353
from qkv.errors import QkvError


def need(part):
    """Skip what needs this part of MNIST where it cannot be had."""
    try:
        mnist(part)
    except QkvError as error:
        pytest.skip(str(error))


def need_word_tests():
    """The same for WikiText-2 and the word tests."""
    try:
        ws353()
        next(iter(read_corpus("wikitext")["test"]))
    except QkvError as error:
        pytest.skip(str(error))

"""Errors and failing disks that the tests of storage share."""

import os
from contextlib import contextmanager
from pathlib import Path

import pytest

from qkv.errors import QkvError


@contextmanager
def refused(*, what, where, nearest=""):
    with pytest.raises(QkvError) as caught:
        yield
    assert (caught.value.what, Path(caught.value.where), caught.value.nearest) == (what, Path(where), nearest)


def fail_at(call, number):
    """An os.fsync whose call number `call` fails."""
    real, calls = os.fsync, []

    def fsync(descriptor):
        calls.append(descriptor)
        if len(calls) == call:
            raise OSError(number, os.strerror(number))
        real(descriptor)

    return fsync

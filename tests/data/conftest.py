"""Archives of the package index."""

import pytest

from tests.data.archives import need


@pytest.fixture(scope="session")
def digits_archive():
    need("small")


@pytest.fixture(scope="session")
def whole_archive():
    need("whole")

import pytest

from qkv.web.backend import RunBackend
from tests.web.runs import serving, train_masked, train_pairs, train_recall


@pytest.fixture(scope="session")
def pairs_run(tmp_path_factory):
    """A small encoder-decoder that reverses words: 3 heads, 2 + 2 layers."""
    return train_pairs(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="session")
def recall_run(tmp_path_factory):
    """A small decoder with Taylor attention: 2 heads, 2 layers."""
    return train_recall(tmp_path_factory.mktemp("recall"))


@pytest.fixture(scope="session")
def masked_run(tmp_path_factory):
    """A small BERT: 3 heads, 2 layers."""
    return train_masked(tmp_path_factory.mktemp("masked"))


@pytest.fixture(scope="session")
def server(pairs_run):
    with serving(RunBackend(pairs_run)) as found:
        yield found

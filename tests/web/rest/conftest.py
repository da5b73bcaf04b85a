import pytest

from tests.web.rest.runs import client, serving_api, train_text


@pytest.fixture(scope="session")
def text_run(tmp_path_factory):
    """A byte-level language model with Taylor attention, of at most 96 tokens."""
    folder = tmp_path_factory.mktemp("text")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QKV_CACHE", str(folder / "cache"))
        return train_text(folder)


@pytest.fixture(scope="session")
def long_run(tmp_path_factory):
    """The same without a practical limit of tokens: what it generates takes as long as it is let."""
    folder = tmp_path_factory.mktemp("long")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QKV_CACHE", str(folder / "cache"))
        return train_text(folder, max_length=10**6)


@pytest.fixture(scope="session")
def api(text_run):
    """A server with eight streams."""
    with serving_api(text_run, max_streams=8, max_waiting=300) as server:
        yield server


@pytest.fixture(scope="session")
def ask(api):
    """The official client of that server."""
    with client(api) as found:
        yield found

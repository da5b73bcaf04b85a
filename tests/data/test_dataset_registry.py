import importlib
from pathlib import Path

import pytest

import qkv.data
from qkv.data import DatasetEntry, datasets, register_dataset
from qkv.data.dataset_registry import datasets as table

CORPORA = Path(qkv.data.__file__).parent / "corpora"


@pytest.fixture
def restored():
    """Remove what a test registers."""
    before = dict(table)
    yield
    table.clear()
    table.update(before)


def test_data_sets_that_ship_with_the_package():
    released = "analogies cmudict mnist noisy_sine python recall wikitext ws353 xor"
    assert set(released.split()) <= set(datasets)
    assert [entry.name for entry in datasets.values()] == list(datasets)


@pytest.mark.parametrize("name", list(datasets))
def test_every_loader_is_exported_and_described_in_one_line(name):
    entry = datasets[name]
    assert getattr(qkv.data, entry.load.__name__) is entry.load
    assert 20 < len(entry.description) < 120
    assert entry.description.endswith(".")


def test_every_file_that_registers_a_data_set_is_imported():
    files = [path.stem for path in CORPORA.glob("*.py") if "@register_dataset" in path.read_text()]
    assert len(files) >= 7
    modules = {entry.load.__module__ for entry in datasets.values()}
    assert modules == {f"qkv.data.corpora.{name}" for name in files}


def test_a_data_set_is_loaded_by_name():
    assert datasets["xor"].load().classes == ("0", "1")
    assert datasets["noisy_sine"].load(count=7).count == 7


@pytest.mark.usefixtures("restored")
def test_a_new_data_set():
    @register_dataset("primes")
    def primes():
        """Return primes.

        More about them.
        """
        return [2, 3, 5]

    assert datasets["primes"] == DatasetEntry("primes", primes)
    assert datasets["primes"].description == "Return primes."
    register_dataset("primes")(primes)  # registering it again, as a reload does, changes nothing
    with pytest.raises(ValueError, match="data set 'primes' is already registered"):
        register_dataset("primes")(importlib.import_module)


@pytest.mark.usefixtures("restored")
def test_a_loader_without_a_docstring():
    with pytest.raises(ValueError, match="data set 'mute' needs a docstring on its loader"):
        register_dataset("mute")(lambda: None)
    assert "mute" not in datasets

"""Public names: none disappears unnoticed, and each is documented."""

import inspect
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import qkv
from qkv.attention import kinds
from qkv.models import families
from qkv.positions import schemes
from qkv.tasks import tasks
from tests.public_names import exports, hidden_imports, packages, read_released


def test_no_released_name_is_gone():
    """A name may be added without an edit here; to remove one, delete its line in public_names.txt."""
    present = {(package, name) for package in packages() for name in exports(package)}
    assert len(present) > 250
    assert sorted(read_released() - present) == []


@pytest.mark.parametrize("package", packages())
def test_every_public_name_can_be_imported_and_is_documented(package):
    module = import_module(package)
    assert module.__doc__
    values = {name: getattr(module, name) for name in exports(package)}
    described = [name for name, value in values.items() if inspect.isclass(value) or inspect.isfunction(value)]
    assert [name for name in described if not values[name].__doc__] == []


@pytest.mark.parametrize("package", packages())
def test_what_a_package_imports_it_exports(package):
    assert hidden_imports(package) == set()


@pytest.mark.parametrize(
    ("package", "registered"),
    [
        ("qkv.attention", [kinds[name] for name in kinds]),
        ("qkv.positions", [schemes[name] for name in schemes]),
        ("qkv.tasks", [tasks[name] for name in tasks]),
        ("qkv.models", [families[name] for name in families]),
    ],
    ids=["attention", "positions", "tasks", "models"],
)
def test_every_registered_class_is_exported(package, registered):
    ours = [cls.__name__ for cls in registered if cls.__module__.startswith("qkv.")]
    assert len(ours) >= 5
    assert [name for name in ours if name not in exports(package)] == []


@pytest.mark.parametrize("package", ["attention", "positions", "tasks", "models"])
def test_every_registering_file_is_imported(package):
    """A file with a registered class that nobody imports would silently not be there."""
    folder = Path(qkv.__file__).parent / package
    contents = (folder / "__init__.py").read_text()
    registered = [path.stem for path in folder.glob("*.py") if "\n@register(" in path.read_text()]
    assert len(registered) >= 5
    assert [name for name in registered if f"from .{name} import" not in contents] == []


@pytest.mark.process
def test_import_is_lazy():
    code = "import sys, qkv; assert 'torch' not in sys.modules; qkv.attend; assert 'torch' in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.process
def test_tab_completion_knows_every_name_before_torch_is_loaded():
    code = "import sys, qkv; print(*dir(qkv)); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    listed = done.stdout.split()
    assert set(qkv.__all__) | {"__version__"} <= set(listed)
    assert [name for name in listed if name.strip("_") in ("Any", "TYPE_CHECKING", "import_module", "HOMES")] == []


def test_every_package_is_in_all():
    expected = {name.removeprefix("qkv.") for name in packages()} - {"qkv"}
    assert expected - set(qkv.__all__) == set()
    assert [name for name in qkv.__all__ if not hasattr(qkv, name)] == []


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="module 'qkv' has no attribute 'atend'"):
        qkv.atend  # noqa: B018


def test_version_is_that_of_the_package():
    assert qkv.__version__ == version("qkv")

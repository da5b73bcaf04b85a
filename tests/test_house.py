"""The shape of the package: folder sizes, unique class names, short functions, no test of a task's or a kind's name."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from qkv.attention import kinds

ROOT = Path(__file__).parent.parent
MODULES = {path: ast.parse(path.read_text()) for path in sorted((ROOT / "qkv").rglob("*.py"))}
FUNCTIONS = [
    (path, node)
    for path, tree in MODULES.items()
    for node in ast.walk(tree)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
]
COMMANDS = ROOT / "qkv/cli"
KERNELS = ROOT / "qkv/attention/triton"
MAX_FILES = 17
MAX_LONG_FUNCTIONS = 8
KIND_NAMES = "|".join(kinds)


def name_of(path, node):
    return f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"


@pytest.mark.parametrize(
    ("folder", "most"),
    [
        ("attention", 15),
        ("cli/modeling", 15),
        ("cli/inspection", 15),
        *((name, MAX_FILES) for name in ("*", "*/*", "*/*/*")),
    ],
)
def test_no_folder_has_too_many_files(folder, most):
    folders = [path for path in (ROOT / "qkv").glob(folder) if path.is_dir() and path.name != "__pycache__"]
    counts = {path: sum(file.is_file() for file in path.iterdir()) for path in folders}
    assert counts
    assert {str(path): count for path, count in counts.items() if count > most} == {}


def test_class_names_are_unique():
    names = Counter(node.name for tree in MODULES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    # a worked problem defines its own State, as code to be copied
    assert {name for name, count in names.items() if count > 1} <= {"State"}


def test_files_are_short():
    assert [path.name for path in MODULES if len(path.read_text().splitlines()) > 400] == []


def test_functions_are_short():
    long = [name_of(path, node) for path, node in FUNCTIONS if node.end_lineno - node.lineno + 1 > 50]
    assert len(long) <= MAX_LONG_FUNCTIONS, long


def test_functions_have_few_parameters():
    wide = []
    for path, node in FUNCTIONS:
        most = 40 if KERNELS in path.parents or COMMANDS in path.parents else 12
        if len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs) > most:
            wide.append(name_of(path, node))
    assert wide == []


def test_only_tasks_know_which_task_they_are():
    """One exception: a pronouncer must map letters to phones, whatever its task is called."""
    pattern = re.compile(r"(isinstance|issubclass)\([^()]*\b\w*Task\b")
    found = [
        str(path.relative_to(ROOT))
        for path in MODULES
        if ROOT / "qkv/tasks" not in path.parents and pattern.search(path.read_text())
    ]
    assert found in ([], ["qkv/pronunciation/neural.py"])


def test_kind_names_are_compared_nowhere():
    compared = re.compile(rf"""(==|!=)\s*["']({KIND_NAMES})\b|["']({KIND_NAMES})["']\s*(==|!=)""")
    scripts = sorted((ROOT / "qkv/web/static").rglob("*.js"))
    assert scripts
    assert [str(path.relative_to(ROOT)) for path in (*MODULES, *scripts) if compared.search(path.read_text())] == []


def test_kernels_have_shape_comments():
    """A load, a product or a store says the shape of its tile at its line or at the one before."""
    missing = []
    for path in sorted((KERNELS / "kernels").glob("*.py")):
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            near = "\n".join(lines[number - 4 : number + 6])
            if re.search(r"\btl\.(load|dot|store)\(", line) and not re.search(r"# (\[|scalar|shape)", near):
                missing.append(f"{path.name}:{number + 1}")
    assert missing == []

"""The public names of each package, read from its `__init__.py`.

`tests/public_names.txt` holds those that were released. Adding a name needs no edit there; removing or renaming one
breaks code of users, so delete its line on purpose. `python -m tests.public_names` writes the file anew.
"""

import ast
from pathlib import Path

import qkv

ROOT = Path(qkv.__file__).parent
RELEASED = Path(__file__).parent / "public_names.txt"


def packages() -> list[str]:
    """Return the importable packages of the library; `qkv.cli` is a program."""
    folders = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
    return ["qkv", *(f"qkv.{name}" for name in folders if name != "cli")]


def exports(package: str) -> set[str]:
    """Return the names a package exports: `import X as X` (or as another name), and those of `__all__`."""
    tree = _read(package)
    imported = {alias.asname for alias in _imported(tree) if alias.asname is not None}
    return imported | _all(tree)


def hidden_imports(package: str) -> set[str]:
    """Return the names a package imports from this library but does not export."""
    tree = _read(package)
    ours = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and _is_ours(node)]
    names = {alias.asname or alias.name for node in ours for alias in node.names}
    return {name for name in names - exports(package) if not name.startswith("_")}


def read_released() -> set[tuple[str, str]]:
    """Return the released (package, name) pairs."""
    lines = RELEASED.read_text().splitlines()
    return {(package, name) for package, *names in map(str.split, lines) for name in names}


def write_released() -> None:
    """Write the names of today as the released ones."""
    lines = [f"{package} {name}" for package in packages() for name in sorted(exports(package))]
    RELEASED.write_text("\n".join(lines) + "\n")


def _read(package: str) -> ast.Module:
    path = ROOT.joinpath(*package.split(".")[1:], "__init__.py")
    return ast.parse(path.read_text())


def _imported(tree: ast.Module) -> list[ast.alias]:
    return [alias for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]


def _all(tree: ast.Module) -> set[str]:
    values = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and any(isinstance(one, ast.Name) and one.id == "__all__" for one in node.targets)
    ]
    return {name for value in values for name in ast.literal_eval(value)}


def _is_ours(node: ast.ImportFrom) -> bool:
    return node.level > 0 or (node.module or "").split(".")[0] == "qkv"


if __name__ == "__main__":
    write_released()

"""A reference page per public package: its public names, for mkdocstrings to document."""

import inspect
from importlib import import_module
from pathlib import Path

import qkv

PAGE = """# qkv.{package}

::: qkv.{package}
    options:
      show_root_heading: false
      show_root_toc_entry: false
      members: [{names}]
"""
INTERNAL = ("errors", "storage")
"""Modules that users import names of, but that have no page."""


def reference_pages() -> dict[str, str]:
    """Return file name -> text for every public package, and for the page that lists them."""
    packages = [name for name in qkv.__all__ if inspect.ismodule(getattr(qkv, name)) and name not in INTERNAL]
    pages = {f"reference/{package}.md": _page(package) for package in packages}
    rows = [f"| [qkv.{package}]({package}.md) | {_summary(package)} |" for package in packages]
    text = ["# Reference", "Every public name, from its docstring.", "\n".join(["| package | |", "|---|---|", *rows])]
    return {"reference/index.md": "\n\n".join(text) + "\n", **pages}


def _page(package: str) -> str:
    module = import_module(f"qkv.{package}")
    public = {name: value for name, value in vars(module).items() if _is_public(name, value)}
    folder = Path(inspect.getfile(module)).parent
    hidden = [name for name in sorted(public) if (folder / f"{name}.py").exists()]  # by a module of the same name
    names = sorted(public.keys() - set(hidden), key=str.lower)
    entries = [f"::: {public[name].__module__}.{public[name].__qualname__}\n" for name in hidden]
    return "\n".join([PAGE.format(package=package, names=", ".join(names)), *entries])


def _is_public(name: str, value: object) -> bool:
    return not name.startswith("_") and not inspect.ismodule(value)


def _summary(package: str) -> str:
    docstring = inspect.getdoc(import_module(f"qkv.{package}")) or ""
    return docstring.split("\n\n")[0].replace("\n", " ").replace("|", "\\|")

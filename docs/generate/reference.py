"""A reference page per public package: its public names, for mkdocstrings to document."""

import inspect
from importlib import import_module

import qkv

PAGE = """# qkv.{package}

::: qkv.{package}
    options:
      show_root_heading: false
      show_root_toc_entry: false
      members: [{names}]
"""


def reference_pages() -> dict[str, str]:
    """Return file name -> text for every public package, and for the page that lists them."""
    pages = {f"reference/{package}.md": _page(package) for package in qkv._PACKAGES}
    rows = [f"| [qkv.{package}]({package}.md) | {_summary(package)} |" for package in qkv._PACKAGES]
    text = ["# Reference", "Every public name, from its docstring.", "\n".join(["| package | |", "|---|---|", *rows])]
    return {"reference/index.md": "\n\n".join(text) + "\n", **pages}


def _page(package: str) -> str:
    module = import_module(f"qkv.{package}")
    names = [name for name in vars(module) if not name.startswith("_") and not inspect.ismodule(vars(module)[name])]
    return PAGE.format(package=package, names=", ".join(sorted(names, key=str.lower)))


def _summary(package: str) -> str:
    docstring = inspect.getdoc(import_module(f"qkv.{package}")) or ""
    return docstring.split("\n\n")[0].replace("\n", " ").replace("|", "\\|")

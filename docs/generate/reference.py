"""The reference: every public name with its signature and its docstring."""

import inspect
from importlib import import_module
from typing import Any

import qkv


def reference_pages() -> dict[str, str]:
    """A page for each package."""
    return {f"reference/{name}.md": _page(name) for name in qkv._PACKAGES}


def _page(package: str) -> str:
    module = import_module(f"qkv.{package}")
    names = [name for name in vars(module) if not name.startswith("_") and not inspect.ismodule(vars(module)[name])]
    texts = [_entry(f"qkv.{package}", name, getattr(module, name)) for name in sorted(names, key=str.lower)]
    return "\n\n".join([f"# qkv.{package}", inspect.getdoc(module) or "", *texts]) + "\n"


def _entry(home: str, name: str, thing: Any) -> str:
    if not callable(thing):
        return f"## {name}\n\n`{home}.{name}`: a {type(thing).__name__}."
    parts = [f"## {name}", f"```\n{home}.{name}{_signature(thing)}\n```", _docstring(thing)]
    if inspect.isclass(thing):
        parts += [
            f"**{method}**`{_signature(function)}`\n\n{_docstring(function)}"
            for method, function in vars(thing).items()
            if not method.startswith("_") and inspect.isfunction(function) and function.__doc__
        ]
    return "\n\n".join(parts)


def _signature(thing: Any) -> str:
    """Names and defaults; types stay in the code, where they can be read with their aliases."""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values() if p.name != "self"]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))


def _docstring(thing: Any) -> str:
    """The docstring as it is written, in a block, since it has formulas in it."""
    text = inspect.getdoc(thing) or ""
    first, _, rest = text.partition("\n")
    block = f"\n\n```\n{rest.strip(chr(10))}\n```" if rest.strip() else ""
    return first.replace("<", "&lt;").replace("_", "\\_").replace("*", "\\*") + block

"""The menu of the site: written pages in groups; attention kinds, positions, problems and the reference as found.

A written page that no group names is listed under How-to guides. A kind, a position scheme, a problem or a package of
the reference needs no line here.
"""

from typing import Any

GUIDES = "How-to guides"
GROUPS = {
    "Tutorial": ("tutorial",),
    GUIDES: (
        "training",
        "scale",
        "pronounce",
        "text",
        "masked",
        "words",
        "classification",
        "synthetic",
        "detection",
        "photos",
        "huggingface",
        "workbench",
        "serving",
    ),
    "Concepts": ("gates", "states", "sequence_parallel", "cost", "kernels", "compatibility", "dependencies"),
    "Results": ("results", "evidence", "pronounce_model"),
}
CONCEPTS = ("attention", "positions")
"""Folders with one page per mechanism, listed under Concepts."""
FOLDERS = {"reference": "Reference", "problems": "Worked problems"}
ORDER = ("Tutorial", GUIDES, "Concepts", "Reference", "Worked problems", "Results")


def menu(pages: list[str]) -> list[Any]:
    """Return the value of `nav` in mkdocs.yml: the first page, then the groups in reading order."""
    written = [page for page in pages if "/" not in page and page != "index.md"]
    groups: dict[str, list[Any]] = {
        title: [f"{name}.md" for name in names if f"{name}.md" in written] for title, names in GROUPS.items()
    }
    named = {page for group in groups.values() for page in group}
    groups[GUIDES] += sorted(page for page in written if page not in named)
    for folder in CONCEPTS:
        found = sorted(page for page in pages if page.startswith(f"{folder}/"))
        groups["Concepts"] += [{folder.capitalize(): found}] if found else []
    for folder, title in FOLDERS.items():
        found = [page for page in pages if page.startswith(f"{folder}/")]
        groups[title] = sorted(found, key=lambda page: (not page.endswith("index.md"), page))
    filled = {title: groups[title] for title in ORDER if groups[title]}
    return [{"Home": "index.md"}, *({title: group} for title, group in filled.items())]

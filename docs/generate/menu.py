"""The menu of the site, as a hook of mkdocs: written pages in groups, so that it is one row; all else as it is found.

A written page that is in no group stands under Inside. A kind, a scheme, a problem or a package of the reference needs
no line here.
"""

from typing import Any

GROUPS = {
    "Tasks": ("training", "pronounce", "pronounce_model", "text", "masked", "words", "classification"),
    "Inside": ("cost", "kernels", "huggingface", "workbench", "dependencies"),
}


def on_files(files: Any, config: Any) -> Any:
    """Set the menu once all pages are known."""
    config["nav"] = menu([file.src_uri for file in files.documentation_pages()])
    return files


def menu(pages: list[str]) -> list[Any]:
    """The pages as mkdocs takes them: the first one, then groups by their titles."""
    written = [page for page in pages if "/" not in page and page != "index.md"]
    groups = {title: [f"{name}.md" for name in names if f"{name}.md" in written] for title, names in GROUPS.items()}
    placed = [page for group in groups.values() for page in group]
    groups["Inside"] += sorted(page for page in written if page not in placed)
    for page in sorted(pages, key=lambda page: (not page.endswith("index.md"), page)):  # a folder's index comes first
        if "/" in page:
            groups.setdefault(page.split("/")[0].capitalize(), []).append(page)
    order = [*GROUPS, *sorted(title for title in groups if title not in GROUPS)]
    return [{"Home": "index.md"}, *({title: groups[title]} for title in order if groups[title])]

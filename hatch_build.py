"""Build hook that prepares README.md for the page of a package index, where relative links and pictures are broken."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n+", re.M)
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)[^)]*\)")


def index_page(readme: str) -> str:
    """Return the README without relative pictures, and with the text of relative links in place of the links."""
    return LINK.sub(r"\1", PICTURE.sub("", readme))


class ReadmeHook(MetadataHookInterface):  # type: ignore[misc]
    """Metadata hook that sets the description."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set `readme`."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": index_page(text)}

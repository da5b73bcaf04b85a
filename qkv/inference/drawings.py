"""Files with the drawings of predictions: beside their pictures, or in a folder with a page that shows them all."""

from pathlib import Path
from typing import Any

from qkv.draw import DrawnFile, drawings_page
from qkv.errors import QkvError
from qkv.inference.predictor import Predictor
from qkv.storage import write_atomic

SUFFIX = ".boxes.svg"
PAGE = "index.html"


class DrawingFiles:
    """Writes the drawing of each record: photo.jpg -> photo.boxes.svg.

    Two pictures with the same stem, such as photo.jpg and photo.png, get photo.boxes.svg and photo-2.boxes.svg.
    """

    def __init__(self, predictor: Predictor, folder: Path | None = None):
        self.predictor, self.folder = predictor, folder
        """Folder for all drawings; None: each goes into the folder of its picture."""
        self.written: dict[Path, DrawnFile] = {}
        if folder is not None:
            _make_folder(folder)

    def write(self, record: dict[str, Any]) -> Path:
        """Write the drawing of one record; return its path."""
        source = Path(record["input"])
        path = self._free_path(self.folder or source.parent, source.stem)
        write_atomic(path, self.predictor.draw(record).encode())
        found = [" ".join(row[1:3]) for row in self.predictor.rows(record) if any(row[1:])]
        self.written[path] = DrawnFile(source.name, Path(path.name), found)
        return path

    def write_page(self, title: str) -> None:
        """Write the page that shows all drawings of the folder."""
        if self.folder is not None:
            page = drawings_page(title, list(self.written.values()), f"{len(self.written):,} pictures")
            write_atomic(self.folder / PAGE, page.encode())

    def _free_path(self, folder: Path, stem: str) -> Path:
        path, number = folder / f"{stem}{SUFFIX}", 1
        while path in self.written:
            number += 1
            path = folder / f"{stem}-{number}{SUFFIX}"
        return path


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise QkvError(f"{folder.name} is a file, but a folder is expected", folder.parent) from None
    except OSError as error:
        raise QkvError(f"{folder.name} cannot be made ({error.strerror})", folder.parent) from error

"""Tatoeba: short sentences and their translations, English with French or Spanish.

french    178,009 pairs          spanish   124,547 pairs          https://tatoeba.org

A member of an archive on the package index; nothing else of it is read. The sentences are under CC BY 2.0 (France);
each line of the archive names its authors on tatoeba.org. They are not stored in this repository.
"""

import zipfile
from io import BytesIO

from qkv.data.components import SentencePair, split_by_components
from qkv.data.corpora.archive import Archive, read_archive_member
from qkv.data.dataset_registry import register_dataset
from qkv.errors import QkvError, unknown_name_error

NMT = Archive("nmt", "0.0.6", "nmt-0.0.6.tar.gz", "65db964c0afd5b0dbc4baecdce736f53222f63b791958176b5771db78a005096")
_MEMBERS = {"french": "fra", "spanish": "spa"}
LANGUAGES = tuple(_MEMBERS)
VALID, TEST = 0.01, 0.02
"""Shares of the connected components that are held out."""


@register_dataset("tatoeba")
def tatoeba(language: str = "french") -> dict[str, list[SentencePair]]:
    """Load Tatoeba, English sentences with French or Spanish ones, in splits that share no sentence."""
    if language not in _MEMBERS:
        raise unknown_name_error("language", language, _MEMBERS)
    name = _MEMBERS[language]
    packed = read_archive_member(NMT, f"nmt-0.0.6/data/{name}-eng.zip")
    with zipfile.ZipFile(BytesIO(packed)) as zipped:
        text = zipped.read(f"{name}.txt").decode()
    return split_by_components(parse_tatoeba(text), valid=VALID, test=TEST)


def parse_tatoeba(text: str) -> list[SentencePair]:
    """Parse lines of English TAB translation TAB attribution."""
    pairs = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        fields = [field.strip() for field in line.split("\t")]
        if len(fields) != 3 or not all(fields):
            raise QkvError(f"line {number} must be English TAB translation TAB attribution, got {line[:60]!r}")
        pairs.append(SentencePair(*fields[:2]))
    return pairs

"""Words without pronunciations for `pronounce_recipe --unlabeled`: `python -m benchmarks.more_words words.txt`.

The surnames and first names of the United States' census of 1990 (public domain; in the package names) and the words
of WikiText-2. Which of them may be trained on is decided where they are used: words that the dictionary has, or that
are kept out of training, are not.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from qkv.data import read_corpus
from qkv.data.corpora.archive import Archive, read_archive_member

CENSUS = Archive(
    "names", "0.3.0", "names-0.3.0.tar.gz", "726e46254f2ed03f1ffb5d941dae3bc67c35123941c29becd02d48d0caa2a671"
)
LISTS = ("dist.all.last", "dist.female.first", "dist.male.first")
_WORD = re.compile(r"(?<![^\W_])[a-z]{3,}(?![^\W_])")
"""At least three letters; what touches a digit or a letter with an accent is no word of these."""


def census() -> Iterator[str]:
    """Names, the frequent ones first."""
    for name in LISTS:
        for line in read_archive_member(CENSUS, f"names-0.3.0/names/{name}").decode().splitlines():
            yield line.split()[0].lower()


def wikipedia() -> Iterator[str]:
    """The words of WikiText-2, in its order."""
    for documents in read_corpus("wikitext").values():
        for document in documents:
            yield from _WORD.findall(document.lower())


def main() -> None:
    """Write each word once."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m benchmarks.more_words FILE")
    path = Path(sys.argv[1])
    if not path.parent.is_dir():
        sys.exit(f"more_words: there is no folder {path.parent}")
    words = dict.fromkeys([*census(), *wikipedia()])
    path.write_text("\n".join(words) + "\n")
    print(f"{len(words):,} words in {path}")


if __name__ == "__main__":
    main()

"""What people say of words: how alike two are, and which word completes an analogy.

WS-353      353 pairs of words, judged from 0 to 10        https://doi.org/10.1145/503104.503110
analogies   19,544 questions in 14 sections                https://arxiv.org/abs/1301.3781

Both ride in the source archive of gensim (a package of the index), of which only these two members are read; they were
published for research, and nothing of them is kept in this repository.
"""

from dataclasses import dataclass

from qkv.data.corpora.archive import Archive, member_of
from qkv.storage import QkvError

GENSIM = Archive(
    "gensim", "4.4.0", "gensim-4.4.0.tar.gz", "a3f5b626da5518e79a479140361c663089fe7998df8ba52d56e1ded71ac5bdf5"
)
_FOLDER = "gensim-4.4.0/gensim/test/test_data"


@dataclass(frozen=True)
class WordPair:
    """Two words, and how alike people found them."""

    left: str
    right: str
    score: float


@dataclass(frozen=True)
class Analogy:
    """first is to second as third is to fourth."""

    section: str
    words: tuple[str, str, str, str]


def ws353() -> list[WordPair]:
    """The pairs of WS-353, in lower case."""
    return parse_pairs(member_of(GENSIM, f"{_FOLDER}/wordsim353.tsv").decode())


def analogies() -> list[Analogy]:
    """The analogy questions of Google, in lower case."""
    return parse_analogies(member_of(GENSIM, f"{_FOLDER}/questions-words.txt").decode())


def parse_pairs(text: str) -> list[WordPair]:
    """Lines of word TAB word TAB score; those that begin with # are remarks."""
    pairs = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = line.lower().split("\t")
        try:
            left, right, score = fields[0], fields[1], float(fields[2])
        except (IndexError, ValueError):
            raise QkvError(f"line {number} must be word TAB word TAB score, got {line[:60]!r}") from None
        pairs.append(WordPair(left, right, score))
    return pairs


def parse_analogies(text: str) -> list[Analogy]:
    """Lines of four words, below lines such as ": capital-common-countries"."""
    section, found = "", []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(":"):
            section = line[1:].strip()
        elif line.strip():
            words = tuple(line.lower().split())
            if len(words) != 4:
                raise QkvError(f"line {number} must be four words, got {line[:60]!r}")
            found.append(Analogy(section, words))
    return found

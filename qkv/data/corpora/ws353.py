"""Human judgments for evaluating word vectors: similarity of word pairs, and word analogies.

WS-353      353 word pairs, rated from 0 to 10             https://doi.org/10.1145/503104.503110
analogies   19,544 questions in 14 sections                https://arxiv.org/abs/1301.3781

Both are members of gensim's source archive on the package index; no other member is read. They were published for
research and are not stored in this repository.
"""

from dataclasses import dataclass

from qkv.data.corpora.archive import Archive, read_archive_member
from qkv.data.dataset_registry import register_dataset
from qkv.errors import QkvError

GENSIM = Archive(
    "gensim", "4.4.0", "gensim-4.4.0.tar.gz", "a3f5b626da5518e79a479140361c663089fe7998df8ba52d56e1ded71ac5bdf5"
)
_FOLDER = "gensim-4.4.0/gensim/test/test_data"


@dataclass(frozen=True)
class WordPair:
    """Two words and their mean similarity rating."""

    left: str
    right: str
    score: float


@dataclass(frozen=True)
class Analogy:
    """Four words: the first is to the second as the third is to the fourth."""

    section: str
    words: tuple[str, str, str, str]


@register_dataset("ws353")
def ws353() -> list[WordPair]:
    """Load WS-353, word pairs with similarity ratings, in lower case."""
    return parse_pairs(read_archive_member(GENSIM, f"{_FOLDER}/wordsim353.tsv").decode())


@register_dataset("analogies")
def analogies() -> list[Analogy]:
    """Load the Google analogy questions, in lower case."""
    return parse_analogies(read_archive_member(GENSIM, f"{_FOLDER}/questions-words.txt").decode())


def parse_pairs(text: str) -> list[WordPair]:
    """Parse lines of word TAB word TAB score; lines that begin with # are comments."""
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
    """Parse lines of four words, below section lines such as ": capital-common-countries"."""
    section, questions = "", []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(":"):
            section = line[1:].strip()
        elif line.strip():
            words = tuple(line.lower().split())
            if len(words) != 4:
                raise QkvError(f"line {number} must be four words, got {line[:60]!r}")
            questions.append(Analogy(section, words))
    return questions

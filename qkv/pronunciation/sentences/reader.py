"""Sentences to phones: normalize the text, choose readings of heteronyms, look up words, ask the model for the rest.

for token in SentenceReader().read("He read 12 pages."):
    print(token.text, [(word.word, str(word.answer), word.why) for word in token.words])
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from qkv.pronunciation.answer import Pronunciation, Source, WordAnswer
from qkv.pronunciation.arpabet import Phones
from qkv.pronunciation.heteronyms import Choice, choose, heteronyms
from qkv.pronunciation.normalization import SpokenToken, normalize
from qkv.pronunciation.pronouncer import WORDS_PER_WINDOW, Pronouncer
from qkv.pronunciation.sentences.morphology import derive, join_parts, letter_phones, spell
from qkv.pronunciation.sentences.pieces import cut
from qkv.pronunciation.text import normalize as normalize_word

TOKENS_PER_BOOK_WINDOW = 16 * WORDS_PER_WINDOW
"""Tokens of a long text that are read ahead: its unknown words fill batches."""
CACHE_SIZE = 50_000
"""Words whose answers are cached."""


class SpokenWord(NamedTuple):
    """A word that is said, its pronunciations, and why this one."""

    word: str
    answer: WordAnswer
    why: str
    """The source (user, dictionary, letters, model, none), or the heteronym's reading and its cues."""


class ReadToken(NamedTuple):
    """A token of a text and the words that are said for it."""

    token: SpokenToken
    words: tuple[SpokenWord, ...] = ()
    text_number: int = 1
    """Number of the text."""
    offset: int = 0
    """Place of the piece of text in which the token was found."""

    @property
    def start(self) -> int:
        """Index of its first character in the text."""
        return self.offset + self.token.start

    @property
    def end(self) -> int:
        """Index after its last character in the text."""
        return self.offset + self.token.end

    @property
    def text(self) -> str:
        """The token as it was written."""
        return self.token.text

    def to_answer(self) -> WordAnswer:
        """Return one answer for the token: its words said one after the other."""
        if not self.words:
            return self._silent()
        missing = next((one.answer for one in self.words if not one.answer.best), None)
        if missing is not None:
            return WordAnswer(self.text, Source.none, reason=missing.reason)
        if len(self.words) == 1:
            only = self.words[0].answer
            return WordAnswer(self.text, only.source, only.best)
        order = list(Source)
        source = max((one.answer.source for one in self.words), key=order.index)
        return WordAnswer(self.text, source, (_join([one.answer.best[0] for one in self.words]),))

    def to_record(self, alphabet: str = "arpabet") -> dict[str, object]:
        """Return plain data for JSON: the answer, its place in the text, and every word with its reason."""
        words = [
            {
                "word": one.word,
                "output": one.answer.best[0].to_text(alphabet) if one.answer.best else "",
                "source": one.answer.source.value,
                "why": one.why,
            }
            for one in self.words
        ]
        place = {"text": self.text_number, "start": self.start, "end": self.end, "kind": self.token.kind}
        return {**self.to_answer().to_record(alphabet), **place, "words": words}

    def _silent(self) -> WordAnswer:
        if self.token.kind == "symbol":
            shown = self.text if len(self.text) <= 40 else self.text[:37] + "..."
            return WordAnswer(self.text, Source.none, reason=f"{shown!r} has no answer: it is not a word")
        return WordAnswer(self.text, Source.punctuation)


_Pending = tuple[SpokenToken, int, int, list[Choice] | None]
"""(token, number of its text, place of its piece, readings of a heteronym)"""


class SentenceReader:
    """Reads sentences; create it once and reuse it. `best` is the number of pronunciations per word."""

    def __init__(self, pronouncer: Pronouncer | None = None, best: int = 1):
        if best < 1:
            raise ValueError(f"best must be at least 1, got {best}")
        self.pronouncer = pronouncer or Pronouncer()
        self.best = best
        self._known: dict[str, SpokenWord] = {}

    def read(self, text: str) -> list[ReadToken]:
        """Return the tokens of a text, spaces included: joined they are the text again."""
        return list(self.stream([(1, text)]))

    def read_book(self, pieces: Iterable[str]) -> Iterator[ReadToken]:
        """Yield the tokens of one long text that comes in pieces, such as those of `read_pieces`, in bounded memory."""
        return self.stream(((1, piece) for piece in pieces), joined=True, window=TOKENS_PER_BOOK_WINDOW)

    def stream(
        self, texts: Iterable[tuple[int, str]], *, joined: bool = False, window: int = WORDS_PER_WINDOW
    ) -> Iterator[ReadToken]:
        """Yield the tokens of numbered texts, in order and in bounded memory; unknown words share batches of the model.

        `joined`: the texts are pieces of one; places count from its beginning. `window`: tokens read ahead at most, and
        1 answers every text as soon as it is there.
        """
        pending: list[_Pending] = []
        offset = 0
        for number, text in texts:
            offset = offset if joined else 0
            for piece in cut(text):
                pending += self._prepare(piece, number, offset)
                offset += len(piece)
                if len(pending) >= window:
                    yield from self._answer(pending)
                    pending = []
        yield from self._answer(pending)

    def _prepare(self, piece: str, number: int, offset: int) -> list[_Pending]:
        tokens = list(normalize(piece, self.pronouncer.lookup))
        return [
            (
                token,
                number,
                offset,
                self._choose(tokens, index) if token.kind == "word" else None,
            )
            for index, token in enumerate(tokens)
        ]

    def _choose(self, tokens: list[SpokenToken], index: int) -> list[Choice] | None:
        """Return readings of a heteronym, unless the user's dictionary has it or no dictionary is wanted."""
        word = tokens[index].text.lower()
        if word not in heteronyms() or self.pronouncer.model_only:
            return None
        if self.pronouncer.user is not None and word in self.pronouncer.user:
            return None
        return choose(tokens, index)

    def _answer(self, pending: list[_Pending]) -> Iterator[ReadToken]:
        known = self._known
        missing = {
            key: word
            for token, _, _, choices in pending
            if choices is None
            for word in token.words
            if (key := _key(word, token)) not in known
        }
        self._add(missing)
        for token, number, offset, choices in pending:
            if choices is not None:
                words: tuple[SpokenWord, ...] = (self._choice(token.text, choices),)
            elif token.kind == "word":
                words = (known[token.words[0]],)
            else:
                words = tuple([known[f"letter {word}"] for word in token.words])
            yield ReadToken(token, words, number, offset)
        if len(known) > CACHE_SIZE:
            known.clear()

    def _add(self, missing: dict[str, str]) -> None:
        """Answer words that are not in the cache: letters, words of a dictionary, derived words, then the model."""
        rest: dict[str, str] = {}
        for key, word in missing.items():
            letter = letter_phones(word) if key.startswith("letter ") else None
            if letter is not None:
                self._known[key] = self._spoken(word, (letter,), Source.letters, "letters")
                continue
            lower = normalize_word(word)
            derived = None if self.pronouncer.model_only or self.pronouncer.lookup(lower) else self._derive(word, lower)
            if derived is None:
                rest[key] = word
            else:
                self._known[key] = derived
        for key, answer in zip(rest, self.pronouncer.words(rest.values(), self.best), strict=True):
            self._known[key] = SpokenWord(rest[key], answer, answer.source.value)

    def _derive(self, word: str, lower: str) -> SpokenWord | None:
        """Answer a word that no dictionary has by words or letters that it is made of."""
        parts = join_parts(word, self.pronouncer.lookup)
        derived = (parts,) if parts else derive(lower, self.pronouncer.lookup)
        if derived:
            return self._spoken(word, derived, Source.dictionary, "dictionary, by its parts")
        letters = spell(word)
        return self._spoken(word, (letters,), Source.letters, "letters") if letters else None

    def _choice(self, word: str, choices: list[Choice]) -> SpokenWord:
        ways = tuple(Pronunciation(one.reading.phones, one.probability) for one in choices)
        return SpokenWord(word, self._finish(WordAnswer(word, Source.dictionary, ways)), choices[0].reason)

    def _spoken(self, word: str, phones: tuple[Phones, ...], source: Source, why: str) -> SpokenWord:
        ways = tuple(Pronunciation(one, 1 / len(phones)) for one in phones)
        return SpokenWord(word, self._finish(WordAnswer(word, source, ways)), why)

    def _finish(self, answer: WordAnswer) -> WordAnswer:
        """Return an answer without stress if that is wanted, and no more pronunciations than wanted."""
        plain = answer if self.pronouncer.stress else answer.without_stress()
        return WordAnswer(plain.input, plain.source, plain.best[: self.best], plain.reason)


def _key(word: str, token: SpokenToken) -> str:
    """Return the key of the cache: a capital letter is the name of the letter unless it is a word of the text."""
    return word if token.kind == "word" else f"letter {word}"


def _join(ways: list[Pronunciation]) -> Pronunciation:
    phones = tuple(phone for one in ways for phone in one.phones)
    stressed = tuple(phone for one in ways for phone in one.stressed or one.phones)
    probability = 1.0
    for one in ways:
        probability *= one.probability
    return Pronunciation(phones, probability, None if all(one.stressed is None for one in ways) else stressed)

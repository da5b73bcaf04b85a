"""The pronouncer: the user's dictionary first, then CMUdict, then the model; each answer names its source.

    Pronouncer().word("tokenizer").best[0].phones

A compound word in no dictionary (with hyphens, dots or digits) is pronounced part by part (mp3: mp, three). Its source
is the least reliable source of its parts.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from pathlib import Path

from qkv.errors import QkvError
from qkv.pronunciation.answer import Pronunciation, Source, WordAnswer, merge_and_rank
from qkv.pronunciation.arpabet import Phones
from qkv.pronunciation.bundled import MODEL_MISSING, model_folder
from qkv.pronunciation.dictionary import Dictionary, cmu_dictionary, read_dictionary
from qkv.pronunciation.neural import NeuralG2P
from qkv.pronunciation.text import TextToken, normalize, split_compound, split_text, strip_accents

WORDS_PER_WINDOW = 4096
"""Words read ahead, so that words of similar length share a batch."""
MAX_PARTS = 64
"""Parts in the longest compound word."""
CACHE_SIZE = 20_000
"""Predictions of the model that are cached."""


@dataclass(frozen=True)
class _PartAnswer:
    """Pronunciations of a part of a word."""

    source: Source
    best: tuple[Pronunciation, ...]


class Pronouncer:
    """Pronounces words; create it once and reuse it.

    `dictionary` is a file in the format of CMUdict, `model` a run folder instead of the bundled model. `model_only`
    skips all dictionaries. `beams` is the beam width; 1 is greedy search and the fastest.
    The model is loaded when the first word needs it.
    """

    def __init__(
        self,
        *,
        dictionary: Path | str | Dictionary | None = None,
        model: Path | str | NeuralG2P | None = None,
        model_only: bool = False,
        stress: bool = True,
        beams: int = 4,
    ):
        if beams < 1:
            raise ValueError(f"beams must be at least 1, got {beams}")
        self.user = read_dictionary(dictionary) if isinstance(dictionary, Path | str) else dictionary
        """The user's dictionary; its skipped lines are in `user.bad`."""
        self.model_only = model_only
        self.stress = stress
        self.beams = beams
        self._model = model if model is None or isinstance(model, NeuralG2P) else model_folder(model)
        self._cache: dict[tuple[str, int], tuple[Pronunciation, ...]] = {}

    @cached_property
    def network(self) -> NeuralG2P | None:
        """The model; None if no folder is given and none is bundled."""
        if isinstance(self._model, NeuralG2P):
            return self._model
        try:
            folder = model_folder(self._model)
        except QkvError as error:
            if error.what == MODEL_MISSING:
                return None
            raise
        return NeuralG2P.open(folder)

    def word(self, word: str, best: int = 1) -> WordAnswer:
        """Return the `best` pronunciations of one word; a dictionary may have fewer."""
        (answer,) = self.words([word], best)
        return answer

    def words(self, words: Iterable[str], best: int = 1) -> Iterator[WordAnswer]:
        """Yield an answer for each word, in order; words are processed a window at a time, in bounded memory."""
        return self.answer_tokens((TextToken(word, "word") for word in words), best)

    def sentence(self, text: str, best: int = 1) -> list[WordAnswer]:
        """Return an answer for each word of a text and for the punctuation between, word by word.

        `SentenceReader` also reads numbers and abbreviations, and chooses readings by context.
        """
        return list(self.answer_tokens((token for token in self.split(text) if token.kind != "space"), best))

    def split(self, text: str) -> Iterator[TextToken]:
        """Split a text into words and what is between them; a word of a dictionary is never split."""
        return split_text(text, self._is_known)

    def lookup(self, word: str) -> tuple[Phones, ...]:
        """Return the pronunciations of a word by the first dictionary that has it; empty if no dictionary has it."""
        found = self._lookup(word)
        return tuple(one.phones for one in found.best) if found else ()

    def answer_tokens(
        self, tokens: Iterable[TextToken], best: int = 1, window: int = WORDS_PER_WINDOW
    ) -> Iterator[WordAnswer]:
        """Yield an answer for each token of a text."""
        if best < 1:
            raise ValueError(f"best must be at least 1, got {best}")
        stream = iter(tokens)
        while chunk := list(islice(stream, window)):
            yield from self._answer_window(chunk, best)

    def _answer_window(self, tokens: list[TextToken], best: int) -> Iterator[WordAnswer]:
        n_best = best if self.stress else 2 * best  # pronunciations that differ in stress alone are merged
        parts_of = {token.text: self._split_word(token.text.strip()) for token in tokens if token.kind == "word"}
        supported = (parts for parts in parts_of.values() if _unsupported_reason(parts) is None)
        missing = [part for parts in supported for part in parts if not self._is_known(part)]
        predicted, failed = self._predict(list(dict.fromkeys(missing)), n_best)
        for token in tokens:
            if token.kind != "word":
                yield _answer_non_word(token)
                continue
            parts = parts_of[token.text]
            reason = _unsupported_reason(parts) or next((failed[part] for part in parts if part in failed), None)
            if reason is not None:
                yield WordAnswer(token.text, Source.none, reason=f"{_abbreviate(token.text)} has no answer: {reason}")
                continue
            answer = _combine(token.text, [self._lookup(part) or predicted[part] for part in parts], n_best)
            yield _truncate(answer if self.stress else answer.without_stress(), best)

    def _split_word(self, word: str) -> list[str]:
        """Return the parts to pronounce in order: the word itself if it can be, or the parts of a compound."""
        plain = normalize(word)
        for form in (plain, strip_accents(plain)):
            if self._is_known(form):
                return [form]
        if plain.isalpha() or plain.replace("'", "").isalpha():
            return [plain]
        found: list[str] = []
        for part in split_compound(strip_accents(plain)):
            found.extend([part] if self._is_pronounceable(part) else part)  # letter by letter
        return found or ([plain] if plain else [])

    def _is_pronounceable(self, part: str) -> bool:
        """Return whether a part can be read as a word; the mp of mp3 is spelled."""
        return bool(set(part) & set("aeiouy")) or not part.isascii() or self._is_known(part)

    def _is_known(self, word: str) -> bool:
        return any(word in dictionary for _, dictionary in self._dictionaries)

    def _lookup(self, word: str) -> _PartAnswer | None:
        for source, dictionary in self._dictionaries:
            variants = dictionary.lookup(word)
            if variants:
                return _PartAnswer(source, tuple(Pronunciation(phones, 1 / len(variants)) for phones in variants))
        return None

    @cached_property
    def _dictionaries(self) -> list[tuple[Source, Dictionary]]:
        if self.model_only:
            return []
        pairs = ((Source.user, self.user), (Source.dictionary, cmu_dictionary()))
        return [(source, dictionary) for source, dictionary in pairs if dictionary is not None]

    def _predict(self, words: list[str], best: int) -> tuple[dict[str, _PartAnswer], dict[str, str]]:
        """Return the model's predictions for these words, and the reason for each word without one."""
        if not words:
            return {}, {}
        if self.network is None:
            return {}, dict.fromkeys(words, MODEL_MISSING)
        forms = {word: word if self.network.knows_letters(word) else strip_accents(word) for word in words}
        failed = {word: reason for word, form in forms.items() if (reason := self.network.unsupported_reason(form))}
        ready = {word: form for word, form in forms.items() if word not in failed}
        new = [form for form in dict.fromkeys(ready.values()) if (form, best) not in self._cache]
        if len(self._cache) + len(new) > CACHE_SIZE:
            self._cache.clear()
            new = list(dict.fromkeys(ready.values()))
        for form, pronunciations in zip(new, self.network.predict(new, best, self.beams), strict=True):
            self._cache[form, best] = pronunciations
        predicted = {word: _PartAnswer(Source.model, self._cache[form, best]) for word, form in ready.items()}
        failed |= {word: "the model wrote no phones" for word, one in predicted.items() if not one.best}
        return {word: one for word, one in predicted.items() if one.best}, failed


def pronounce(word: str, best: int = 1) -> WordAnswer:
    """Pronounce an English word: `str(qkv.pronounce("hello"))` is "HH AH0 L OW1".

    The answer is from CMUdict or else the bundled model. For many words, texts and other files use `Pronouncer`.
    """
    if not word.strip() or len(word.split()) > 1:
        raise ValueError(f"word must be one word, got {word!r}; Pronouncer().sentence takes a text")
    answer = _default_pronouncer().word(word, best)
    if answer.reason is not None:
        raise QkvError(answer.reason)
    return answer


@cache
def _default_pronouncer() -> Pronouncer:
    return Pronouncer()


def _answer_non_word(token: TextToken) -> WordAnswer:
    if token.kind == "symbol":
        return WordAnswer(token.text, Source.none, reason=f"{_abbreviate(token.text)} has no answer: it is not a word")
    return WordAnswer(token.text, Source.punctuation)


def _unsupported_reason(parts: list[str]) -> str | None:
    """Return why no model can pronounce these parts; None if one may."""
    if len(parts) > MAX_PARTS:
        return f"it has {len(parts):,} parts, and the limit is {MAX_PARTS}"
    return None if parts else "it has no letters"


def _combine(text: str, parts: list[_PartAnswer], best: int) -> WordAnswer:
    """Concatenate the parts; keep the likeliest combinations of their pronunciations."""
    combined: tuple[Pronunciation, ...] = (Pronunciation((), 1.0),)
    for part in parts:
        extended = (
            Pronunciation(left.phones + right.phones, left.probability * right.probability)
            for left in combined
            for right in part.best
        )
        combined = merge_and_rank(extended)[:best]
    order = list(Source)
    return WordAnswer(text, max((part.source for part in parts), key=order.index, default=Source.none), combined)


def _truncate(answer: WordAnswer, best: int) -> WordAnswer:
    return WordAnswer(answer.input, answer.source, answer.best[:best], answer.reason)


def _abbreviate(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")

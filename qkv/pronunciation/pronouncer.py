"""The pronouncer: one's own dictionary first, then CMUdict, then the model; each answer says which.

    Pronouncer().word("kubernetes").best[0].phones

A word that no dictionary has and that is joined by hyphens, dots or digits is said part by part (mp3: mp, three), and
its source is the least sure one of its parts.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from pathlib import Path

from qkv.pronunciation.answer import Answer, Pronunciation, Source, rank
from qkv.pronunciation.bundled import MISSING, model_folder
from qkv.pronunciation.dictionary import Dictionary, cmu_dictionary, read_dictionary
from qkv.pronunciation.neural import Network
from qkv.pronunciation.text import Token, fold, parts, simplify, tokens
from qkv.storage import QkvError

WINDOW = 4096
"""Words that are read before they are answered, so that those of like length are decoded together."""
MOST_PARTS = 64
"""Parts of one word that are said one after the other."""
REMEMBERED = 20_000
"""Words of the model whose answers are kept."""


@dataclass(frozen=True)
class _Said:
    """A part of a word that has been found."""

    source: Source
    best: tuple[Pronunciation, ...]


class Pronouncer:
    """Says words; made once, for many.

    `dictionary` is a file in the format of CMUdict, `model` a run folder instead of the bundled model. With
    `model_only` no dictionary is asked. `beams` is the width of the search; 1 is greedy and the fastest.
    The model is loaded when the first word needs it.
    """

    def __init__(
        self,
        *,
        dictionary: Path | str | Dictionary | None = None,
        model: Path | str | Network | None = None,
        model_only: bool = False,
        stress: bool = True,
        beams: int = 4,
    ):
        if beams < 1:
            raise ValueError(f"beams must be at least 1, got {beams}")
        self.user = read_dictionary(dictionary) if isinstance(dictionary, Path | str) else dictionary
        """One's own dictionary; what was wrong with its lines is in `user.bad`."""
        self.model_only = model_only
        self.stress = stress
        self.beams = beams
        self._model = model if model is None or isinstance(model, Network) else model_folder(model)
        self._remembered: dict[tuple[str, int], tuple[Pronunciation, ...]] = {}

    @cached_property
    def network(self) -> Network | None:
        """The model; None if none was named and none is bundled."""
        if isinstance(self._model, Network):
            return self._model
        try:
            folder = model_folder(self._model)
        except QkvError as error:
            if error.what == MISSING:
                return None
            raise
        return Network.open(folder)

    def word(self, word: str, best: int = 1) -> Answer:
        """The `best` ways to say one word; a dictionary may have fewer."""
        (answer,) = self.words([word], best)
        return answer

    def words(self, words: Iterable[str], best: int = 1) -> Iterator[Answer]:
        """An answer for each word, in order; read, looked up and decoded a window at a time, in bounded memory."""
        return self.tokens((Token(word, "word") for word in words), best)

    def sentence(self, text: str, best: int = 1) -> list[Answer]:
        """An answer for each word of a text and for the punctuation between."""
        return list(self.tokens((token for token in self.split(text) if token.kind != "space"), best))

    def split(self, text: str) -> Iterator[Token]:
        """The words of a text and what stands between them; a dictionary's word is never cut."""
        return tokens(text, self._is_known)

    def tokens(self, pieces: Iterable[Token], best: int = 1, window: int = WINDOW) -> Iterator[Answer]:
        """An answer for each piece of text."""
        if best < 1:
            raise ValueError(f"best must be at least 1, got {best}")
        stream = iter(pieces)
        while chunk := list(islice(stream, window)):
            yield from self._answer(chunk, best)

    def _answer(self, pieces: list[Token], best: int) -> Iterator[Answer]:
        wanted = best if self.stress else 2 * best  # those that differ in stress alone become one
        plans = {piece.text: self._plan(piece.text.strip()) for piece in pieces if piece.kind == "word"}
        sayable = (plan for plan in plans.values() if _objection(plan) is None)
        missing = [part for plan in sayable for part in plan if not self._is_known(part)]
        said, why = self._ask(list(dict.fromkeys(missing)), wanted)
        for piece in pieces:
            if piece.kind != "word":
                yield _unsaid(piece)
                continue
            plan = plans[piece.text]
            reason = _objection(plan) or next((why[part] for part in plan if part in why), None)
            if reason is not None:
                yield Answer(piece.text, Source.none, why=f"{_shown(piece.text)} has no answer: {reason}")
                continue
            answer = _join(piece.text, [self._lookup(part) or said[part] for part in plan], wanted)
            yield _cut(answer if self.stress else answer.without_stress(), best)

    def _plan(self, word: str) -> list[str]:
        """What to say one after the other: the word itself, or its parts."""
        plain = simplify(word)
        for form in (plain, fold(plain)):
            if self._is_known(form):
                return [form]
        if plain.isalpha() or plain.replace("'", "").isalpha():
            return [plain]
        found = [piece for part in parts(fold(plain)) for piece in ([part] if self._is_sayable(part) else part)]
        return found or ([plain] if plain else [])

    def _is_sayable(self, part: str) -> bool:
        """Whether a part of a word is a word itself; the mp of mp3 is two letters."""
        return bool(set(part) & set("aeiouy")) or not part.isascii() or self._is_known(part)

    def _is_known(self, word: str) -> bool:
        return any(word in dictionary for _, dictionary in self._dictionaries)

    def _lookup(self, word: str) -> _Said | None:
        for source, dictionary in self._dictionaries:
            ways = dictionary.lookup(word)
            if ways:
                return _Said(source, tuple(Pronunciation(phones, 1 / len(ways)) for phones in ways))
        return None

    @cached_property
    def _dictionaries(self) -> list[tuple[Source, Dictionary]]:
        if self.model_only:
            return []
        pairs = ((Source.user, self.user), (Source.dictionary, cmu_dictionary()))
        return [(source, dictionary) for source, dictionary in pairs if dictionary is not None]

    def _ask(self, words: list[str], best: int) -> tuple[dict[str, _Said], dict[str, str]]:
        """What the model says of these words, and why it says nothing of others."""
        if not words:
            return {}, {}
        if self.network is None:
            return {}, dict.fromkeys(words, MISSING)
        forms = {word: word if self.network.knows(word) else fold(word) for word in words}
        why = {word: reason for word, form in forms.items() if (reason := self.network.refuse(form))}
        ready = {word: form for word, form in forms.items() if word not in why}
        new = [form for form in dict.fromkeys(ready.values()) if (form, best) not in self._remembered]
        if len(self._remembered) + len(new) > REMEMBERED:
            self._remembered.clear()
            new = list(dict.fromkeys(ready.values()))
        for form, ways in zip(new, self.network.say(new, best, self.beams), strict=True):
            self._remembered[form, best] = ways
        said = {word: _Said(Source.model, self._remembered[form, best]) for word, form in ready.items()}
        why |= {word: "the model wrote no phones" for word, one in said.items() if not one.best}
        return {word: one for word, one in said.items() if one.best}, why


def pronounce(word: str, best: int = 1) -> Answer:
    """How an English word is said: `str(qkv.pronounce("hello"))` is "HH AH0 L OW1".

    The dictionary's answer, or the bundled model's; for files of one's own, many words or sentences see `Pronouncer`.
    """
    if not word.strip() or len(word.split()) > 1:
        raise ValueError(f"word must be one word, got {word!r}; Pronouncer().sentence takes a text")
    answer = _pronouncer().word(word, best)
    if answer.why is not None:
        raise QkvError(answer.why)
    return answer


@cache
def _pronouncer() -> Pronouncer:
    return Pronouncer()


def _unsaid(piece: Token) -> Answer:
    if piece.kind == "symbol":
        return Answer(piece.text, Source.none, why=f"{_shown(piece.text)} has no answer: it is no word")
    return Answer(piece.text, Source.punctuation)


def _objection(plan: list[str]) -> str | None:
    """Why these parts are not said, whatever the model; None if they are."""
    if len(plan) > MOST_PARTS:
        return f"it has {len(plan):,} parts, and at most {MOST_PARTS} are said"
    return None if plan else "it has no letters"


def _join(text: str, said: list[_Said], best: int) -> Answer:
    """The parts one after the other; of all ways to combine theirs, the likeliest."""
    ways: tuple[Pronunciation, ...] = (Pronunciation((), 1.0),)
    for one in said:
        both = (
            Pronunciation(way.phones + more.phones, way.probability * more.probability)
            for way in ways
            for more in one.best
        )
        ways = rank(both)[:best]
    order = list(Source)
    return Answer(text, max((one.source for one in said), key=order.index, default=Source.none), ways)


def _cut(answer: Answer, best: int) -> Answer:
    return Answer(answer.input, answer.source, answer.best[:best], answer.why)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")

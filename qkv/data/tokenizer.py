"""Text to ids and back, by the `tokenizers` library.

bytes        byte-level BPE: every text can be written, nothing is unknown, and `decode(encode(text)) == text`
wordpiece    BERT's: words in lower case without accents, cut into a beginning and ##continuations
characters   each character is a token; rare ones are unknown

All that are trained here have the ids 0 to 3 for pad, start, end and unknown. WordPiece calls them [PAD] [CLS] [SEP]
[UNK], so that `classify` is `start` and `separator` is `end`, and has [MASK] as 4. Loaded ones keep their own.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from qkv.registry import unknown_name_error
from qkv.storage import QkvError, open_file, write_atomic

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

SPECIAL = ("<pad>", "<start>", "<end>", "<unknown>")
BERT_SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")
_NAMES = {
    "pad": ("<pad>", "[PAD]", "<|padding|>"),
    "start": ("<start>", "[CLS]", "<s>", "<bos>", "<|begin_of_text|>", "<|endoftext|>"),
    "end": ("<end>", "[SEP]", "</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>"),
    "unknown": ("<unknown>", "[UNK]", "<unk>"),
    "mask": ("[MASK]", "<mask>"),
    "classify": ("[CLS]",),
    "separator": ("[SEP]",),
}
"""What other people call their special tokens, the likeliest first."""


class Tokenizer:
    """A trained or loaded tokenizer: `encode` adds no special tokens, `decode` leaves out pad, start and end."""

    KINDS: ClassVar[tuple[str, ...]] = ("bytes", "wordpiece", "characters")
    """Those that can be trained."""

    def __init__(self, backend: "Backend"):
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._backend.encode_special_tokens = True  # what a text says is text: "<end>" in it ends nothing
        found = {role: self._first(names) for role, names in _NAMES.items()}
        start, end = found["start"], found["end"]
        if start is None and end is None:
            raise QkvError(
                f"the tokenizer has no token for the start or the end of a text: none of {_listed('start', 'end')}"
            )
        self.start: int = end if start is None else start  # type: ignore[assignment]
        self.end: int = start if end is None else end  # type: ignore[assignment]
        self.pad: int = self.end if found["pad"] is None else found["pad"]
        """What rows are filled up with; the end where there is none of its own, since no loss looks at it."""
        self.unknown: int | None = found["unknown"]
        self.mask: int | None = found["mask"]
        self.classify: int | None = found["classify"]
        self.separator: int | None = found["separator"]

    @classmethod
    def train(cls, texts: Iterable[str], kind: str = "bytes", size: int = 8000) -> "Tokenizer":
        """A tokenizer of at most `size` tokens, special ones too, for texts like these; the same for the same texts."""
        if kind not in _TRAIN:
            raise unknown_name_error("kind of tokenizer", kind, _TRAIN)
        least = {"bytes": 260, "wordpiece": 8, "characters": 5}[kind]
        if size < least:
            raise ValueError(f"size must be at least {least} for {kind}, got {size}")
        if isinstance(texts, str):
            raise TypeError("texts must be an iterable of texts, got one text")
        return cls(_TRAIN[kind](texts, size))

    @classmethod
    def load(cls, path: Path | str) -> "Tokenizer":
        """From a tokenizer.json, ours or that of a Hugging Face model."""
        path = Path(path)
        with open_file(path) as file:
            data = file.read()
        try:
            return cls(_library().from_buffer(data))
        except QkvError as error:
            raise QkvError(error.what, path) from None
        except Exception as error:  # noqa: BLE001 - whatever the library makes of it; it has no class of its own
            raise QkvError(f"{path.name} is no tokenizer ({_first_line(error)})", path.parent) from None

    def save(self, path: Path | str) -> None:
        """As a tokenizer.json, which other libraries read."""
        write_atomic(Path(path), self._backend.to_str(pretty=True).encode())

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The ids of a text; with `special`, the names of special tokens in it, such as [MASK], mean those tokens."""
        tokenizer = self._reading_special if special else self._backend
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_all(self, texts: list[str]) -> list[list[int]]:
        """The ids of each text, on all cores."""
        return [list(one.ids) for one in self._backend.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of these ids without pad, start and end; unknown and mask are written with their names."""
        written = []
        for number in ids:
            if not 0 <= number < len(self):
                raise ValueError(f"ids must be 0 to {len(self) - 1}, got {number}")
            if number not in self.silent:
                written.append(int(number))
        return str(self._backend.decode(written, skip_special_tokens=False))

    def reader(self, before: Iterable[int] = ()) -> "Reader":
        """What turns ids into text one at a time; `before` are those that the first one follows."""
        return Reader(self, self._backend, before)

    def token(self, number: int) -> str:
        """How one token is written in the vocabulary: a piece of a word, not always a text by itself."""
        found = self._backend.id_to_token(number) if number >= 0 else None
        if found is None:
            raise ValueError(f"ids must be 0 to {len(self) - 1}, got {number}")
        return str(found)

    @cached_property
    def silent(self) -> frozenset[int]:
        """Pad, start and end, which are no text."""
        return frozenset((self.pad, self.start, self.end))

    @property
    def special(self) -> dict[str, int]:
        """Name -> id of every special token."""
        added = self._backend.get_added_tokens_decoder()
        return {token.content: number for number, token in sorted(added.items()) if token.special}

    @cached_property
    def digest(self) -> str:
        """The sha256 of all that it is."""
        return sha256(self._backend.to_str().encode()).hexdigest()

    def __len__(self) -> int:
        return int(self._backend.get_vocab_size())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> tuple[Callable[..., "Tokenizer"], tuple[dict[str, Any]]]:
        """For pickle and copy, by its record: the library's own forgets that names of special tokens are text."""
        return type(self).from_record, (self.to_record(),)

    def to_record(self) -> dict[str, Any]:
        """Plain data for a JSON file: what a tokenizer.json holds."""
        record: dict[str, Any] = json.loads(self._backend.to_str())
        return {"tokenizer": record}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Tokenizer":
        """The tokenizer that `to_record` described."""
        held = record.get("tokenizer")
        if not isinstance(held, dict):
            raise ValueError(f"the record of a tokenizer must have a tokenizer, but has {held!r}")
        try:
            return cls(_library().from_str(json.dumps(held)))
        except QkvError:
            raise
        except Exception as error:  # noqa: BLE001 - see `load`
            raise ValueError(f"the record is no tokenizer ({_first_line(error)})") from None

    @cached_property
    def _reading_special(self) -> "Backend":
        """A second one, since whether names are read is a state of the library's object, and threads share ours."""
        other = _library().from_str(self._backend.to_str())
        other.encode_special_tokens = False
        return other

    def _first(self, names: Iterable[str]) -> int | None:
        ids = (self._backend.token_to_id(name) for name in names)
        return next((number for number in ids if number is not None), None)


class Reader:
    """Text from ids one at a time: a character that is split over several tokens comes when it is whole."""

    def __init__(self, tokenizer: Tokenizer, backend: "Backend", before: Iterable[int]):
        from tokenizers.decoders import DecodeStream  # noqa: PLC0415 - see `_library`

        self._tokenizer, self._backend = tokenizer, backend
        self._stream = DecodeStream(ids=[number for number in before if number not in tokenizer.silent])
        self._waiting: list[int] = []

    def read(self, number: int) -> str:
        """The text that this id completes, if any."""
        if number in self._tokenizer.silent:
            return ""
        text = self._stream.step(self._backend, number)
        self._waiting = [*self._waiting, number] if text is None else []
        return text or ""

    def finish(self) -> str:
        """What is left of a character that was never completed."""
        return self._tokenizer.decode(self._waiting) if self._waiting else ""


def _listed(*roles: str) -> str:
    return ", ".join(dict.fromkeys(name for role in roles for name in _NAMES[role]))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _library() -> "type[Backend]":
    try:
        from tokenizers import Tokenizer as Backend  # noqa: PLC0415 - an extra, and only needed here
    except ModuleNotFoundError:
        raise QkvError('tokenizers need the package tokenizers: pip install "qkv[text]"') from None
    return Backend


def _train_bytes(texts: Iterable[str], size: int) -> "Backend":
    make = _library()
    from tokenizers import decoders, models, pre_tokenizers, trainers  # noqa: PLC0415

    tokenizer = make(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()  # all bytes, seen or not
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _train_wordpiece(texts: Iterable[str], size: int) -> "Backend":
    """The library numbers characters in the order of a hash table, and its choices depend on the numbers.

    So they are all given to it beforehand, sorted, and the tokenizer is built from the vocabulary that comes out.
    """
    make = _library()
    from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers  # noqa: PLC0415

    def build(vocabulary: dict[str, int]) -> "Backend":
        tokenizer = make(models.WordPiece(vocabulary, unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        return tokenizer

    texts = list(texts) if isinstance(texts, Iterator) else texts  # they are read twice
    tokenizer = build({})
    first = [*BERT_SPECIAL, *_pieces(texts, tokenizer)]
    if size < len(first):
        raise ValueError(f"size must be at least {len(first)} for the characters of these texts, got {size}")
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=first, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    built = build(tokenizer.get_vocab())
    built.add_special_tokens(list(BERT_SPECIAL))
    return built


def _pieces(texts: Iterable[str], tokenizer: "Backend") -> list[str]:
    """Every character, and those within words once more with ##, sorted."""
    words: set[str] = set()
    for text in texts:
        words.update(tokenizer.normalizer.normalize_str(text).split())
    cut = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(" ".join(words))]
    return [*sorted({c for word in cut for c in word}), *sorted({f"##{c}" for word in cut for c in word[1:]})]


def _train_characters(texts: Iterable[str], size: int) -> "Backend":
    """The commonest characters, of equally common ones those with the lower number, sorted."""
    make = _library()
    from tokenizers import Regex, decoders, models, pre_tokenizers  # noqa: PLC0415

    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    kept = sorted(sorted(counts, key=lambda character: (-counts[character], character))[: size - len(SPECIAL)])
    vocabulary = {token: number for number, token in enumerate((*SPECIAL, *kept))}
    tokenizer = make(models.WordLevel(vocabulary, unk_token="<unknown>"))
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


_TRAIN: dict[str, Callable[[Iterable[str], int], "Backend"]] = {
    "bytes": _train_bytes,
    "wordpiece": _train_wordpiece,
    "characters": _train_characters,
}

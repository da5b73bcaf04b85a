"""Text to ids and back, by the `tokenizers` library.

bytes        byte-level BPE: every text can be written, nothing is unknown, and `decode(encode(text)) == text`
wordpiece    BERT's: words in lower case without accents, split into a first piece and ##continuations
characters   each character is a token; rare ones are unknown

Tokenizers trained here use the ids 0 to 3 for pad, start, end and unknown. WordPiece calls them [PAD] [CLS] [SEP]
[UNK], so `cls` equals `start` and `sep` equals `end`, and [MASK] is 4. Loaded tokenizers keep their own ids.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from qkv.data.byte_level import byte_level_text
from qkv.errors import QkvError, unknown_name_error
from qkv.storage import load_json, read_file, write_atomic
from qkv.storage.json import MAX_BYTES

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend
    from tokenizers.decoders import DecodeStream

SPECIAL_TOKENS = ("<pad>", "<start>", "<end>", "<unknown>")
BERT_SPECIAL_TOKENS = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")
_TOKEN_NAMES = {
    "pad": ("<pad>", "[PAD]", "<|padding|>"),
    "start": ("<start>", "[CLS]", "<s>", "<bos>", "<|begin_of_text|>", "<|endoftext|>"),
    "end": ("<end>", "[SEP]", "</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>"),
    "unknown": ("<unknown>", "[UNK]", "<unk>"),
    "mask": ("[MASK]", "<mask>"),
    "cls": ("[CLS]",),
    "sep": ("[SEP]",),
}
"""Common names of each special token; the first that a tokenizer has is used."""


class Tokenizer:
    """A trained or loaded tokenizer: `encode` adds no special tokens, `decode` skips pad, start and end."""

    KINDS: ClassVar[tuple[str, ...]] = ("bytes", "wordpiece", "characters")
    """Kinds that can be trained."""

    def __init__(self, backend: "Backend"):
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._backend.encode_special_tokens = True  # "<end>" in a text is plain text, not a token
        found = {role: self._first_id(names) for role, names in _TOKEN_NAMES.items()}
        start, end = found["start"], found["end"]
        if start is None and end is None:
            raise QkvError(
                f"the tokenizer has no start or end token: expected one of {_join_token_names('start', 'end')}"
            )
        self.start: int = end if start is None else start  # type: ignore[assignment]
        self.end: int = start if end is None else end  # type: ignore[assignment]
        self.pad: int = self.end if found["pad"] is None else found["pad"]
        """Padding id; the end token where there is no pad token, since padding never enters a loss."""
        self.unknown: int | None = found["unknown"]
        self.mask: int | None = found["mask"]
        self.cls: int | None = found["cls"]
        self.sep: int | None = found["sep"]

    @classmethod
    def train(cls, texts: Iterable[str], kind: str = "bytes", vocab_size: int = 8000) -> "Tokenizer":
        """Train on these texts, deterministically; `vocab_size` is an upper bound that includes special tokens."""
        if kind not in _TRAIN:
            raise unknown_name_error("tokenizer kind", kind, _TRAIN)
        smallest = {"bytes": 260, "wordpiece": 8, "characters": 5}[kind]
        if vocab_size < smallest:
            raise ValueError(f"vocab_size must be at least {smallest} for {kind}, got {vocab_size}")
        if isinstance(texts, str):
            raise TypeError("texts must be an iterable of texts, got one text")
        return cls(_TRAIN[kind](texts, vocab_size))

    @classmethod
    def load(cls, path: Path | str) -> "Tokenizer":
        """Load a tokenizer.json, ours or that of a Hugging Face model."""
        path = Path(path)
        data = read_file(path, MAX_BYTES)
        load_json(data, path)  # bounds its values and depth
        try:
            return cls(_library().from_buffer(data))
        except QkvError as error:
            raise QkvError(error.what, path) from None
        except Exception as error:  # noqa: BLE001 - the library raises plain Exception
            raise QkvError(f"{path.name} is not a valid tokenizer file ({_first_line(error)})", path.parent) from None

    def save(self, path: Path | str) -> None:
        """Write a tokenizer.json, which other libraries can read."""
        write_atomic(Path(path), self._backend.to_str(pretty=True).encode())

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Return the ids of a text; with `special`, names such as [MASK] in it become those special tokens."""
        backend = self._special_backend if special else self._backend
        return list(backend.encode(text, add_special_tokens=False).ids)

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text, computed on all cores."""
        return [list(encoding.ids) for encoding in self._backend.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of these ids without pad, start and end; unknown and mask appear by name."""
        printed = []
        for number in ids:
            if not 0 <= number < len(self):
                raise ValueError(f"ids must be 0 to {len(self) - 1}, got {number}")
            if number not in self.skipped_ids:
                printed.append(int(number))
        return str(self._backend.decode(printed, skip_special_tokens=False))

    def stream_decoder(self, context: Iterable[int] = ()) -> "StreamDecoder":
        """Return a decoder that takes one id at a time; `context` are the ids before the first one."""
        return StreamDecoder(self, self._backend, context)

    def id_to_token(self, number: int) -> str:
        """Return the vocabulary entry of an id: often a piece of a word, not always readable text."""
        found = self._backend.id_to_token(number) if number >= 0 else None
        if found is None:
            raise ValueError(f"ids must be 0 to {len(self) - 1}, got {number}")
        return str(found)

    def token_text(self, number: int) -> str:
        """Return the token of an id as people read it: of a byte-level tokenizer the decoded text."""
        token = self.id_to_token(number)
        is_text = self._is_byte_level and number not in self.special.values()
        return byte_level_text(token) if is_text else token

    @cached_property
    def _is_byte_level(self) -> bool:
        decoder = json.loads(self._backend.to_str()).get("decoder") or {}
        return "ByteLevel" in [one.get("type") for one in (decoder, *decoder.get("decoders", ()))]

    @cached_property
    def skipped_ids(self) -> frozenset[int]:
        """Ids of pad, start and end, which `decode` skips."""
        return frozenset((self.pad, self.start, self.end))

    @property
    def special(self) -> dict[str, int]:
        """Map from name to id of every special token."""
        added = self._backend.get_added_tokens_decoder()
        return {token.content: number for number, token in sorted(added.items()) if token.special}

    @cached_property
    def digest(self) -> str:
        """Sha256 of the complete tokenizer.json."""
        return sha256(self._backend.to_str().encode()).hexdigest()

    def __len__(self) -> int:
        return int(self._backend.get_vocab_size())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> tuple[Callable[..., "Tokenizer"], tuple[dict[str, Any]]]:
        """Pickle and copy by record: the library's own pickle loses `encode_special_tokens`."""
        return type(self).from_record, (self.to_record(),)

    def to_record(self) -> dict[str, Any]:
        """Return the contents of a tokenizer.json as plain data."""
        record: dict[str, Any] = json.loads(self._backend.to_str())
        return {"tokenizer": record}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Tokenizer":
        """Build the tokenizer that `to_record` returned."""
        contents = record.get("tokenizer")
        if not isinstance(contents, dict):
            raise ValueError(f"a tokenizer record must have a key tokenizer with an object, got {contents!r}")
        try:
            return cls(_library().from_str(json.dumps(contents)))
        except QkvError:
            raise
        except Exception as error:  # noqa: BLE001 - see `load`
            raise ValueError(f"the record is not a valid tokenizer ({_first_line(error)})") from None

    @cached_property
    def _special_backend(self) -> "Backend":
        """A second backend that parses special tokens: the switch is state of the object, which threads share."""
        other = _library().from_str(self._backend.to_str())
        other.encode_special_tokens = False
        return other

    def _first_id(self, names: Iterable[str]) -> int | None:
        ids = (self._backend.token_to_id(name) for name in names)
        return next((number for number in ids if number is not None), None)


MAX_INCOMPLETE = 16
"""Ids that a stream decoder keeps for an incomplete character; of more, which are broken bytes, only the last stay."""


class StreamDecoder:
    """Text from one id at a time; a character split over several tokens appears when it is complete."""

    def __init__(self, tokenizer: Tokenizer, backend: "Backend", context: Iterable[int]):
        self._tokenizer, self._backend = tokenizer, backend
        self._complete = [number for number in context if number not in tokenizer.skipped_ids]
        self._stream = _decode_stream(self._complete)
        self._incomplete: list[int] = []

    def push(self, number: int) -> str:
        """Return the text that this id completes, or an empty string."""
        if number in self._tokenizer.skipped_ids:
            return ""
        text = self._stream.step(self._backend, number)
        if text is not None:
            self._complete, self._incomplete = [*self._incomplete, number], []
            return str(text)
        self._incomplete.append(number)
        return self._settle() if len(self._incomplete) >= MAX_INCOMPLETE else ""

    def flush(self) -> str:
        """Return the text of an incomplete last character."""
        return self._tokenizer.decode(self._incomplete) if self._incomplete else ""

    def _settle(self) -> str:
        """Return the text of broken bytes that no further id can change.

        A character has at most four bytes, so it can begin in the last three ids at the earliest.
        """
        ids, decode = self._incomplete, self._tokenizer.decode
        for keep in range(3, 7):
            head, tail = ids[:-keep], ids[-keep:]
            text = decode(head)
            if text + decode(tail) != decode(ids):
                continue  # a character is cut in two
            self._stream = _decode_stream(self._complete)
            self._incomplete = []
            return text + "".join(self.push(number) for number in tail)
        return ""


def _decode_stream(context: list[int]) -> "DecodeStream":
    from tokenizers.decoders import DecodeStream  # noqa: PLC0415 - see `_library`

    return DecodeStream(ids=context)


def _join_token_names(*roles: str) -> str:
    return ", ".join(dict.fromkeys(name for role in roles for name in _TOKEN_NAMES[role]))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _library() -> "type[Backend]":
    try:
        from tokenizers import Tokenizer as Backend  # noqa: PLC0415 - an optional dependency
    except ModuleNotFoundError:
        raise QkvError('tokenizing needs the package tokenizers: pip install "qkv[text]"') from None
    return Backend


def _train_bytes(texts: Iterable[str], vocab_size: int) -> "Backend":
    make = _library()
    from tokenizers import decoders, models, pre_tokenizers, trainers  # noqa: PLC0415

    tokenizer = make(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()  # all bytes, whether they occur or not
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _train_wordpiece(texts: Iterable[str], vocab_size: int) -> "Backend":
    """Train deterministically.

    The library assigns ids to characters in hash order, and its merges depend on the ids. So all characters are
    passed in sorted order first, and the tokenizer is built from the resulting vocabulary.
    """
    make = _library()
    from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers  # noqa: PLC0415

    def build(vocabulary: dict[str, int]) -> "Backend":
        tokenizer = make(models.WordPiece(vocabulary, unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        return tokenizer

    texts = list(texts) if isinstance(texts, Iterator) else texts  # iterated twice
    tokenizer = build({})
    initial = [*BERT_SPECIAL_TOKENS, *_initial_pieces(texts, tokenizer)]
    if vocab_size < len(initial):
        raise ValueError(
            f"vocab_size must be at least {len(initial)} for the characters of these texts, got {vocab_size}"
        )
    trainer = trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=initial, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    built = build(tokenizer.get_vocab())
    built.add_special_tokens(list(BERT_SPECIAL_TOKENS))
    return built


def _initial_pieces(texts: Iterable[str], tokenizer: "Backend") -> list[str]:
    """Return every character, then every character inside words with ## in front, both sorted."""
    words: set[str] = set()
    for text in texts:
        words.update(tokenizer.normalizer.normalize_str(text).split())
    pieces = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(" ".join(words))]
    first = {character for piece in pieces for character in piece}
    inner = {f"##{character}" for piece in pieces for character in piece[1:]}
    return [*sorted(first), *sorted(inner)]


def _train_characters(texts: Iterable[str], vocab_size: int) -> "Backend":
    """Keep the most frequent characters; ties go to the lower code point."""
    make = _library()
    from tokenizers import Regex, decoders, models, pre_tokenizers  # noqa: PLC0415

    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    by_frequency = sorted(counts, key=lambda character: (-counts[character], character))
    kept = sorted(by_frequency[: vocab_size - len(SPECIAL_TOKENS)])
    vocabulary = {token: number for number, token in enumerate((*SPECIAL_TOKENS, *kept))}
    tokenizer = make(models.WordLevel(vocabulary, unk_token="<unknown>"))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


_TRAIN: dict[str, Callable[[Iterable[str], int], "Backend"]] = {
    "bytes": _train_bytes,
    "wordpiece": _train_wordpiece,
    "characters": _train_characters,
}

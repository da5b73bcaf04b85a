"""The task `text`: say what comes next in a text, and so write one."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from qkv.data import Documents, TokenFile, Tokenizer, TokenRows, read_text
from qkv.data.corpora.archive import cache_folder
from qkv.data.corpora.text import identify, read_documents
from qkv.inference.sliding_window import IGNORED, measure
from qkv.layers import Packing, pack_documents
from qkv.metrics import Perplexity
from qkv.models import Decoder
from qkv.registry import unknown_name_error
from qkv.storage import QkvError
from qkv.tasks.base import Task, ModelSizes, Preset, register
from qkv.tasks.options import read_options, read_text_options
from qkv.train import Settings, Objective
from qkv.train.objective import Tensors

FIRST = 0.02
"""Standard deviation of the first vectors of tokens, as GPT-2's."""
VALIDATED = 2**16
"""Tokens of the held-out part that are judged between updates; `evaluate` takes all."""


def small() -> Preset:
    """Python's documentation, 0.7 million parameters, a few minutes on two cores."""
    return Preset(
        "decoder",
        {"dim": 128, "heads": 4, "hidden_dim": 512, "layers": 2, "dropout": 0.1, "max_length": 1024},
        {"steps": 1000, "batch_size": 16, "learning_rate": 3e-3, "weight_decay": 0.1, "warmup": 50, "validate_every": 200},
        {"source": "python", "size": 2000, "length": 128},
    )


def wikitext() -> Preset:
    """WikiText-2, 17 million parameters, minutes on a GPU."""
    sizes = {"dim": 384, "heads": 6, "hidden_dim": 1536, "layers": 6, "dropout": 0.2, "max_length": 1024}
    return Preset(
        "decoder",
        {**sizes, "positions": "learned"},
        {"steps": 2000, "batch_size": 32, "learning_rate": 1e-3, "weight_decay": 0.1, "warmup": 100, "validate_every": 250},
        {"source": "wikitext", "size": 16000, "length": 512, "sample": 20_000_000},
    )


@dataclass(frozen=True)
class TextOptions:
    """Which text, and how it is cut."""

    source: str = "python"
    """python, wikitext, a folder of .txt files, or one file."""
    tokenizer: str = "bytes"
    """bytes, wordpiece or characters, trained on the text; or a tokenizer.json."""
    size: int = 2000
    """Tokens of a tokenizer that is trained."""
    sample: int = 4_000_000
    """Characters that it is trained on, from the beginning of the text."""
    length: int = 128
    """Tokens of a row that is trained on."""
    test_file: str | None = None
    """Another text to evaluate on."""
    digest: str = ""
    """Of the tokenizer; found when it is trained, and proven from then on."""

    def __post_init__(self) -> None:
        for name in ("size", "sample", "length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


@register("text")
@dataclass(frozen=True)
class TextTask(Task):
    """Continue a text: Python's documentation, WikiText-2, or any .txt files."""

    settings: TextOptions
    tokenizer: Tokenizer
    parts: dict[str, Documents]

    presets: ClassVar[dict[str, Callable[[], Preset]]] = {"small": small, "wikitext": wikitext}

    @classmethod
    def load(cls, options: dict[str, Any]) -> "TextTask":
        """Open the text and train or load the tokenizer; the text itself is read when it is needed."""
        given = read_text_options(TextOptions, options)
        parts = _read_parts(given)
        tokenizer = _tokenizer(given, parts["train"])
        if given.digest not in ("", tokenizer.digest):
            raise QkvError(
                "the text or the tokenizer is not the one that the run was started with", f"data.source={given.source}"
            )
        return cls(replace(given, digest=tokenizer.digest), tokenizer, parts)

    @classmethod
    def model_sizes(cls, options: dict[str, Any]) -> ModelSizes | None:
        """As many tokens as are asked for, if they are pieces of words: of characters a text may have fewer."""
        given = read_text_options(TextOptions, options)
        if given.tokenizer not in ("bytes", "wordpiece"):
            return None
        return ModelSizes((given.size,), note=sizes_asked_for(given.size))

    @classmethod
    def restore(cls, options: dict[str, Any], vocabulary: dict[str, Any]) -> "TextTask":
        """The tokenizer of a run folder; one that the model was not trained with is refused."""
        given = read_options(TextOptions, options)
        tokenizer = Tokenizer.from_record(vocabulary)
        if given.digest != tokenizer.digest:
            raise QkvError("the tokenizer in vocabulary.json is not the one that the model was trained with")
        return cls(given, tokenizer, {})

    def with_data(self) -> "TextTask":
        """The same job with the text that its options name."""
        return replace(self, parts=_read_parts(self.settings))

    def with_test(self, path: str) -> "TextTask":
        """The same job with this text as its test part."""
        return replace(self, parts={"test": read_documents(path)})

    @property
    def options(self) -> dict[str, Any]:
        """The options in full."""
        return asdict(self.settings)

    def vocabulary(self) -> dict[str, Any]:
        """The tokenizer."""
        return self.tokenizer.to_record()

    def sizes(self) -> tuple[int, ...]:
        """Tokens."""
        return (len(self.tokenizer),)

    def init_weights(self, model: nn.Module) -> None:
        """Short vectors for tokens where they are read and predicted with the same ones.

        A token enters as sqrt(dim) times its vector, so at first its successor is thought to be itself, with a logit
        of dim times the deviation: 20 for a width of 384 and vectors of length 1, and many steps are lost on that.
        """
        if isinstance(model, Decoder) and model.config.tied:
            nn.init.normal_(model.embed.weight, std=FIRST)

    def validate_model(self, model: nn.Module) -> None:
        """Rows must fit into the model."""
        length = self.settings.length
        longest = getattr(getattr(model, "config", None), "max_length", length)
        if length > longest:
            raise ValueError(
                f"data.length={length} exceeds model.max_length={longest}: "
                f"take fewer, or --set model.max_length={length}"
            )

    def objective(self, model: nn.Module, settings: Settings) -> Objective:
        """Predict each next token of packed rows; documents in a row do not see each other."""
        self.validate_model(model)
        length = self.settings.length
        rows = TokenRows(self._token_file(), length, settings.batch_size, settings.seed)

        def validate(model: nn.Module, may_stop: Callable[[], None]) -> float:
            documents = _watched(self.parts["valid"], may_stop)
            found = measure(model, self.tokenizer, documents, length, length, VALIDATED)
            return found.loss / found.tokens

        return Objective(
            model=model,
            order=rows.batch,
            collate=lambda firsts: collate(torch.stack([rows.read(first) for first in firsts]), self.tokenizer),
            count=lambda tensors: int((tensors[1] != IGNORED).sum()),
            loss=lambda model, tensors: _loss(model, tensors, settings.label_smoothing),
            validate=validate,
        )

    def evaluate(self, model: nn.Module, split: str, **search: Any) -> dict[str, float]:
        """Perplexities of a part, each token with at least half a row before it; there is nothing to search."""
        if split not in self.parts:
            raise unknown_name_error("part of the text", split, self.parts)
        length = self.settings.length
        with torch.inference_mode():
            found = measure(model.eval(), self.tokenizer, self.parts[split], length, max(length // 2, 1))
        return figures(found)

    def _token_file(self) -> TokenFile:
        known = "\n".join((*identify(self.settings.source), self.tokenizer.digest))
        folder = cache_folder() / "tokens" / blake2b(known.encode(), digest_size=12).hexdigest()
        return TokenFile(folder, self.parts["train"], self.tokenizer)


def collate(tokens: Tensor, tokenizer: Tokenizer) -> Tensors:
    """Rows of tokens and one more as (inputs, targets, where documents are); what follows an end is no target."""
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].clone()
    if tokenizer.start != tokenizer.end:
        targets[targets == tokenizer.start] = IGNORED
    packing = pack_documents(inputs == tokenizer.start)
    return inputs, targets, *(() if packing is None else packing.tensors)


def figures(found: Perplexity) -> dict[str, float]:
    """What is said of a text."""
    return {
        "tokens": found.tokens,
        "words": found.words,
        "loss": found.loss / max(found.tokens, 1),
        "perplexity": found.per_token,
        "word_perplexity": found.per_word,
        "bits_per_byte": found.bits_per_byte,
    }


def _loss(model: nn.Module, tensors: Tensors, smoothing: float) -> Tensor:
    inputs, targets, *packed = tensors
    logits = model(inputs, packing=Packing.of(packed))
    return functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
    )


def _watched(documents: Iterable[str], may_stop: Callable[[], None]) -> Iterator[str]:
    for document in documents:
        may_stop()
        yield document


def sizes_asked_for(size: int) -> str:
    """What is said of a vocabulary that was not trained."""
    return f"the vocabulary is of the size asked for, data.size = {size:,}; no text was read"


def _read_parts(given: TextOptions) -> dict[str, Documents]:
    parts = read_text(given.source)
    return parts if given.test_file is None else {**parts, "test": read_documents(given.test_file)}


def _tokenizer(given: TextOptions, documents: Documents) -> Tokenizer:
    if given.tokenizer in Tokenizer.KINDS:
        return Tokenizer.train(_beginning(documents, given.sample), given.tokenizer, given.size)
    if Path(given.tokenizer).suffix != ".json":
        raise unknown_name_error("tokenizer", given.tokenizer, (*Tokenizer.KINDS, "FILE.json"))
    return Tokenizer.load(given.tokenizer)


def _beginning(documents: Documents, characters: int) -> Iterator[str]:
    for document in documents:
        yield document[:characters]
        characters -= len(document)
        if characters <= 0:
            return

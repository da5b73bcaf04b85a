"""The task `text`: predict the next token of a text (GPT)."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from qkv.data import Documents, Tokenizer
from qkv.data.corpora.text import COLUMN, read_documents
from qkv.data.shards.shard_folder import is_shard_folder
from qkv.draw import Example, Mistakes, ReportAnswer
from qkv.errors import QkvError, unknown_name_error
from qkv.inference import PredictOptions, TextPredictor
from qkv.inference.sliding_window import IGNORE_INDEX, measure_perplexity
from qkv.inference.text_input import PromptInput
from qkv.layers import Packing, pack_documents, whole_sequences
from qkv.metrics import Perplexity
from qkv.models import Decoder
from qkv.tasks.base import ModelSizes, Preset, Task, register
from qkv.tasks.options import read_options, read_text_options
from qkv.tasks.text_source import ShardDocuments, TextOptions, make_rows, make_tokenizer, read_splits
from qkv.tasks.unknown_characters import unknown_characters
from qkv.train import Objective, Settings
from qkv.train.objective import Tensors, part_of

TIED_INIT_STD = 0.02
"""Standard deviation of tied token embeddings, as in GPT-2."""
CHECKED_ROWS = 16
"""Rows that are checked for wrong tokens."""
CONTEXT = 16
"""Tokens before a wrong one that the report shows."""
MAX_MISTAKES = 50
VALIDATION_TOKENS = 2**16
"""Tokens of the validation split used during training; `evaluate` uses all."""


def small() -> Preset:
    """Return a model of 0.7 million parameters on Python's documentation: a few minutes on two cores."""
    return Preset(
        "decoder",
        {"dim": 128, "heads": 4, "hidden_dim": 512, "layers": 2, "dropout": 0.1, "max_length": 1024},
        {
            "steps": 1000,
            "batch_size": 16,
            "learning_rate": 3e-3,
            "weight_decay": 0.1,
            "warmup": 50,
            "validate_every": 200,
        },
        {"source": "python", "size": 2000, "length": 128},
    )


def wikitext() -> Preset:
    """Return a model of 17 million parameters on WikiText-2: minutes on a GPU."""
    sizes = {"dim": 384, "heads": 6, "hidden_dim": 1536, "layers": 6, "dropout": 0.2, "max_length": 1024}
    return Preset(
        "decoder",
        {**sizes, "positions": "learned"},
        {
            "steps": 2000,
            "batch_size": 32,
            "learning_rate": 1e-3,
            "weight_decay": 0.1,
            "warmup": 100,
            "validate_every": 250,
        },
        {"source": "wikitext", "size": 16000, "length": 512, "sample": 20_000_000},
    )


class TextBatch(NamedTuple):
    """Rows of tokens and their successors, each (batch, time)."""

    input_ids: Tensor
    target_ids: Tensor
    """The next token; IGNORE_INDEX after the end of a document."""
    packing: Packing | None
    """Where documents start; None: each row is one document."""

    @property
    def tensors(self) -> Tensors:
        """All tensors, flat, for the training loop."""
        return self.input_ids, self.target_ids, *(() if self.packing is None else self.packing.tensors)

    def part(self, part: int, parts: int) -> "TextBatch":
        """Return one part of the time axis; targets stay those of the whole row, also at the end of a part."""
        places = part_of(self.input_ids.shape[1], part, parts)
        packing = None if self.packing is None else self.packing.part(places.start, places.stop)
        return TextBatch(self.input_ids[:, places].contiguous(), self.target_ids[:, places].contiguous(), packing)

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> "TextBatch":
        """Rebuild the batch from `tensors`."""
        input_ids, target_ids, *packing = tensors
        return cls(input_ids, target_ids, Packing.from_tensors(packing))


@register("text")
@dataclass(frozen=True)
class TextTask(Task):
    """Continue a text: Python's documentation, WikiText-2, or any .txt files."""

    settings: TextOptions
    tokenizer: Tokenizer
    splits: dict[str, Documents]

    headline = "perplexity"
    data_options = TextOptions
    presets: ClassVar[dict[str, Callable[[], Preset]]] = {"small": small, "wikitext": wikitext}

    @classmethod
    def load(cls, options: dict[str, Any]) -> "TextTask":
        """Open the text and train or load the tokenizer; the text itself is read when it is needed."""
        given = read_text_options(TextOptions, options)
        given, splits = read_splits(given)
        tokenizer = make_tokenizer(given, splits["train"])
        if given.digest not in ("", tokenizer.digest):
            raise QkvError(
                "the text or the tokenizer has changed since the run was started", f"data.source={given.source}"
            )
        return cls(replace(given, digest=tokenizer.digest), tokenizer, splits)

    @classmethod
    def load_with_vocabulary(cls, options: dict[str, Any], vocabulary: dict[str, Any]) -> "TextTask":
        """Open the text with the tokenizer of another run."""
        given, tokenizer = read_text_options(TextOptions, options), Tokenizer.from_record(vocabulary)
        given, splits = read_splits(given)
        if isinstance(splits["train"], ShardDocuments):
            splits["train"].require_tokenizer(tokenizer)
        return cls(replace(given, digest=tokenizer.digest), tokenizer, splits)

    @classmethod
    def model_sizes(cls, options: dict[str, Any]) -> ModelSizes | None:
        """Return the requested vocabulary size for subword tokenizers; a text may have fewer characters."""
        given = read_text_options(TextOptions, options)
        if given.tokenizer not in ("bytes", "wordpiece") or is_shard_folder(given.source):
            return None
        return ModelSizes((given.size,), note=requested_size_note(given.size))

    @classmethod
    def restore(cls, options: dict[str, Any], vocabulary: dict[str, Any]) -> "TextTask":
        """Build the tokenizer of a run folder; one that the model was not trained with raises."""
        given = read_options(TextOptions, options)
        tokenizer = Tokenizer.from_record(vocabulary)
        if given.digest != tokenizer.digest:
            raise QkvError("the tokenizer in vocabulary.json is not the one that the model was trained with")
        return cls(given, tokenizer, {})

    def with_data(self) -> "TextTask":
        """Return this task with the text that its options name."""
        return replace(self, splits=read_splits(self.settings)[1])

    def with_test_file(self, path: str) -> "TextTask":
        """Return this task with this text as its only split."""
        return replace(self, splits={"test": read_test_text(path, self.settings.column)})

    @property
    def warnings(self) -> tuple[str, ...]:
        """Characters of the test file that the tokenizer does not know."""
        return unknown_characters(self.tokenizer, self.splits["test"]) if set(self.splits) == {"test"} else ()

    @property
    def options(self) -> dict[str, Any]:
        """All data options."""
        return asdict(self.settings)

    def vocabulary(self) -> dict[str, Any]:
        """Return the tokenizer."""
        return self.tokenizer.to_record()

    def sizes(self) -> tuple[int, ...]:
        """Return the vocabulary size."""
        return (len(self.tokenizer),)

    def init_weights(self, model: nn.Module) -> None:
        """Make tied token embeddings short.

        A token enters as sqrt(dim) times its vector, so an untrained tied model predicts that each token repeats, with
        a logit of dim times the standard deviation: 20 for dim 384 and unit vectors. Unlearning that costs many steps.
        """
        if isinstance(model, Decoder) and model.config.tied:
            nn.init.normal_(model.embed.weight, std=TIED_INIT_STD)

    def validate_model(self, model: nn.Module) -> None:
        """Raise if rows are longer than the model takes."""
        length = self.settings.length
        longest = getattr(getattr(model, "config", None), "max_length", length)
        if length > longest:
            raise ValueError(
                f"data.length={length} exceeds model.max_length={longest}: "
                f"choose a smaller length, or --set model.max_length={length}"
            )

    def objective(self, model: nn.Module, settings: Settings, teachers: nn.Module | None = None) -> Objective:
        """Predict each next token of packed rows; documents in a row do not attend to each other."""
        self.validate_model(model)
        length = self.settings.length
        rows = make_rows(self.splits["train"], self.tokenizer, self.settings, settings)

        def validate(model: nn.Module, may_stop: Callable[[], None]) -> float:
            documents = _interruptible(self.splits["valid"], may_stop)
            with whole_sequences(model):
                found = measure_perplexity(model, self.tokenizer, documents, length, length, VALIDATION_TOKENS)
            return found.loss / found.tokens

        return Objective(
            model=model,
            order=rows.batch,
            collate=lambda starts: collate(torch.stack([rows.read(start) for start in starts]), self.tokenizer).tensors,
            count=lambda tensors: int((TextBatch.from_tensors(tensors).target_ids != IGNORE_INDEX).sum()),
            loss=lambda model, tensors: _loss(model, TextBatch.from_tensors(tensors), settings.label_smoothing),
            validate=validate,
            split_sequence=lambda tensors, part, parts: TextBatch.from_tensors(tensors).part(part, parts).tensors,
        )

    def evaluate(self, model: nn.Module, split: str, **search: Any) -> dict[str, float]:
        """Return the perplexities of a split; each token has at least half a row of context."""
        if split not in self.splits:
            raise unknown_name_error("split of the text", split, self.splits)
        length = self.settings.length
        with torch.inference_mode():
            found = measure_perplexity(model.eval(), self.tokenizer, self.splits[split], length, max(length // 2, 1))
        return perplexity_metrics(found)

    @torch.inference_mode()
    def mistakes(self, model: nn.Module, split: str) -> Mistakes:
        """Return tokens at the beginning of a split that were predicted wrong, the least expected first."""
        model.eval()
        found: list[tuple[float, Example]] = []
        checked = 0
        for ids in self._first_rows(split):
            inputs, targets = torch.tensor([ids[:-1]]), torch.tensor(ids[1:])
            probabilities = model(inputs.to(next(model.parameters()).device))[0].float().softmax(-1).cpu()
            best, predicted = probabilities.max(-1)
            checked += len(targets)
            for position in (predicted != targets).nonzero()[:, 0].tolist():
                context = self.tokenizer.decode(ids[max(position - CONTEXT, 0) : position + 1])
                answer = ReportAnswer(self._readable(int(predicted[position])), float(best[position]))
                right = float(probabilities[position, targets[position]])
                found.append((right, Example(context, [answer], [self._readable(int(targets[position]))])))
        found.sort(key=itemgetter(0))
        note = "The right tokens with the lowest probability are first; the input is the text before them."
        return Mistakes([example for _, example in found[:MAX_MISTAKES]], len(found), checked, note)

    def _first_rows(self, split: str) -> Iterator[list[int]]:
        """Yield the first rows of a split, each of one document."""
        rows, own = 0, self.tokenizer
        for document in self.splits[split]:
            ids = [own.start, *own.encode(document), own.end]
            for start in range(0, len(ids) - 1, self.settings.length):
                yield ids[start : start + self.settings.length + 1]
                rows += 1
                if rows == CHECKED_ROWS:
                    return

    def _readable(self, token: int) -> str:
        """Return a token as text, or its name if the text is empty or a space."""
        text = self.tokenizer.decode([token])
        return text if text.strip() else self.tokenizer.id_to_token(token)

    def predictor(self, model: nn.Module, options: PredictOptions) -> TextPredictor:
        """Return a predictor that continues prompts."""
        return TextPredictor(self.tokenizer, model, options)

    def text_tokenizer(self) -> Tokenizer:
        """Return the tokenizer, for completions."""
        return self.tokenizer

    def text_input(self, model: nn.Module) -> PromptInput:
        """Return a reader of prompts."""
        return PromptInput(model, self.tokenizer)


def collate(tokens: Tensor, tokenizer: Tokenizer) -> TextBatch:
    """Split rows of length + 1 tokens into inputs and targets; the token after an end is no target."""
    input_ids, target_ids = tokens[:, :-1].contiguous(), tokens[:, 1:].clone()
    if tokenizer.start != tokenizer.end:
        target_ids[target_ids == tokenizer.start] = IGNORE_INDEX
    return TextBatch(input_ids, target_ids, pack_documents(input_ids == tokenizer.start))


def perplexity_metrics(found: Perplexity) -> dict[str, float]:
    """Return the metrics of a text by name."""
    return {
        "tokens": found.tokens,
        "words": found.words,
        "loss": found.loss / max(found.tokens, 1),
        "perplexity": found.per_token,
        "word_perplexity": found.per_word,
        "bits_per_byte": found.bits_per_byte,
    }


def read_test_text(path: str, column: str = COLUMN) -> Documents:
    """Read a text to evaluate on; an empty one raises."""
    documents = read_documents(path, column)
    if not any(documents):
        raise QkvError("--test-file must not be empty", path)
    return documents


def requested_size_note(size: int) -> str:
    """Return the note on a vocabulary size that was requested, not trained."""
    return f"the vocabulary has the requested size, data.size = {size:,}; no text was read"


def _loss(model: nn.Module, batch: TextBatch, label_smoothing: float) -> Tensor:
    logits = model(batch.input_ids, packing=batch.packing)
    return functional.cross_entropy(
        logits.flatten(0, 1),
        batch.target_ids.flatten(),
        ignore_index=IGNORE_INDEX,
        reduction="sum",
        label_smoothing=label_smoothing,
    )


def _interruptible(documents: Iterable[str], may_stop: Callable[[], None]) -> Iterator[str]:
    for document in documents:
        may_stop()
        yield document

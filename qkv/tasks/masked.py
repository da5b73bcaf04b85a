"""The task `masked`: BERT's pretraining. Predict masked tokens; predict whether two segments follow each other."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from qkv.data import Documents, Tokenizer, read_corpus, split_sentences
from qkv.data.corpora.text import COLUMN
from qkv.data.sampling.mlm import Masking
from qkv.data.sampling.sentence_pairs import PairLayout, SentencePairs
from qkv.draw import Example, Mistakes, ReportAnswer
from qkv.errors import QkvError, unknown_name_error
from qkv.inference import FillMaskPredictor, MaskedLM, PredictOptions
from qkv.inference.fill_mask import require_bert_tokens
from qkv.inference.progress import track
from qkv.inference.text_input import MaskedInput
from qkv.layers import whole_sequences
from qkv.models import Encoder
from qkv.random import derive_seed
from qkv.tasks.base import ModelSizes, Preset, Task, register
from qkv.tasks.options import read_options, read_text_options
from qkv.tasks.text import read_test_text, requested_size_note
from qkv.tasks.unknown_characters import unknown_characters
from qkv.train import Objective, Settings
from qkv.train.objective import Tensors, part_of

EVAL_BATCH_SIZE = 64
MAX_MISTAKES = 50
CONTEXT = 10
"""Tokens on each side of a mask that the report shows."""
SEGMENTS = 2
"""Segments per example."""


def small() -> Preset:
    """Return a small BERT on Python's documentation: a few minutes on two cores."""
    return Preset(
        "encoder",
        {"dim": 96, "heads": 4, "hidden_dim": 384, "layers": 2, "dropout": 0.1, "max_length": 64},
        {"steps": 2000, "batch_size": 32, "learning_rate": 3e-3, "warmup": 200, "validate_every": 250},
        {"source": "python", "size": 2000, "length": 64},
    )


def wikitext() -> Preset:
    """Return a BERT of 14 million parameters on WikiText-2: eight minutes on a GPU."""
    return Preset(
        "encoder",
        {"dim": 384, "heads": 6, "hidden_dim": 1536, "layers": 6, "dropout": 0.2, "max_length": 128},
        {
            "minutes": 8.0,
            "batch_size": 256,
            "learning_rate": 7e-4,
            "warmup": 1000,
            "weight_decay": 0.1,
            "validate_every": 1000,
        },
        {"source": "wikitext", "size": 8192, "length": 128, "examples": 1024},
    )


@dataclass(frozen=True)
class MaskedOptions:
    """Text, tokenizer and masking."""

    source: str = "python"
    """python, wikitext, a folder of .txt, .jsonl, .parquet or .arrow files, or one file."""
    column: str = COLUMN
    """Column of the texts in .jsonl, .parquet and .arrow files."""
    tokenizer: str = "wordpiece"
    """wordpiece, trained on the text, or a tokenizer.json that has [MASK], [CLS] and [SEP]."""
    size: int = 2000
    """Vocabulary size of a trained tokenizer."""
    length: int = 64
    """Tokens per example, [CLS] and two [SEP] included."""
    share: float = 0.15
    """Fraction of tokens to predict."""
    whole_words: bool = False
    """Whether all pieces of a word are masked together."""
    examples: int = 512
    """Examples of the validation and of the test split."""
    seed: int = 0
    """Seed of those examples, not of the training."""

    def __post_init__(self) -> None:
        if self.examples < 1:
            raise ValueError(f"examples must be at least 1, got {self.examples}")
        if not 0 < self.share < 1:
            raise ValueError(f"share must be more than 0 and below 1, got {self.share}")


class MaskedBatch(NamedTuple):
    """Pairs of segments with masked tokens; each (batch, time) but `is_random_next`, which is (batch,)."""

    input_ids: Tensor
    segment_ids: Tensor
    mask: Tensor
    """True where there is a token."""
    is_random_next: Tensor
    """1 where the second segment comes from another document."""
    masked_positions: Tensor
    """True where a token is to be predicted."""
    target_ids: Tensor
    """The tokens before masking."""

    def part(self, part: int, parts: int) -> "MaskedBatch":
        """Return one part of the time axis; each part has the label of the whole pair."""
        places = part_of(self.input_ids.shape[1], part, parts)
        return MaskedBatch(*(x[:, places].contiguous() if x.dim() > 1 else x for x in self))


class PretrainingScore(NamedTuple):
    """Sums over evaluated examples."""

    masked: int
    """Tokens to predict."""
    right: float
    """Tokens predicted correctly."""
    masked_loss: float
    """Cross entropy of the masked tokens, in nats."""
    pairs: int
    right_pairs: float
    """Pairs whose order was predicted correctly."""
    pair_loss: float

    @property
    def score(self) -> float:
        """Mean loss per masked token plus mean loss per pair: what training minimizes."""
        return self.masked_loss / self.masked + self.pair_loss / self.pairs


@register("masked")
@dataclass(frozen=True)
class MaskedTask(Task):
    """Predict masked tokens and next sentences: BERT's pretraining, on any text."""

    tokenizer: Tokenizer
    settings: MaskedOptions
    texts: dict[str, Documents]
    """Split -> documents; empty for a restored run, which needs none to predict."""
    test_file: str | None = None
    """Path of the test split, if it is not part of the source."""
    _pairs: dict[str, SentencePairs] = field(default_factory=dict, repr=False, compare=False)

    data_options = MaskedOptions
    presets: ClassVar[dict[str, Callable[[], Preset]]] = {"small": small, "wikitext": wikitext}

    @classmethod
    def load(cls, options: dict[str, Any]) -> "MaskedTask":
        """Open the text, and train or load the tokenizer."""
        given = read_text_options(MaskedOptions, options)
        texts = read_corpus(given.source, given.column)
        if given.tokenizer in ("bytes", "characters"):
            raise ValueError(
                f"tokenizer {given.tokenizer!r} has no [MASK]; use wordpiece, or the tokenizer.json of a BERT"
            )
        if given.tokenizer == "wordpiece":
            tokenizer = Tokenizer.train(texts["train"], "wordpiece", given.size)
        else:
            tokenizer = Tokenizer.load(given.tokenizer)
        return cls(require_bert_tokens(tokenizer, given.tokenizer), given, texts)

    @classmethod
    def load_with_vocabulary(cls, options: dict[str, Any], vocabulary: dict[str, Any]) -> "MaskedTask":
        """Open the text with the tokenizer of another run."""
        given = read_text_options(MaskedOptions, options)
        tokenizer = require_bert_tokens(Tokenizer.from_record(vocabulary), "vocabulary.json")
        return cls(tokenizer, given, read_corpus(given.source, given.column))

    @classmethod
    def model_sizes(cls, options: dict[str, Any]) -> ModelSizes | None:
        """Return the requested vocabulary size, if a tokenizer is trained."""
        given = read_text_options(MaskedOptions, options)
        if given.tokenizer != "wordpiece":
            return None
        return ModelSizes((given.size, SEGMENTS), note=requested_size_note(given.size))

    @classmethod
    def restore(cls, options: dict[str, Any], vocabulary: dict[str, Any]) -> "MaskedTask":
        """Build the task from its vocabulary, without a text; `with_data` reads the text."""
        tokenizer = Tokenizer.from_record(vocabulary)
        return cls(require_bert_tokens(tokenizer, "vocabulary.json"), read_options(MaskedOptions, options), {})

    def with_data(self) -> "MaskedTask":
        """Return this task with the text that its options name."""
        return replace(self, texts=self._read_corpus(), test_file=None, _pairs={})

    def with_test_file(self, path: str) -> "MaskedTask":
        """Return this task with this text as its test split; token counts still come from the training split."""
        texts = {**self._read_corpus(), "test": read_test_text(path, self.settings.column)}
        return replace(self, texts=texts, test_file=path, _pairs={})

    @property
    def warnings(self) -> tuple[str, ...]:
        """Characters of the test file that the tokenizer does not know."""
        return () if self.test_file is None else unknown_characters(self.tokenizer, self.texts["test"])

    @property
    def options(self) -> dict[str, Any]:
        """All data options."""
        return asdict(self.settings)

    def vocabulary(self) -> dict[str, Any]:
        """Return the tokenizer."""
        return self.tokenizer.to_record()

    def sizes(self) -> tuple[int, ...]:
        """Return the numbers of tokens and of segments."""
        return len(self.tokenizer), SEGMENTS

    def sentence_pairs(self, split: str) -> SentencePairs:
        """Return the sentence pairs of a split; its text is tokenized at the first call."""
        if split not in ("train", "valid", "test"):
            raise unknown_name_error("split of the text", split, ("train", "valid", "test"))
        if split not in self._pairs:
            if not self.texts:
                raise QkvError("this task was restored without its text; call with_data() first")
            self._pairs[split] = self._read(split)
        return self._pairs[split]

    def unigram(self) -> Tensor:
        """Return the share of each token in the training split, with add-one smoothing."""
        counts = self.sentence_pairs("train").tokens.long().bincount(minlength=len(self.tokenizer)) + 1
        return counts.double() / counts.sum()

    def examples(self, split: str) -> Iterator[MaskedBatch]:
        """Yield the fixed examples of a held-out split, in batches."""
        own, pairs = self.settings, self.sentence_pairs(split)
        keys = [derive_seed(own.seed, f"{split} {purpose}") for purpose in ("pairs of sentences", "hidden tokens")]
        for indices in torch.arange(own.examples).split(EVAL_BATCH_SIZE):
            yield _collate(pairs, self._masking(), keys, indices)

    def validate_model(self, model: nn.Module) -> None:
        """Raise unless the model is an encoder with both heads that takes examples of this length."""
        if not isinstance(model, Encoder) or not model.config.pretraining:
            what = "an encoder without heads" if isinstance(model, Encoder) else f"a {type(model).__name__}"
            raise ValueError(f"the task masked needs model.family=encoder with model.pretraining=True, got {what}")
        if self.settings.length > model.config.max_length:
            raise ValueError(
                f"data.length={self.settings.length} exceeds model.max_length={model.config.max_length}: "
                "set both, for example --set model.max_length=256 --set data.length=256"
            )

    def objective(self, model: nn.Module, settings: Settings, teachers: nn.Module | None = None) -> Objective:
        """Draw new pairs with new masks at every step, as a function of the seed and the example's index."""
        self.validate_model(model)
        keys = [derive_seed(settings.seed, purpose) for purpose in ("pairs of sentences", "hidden tokens")]
        masking = self._masking()
        train = self.sentence_pairs("train")
        valid = list(self.examples("valid"))

        def validate(model: nn.Module, may_stop: Callable[[], None]) -> float:
            with whole_sequences(model):
                return score_examples(model, valid, may_stop).score

        return Objective(
            model=model,
            order=lambda step: list(range(step * settings.batch_size, (step + 1) * settings.batch_size)),
            collate=lambda ids: _collate(train, masking, keys, torch.tensor(ids, dtype=torch.int64)),
            count=lambda tensors: int(MaskedBatch(*tensors).masked_positions.sum()),
            loss=lambda model, tensors: _loss(model, MaskedBatch(*tensors), settings.label_smoothing),
            validate=validate,
            split_sequence=lambda tensors, part, parts: tuple(MaskedBatch(*tensors).part(part, parts)),
        )

    def evaluate(self, model: nn.Module, split: str, **search: Any) -> dict[str, float]:
        """Return accuracy and loss on masked tokens and next sentences, with unigram baselines.

        `unigram_accuracy` is that of the best constant guess for these examples. `unigram_loss`, in nats per token like
        `masked_loss`, is that of the token shares in the training split. Half of the sentence pairs are in order.
        """
        self.validate_model(model)
        examples = list(self.examples(split))
        model.eval()
        found = score_examples(model, examples, lambda: None)
        unigram = self.unigram()
        answers = torch.cat([batch.target_ids[batch.masked_positions] for batch in examples])
        return {
            "examples": found.pairs,
            "masked_accuracy": found.right / found.masked,
            "unigram_accuracy": int(answers.bincount().max()) / len(answers),
            "masked_loss": found.masked_loss / found.masked,
            "unigram_loss": float(-unigram[answers].log().mean()),
            "next_sentence_accuracy": found.right_pairs / found.pairs,
            "masked_tokens": found.masked,
        }

    @torch.inference_mode()
    def mistakes(self, model: nn.Module, split: str) -> Mistakes:
        """Return masked tokens of the first examples of a split that were filled wrong, the most confident first."""
        device = next(model.parameters()).device
        batch = next(self.examples(split))
        inputs = (batch.input_ids, batch.segment_ids, batch.mask, batch.masked_positions)
        logits, _ = model.eval()(*(tensor.to(device) for tensor in inputs))
        best, predicted = logits.float().softmax(-1).cpu().max(-1)
        right, places = batch.target_ids[batch.masked_positions], batch.masked_positions.nonzero().tolist()
        wrong = (predicted != right).nonzero()[:, 0]
        name = self.tokenizer.id_to_token
        shown = []
        for index in wrong[best[wrong].argsort(descending=True, stable=True)][:MAX_MISTAKES].tolist():
            row, position = places[index]
            ids = batch.target_ids[row].tolist()
            before, after = ids[max(position - CONTEXT, 0) : position], ids[position + 1 : position + 1 + CONTEXT]
            source = f"{self.tokenizer.decode(before)} [MASK] {self.tokenizer.decode(after)}"
            answer = ReportAnswer(name(int(predicted[index])), float(best[index]))
            shown.append(Example(source, [answer], [name(int(right[index]))]))
        return Mistakes(shown, len(wrong), len(right), "The most confident are first." if shown else "")

    def predictor(self, model: nn.Module, options: PredictOptions) -> FillMaskPredictor:
        """Return a predictor of masked tokens."""
        options.reject_tokens(self.kind)
        options.require_used(None)
        return FillMaskPredictor(self.masked_lm(model), options.best)

    def masked_lm(self, model: nn.Module) -> MaskedLM:
        """Return the model with its tokenizer."""
        assert isinstance(model, Encoder), type(model).__name__
        return MaskedLM(model, self.tokenizer)

    def text_input(self, model: nn.Module) -> MaskedInput:
        """Return a reader of texts with masks."""
        return MaskedInput(model, self.tokenizer)

    def example_batch(self, settings: Settings) -> Tensors:
        """Return a held-out pair."""
        return tuple(tensor[:1] for tensor in next(self.examples("valid")))

    def _read_corpus(self) -> dict[str, Documents]:
        return read_corpus(self.settings.source, self.settings.column)

    def _read(self, name: str) -> SentencePairs:
        own = self.tokenizer
        assert own.cls is not None
        assert own.sep is not None
        layout = PairLayout(own.cls, own.sep, own.pad, self.settings.length)
        sentences = (own.encode_batch(split_sentences(document)) for document in self.texts[name])
        try:
            return SentencePairs(sentences, layout)
        except ValueError as error:
            where = self.test_file if name == "test" and self.test_file is not None else self.settings.source
            raise QkvError(f"the {name} split of the text makes no pairs: {error}", where) from error

    def _masking(self) -> Masking:
        return Masking.for_tokenizer(self.tokenizer, self.settings.share, whole_words=self.settings.whole_words)


@torch.no_grad()
def score_examples(model: nn.Module, examples: list[MaskedBatch], may_stop: Callable[[], None]) -> PretrainingScore:
    """Score the model on these examples; `may_stop` is called before each batch."""
    device = next(model.parameters()).device
    sums = torch.zeros(6, dtype=torch.float64)
    for example in track(examples):
        may_stop()
        batch = MaskedBatch(*(tensor.to(device) for tensor in example))
        token_logits, pair_logits = model(batch.input_ids, batch.segment_ids, batch.mask, batch.masked_positions)
        targets = batch.target_ids[batch.masked_positions]
        sums += torch.tensor(
            [
                len(targets),
                (token_logits.argmax(-1) == targets).sum(),
                functional.cross_entropy(token_logits.float(), targets, reduction="sum"),
                len(batch.is_random_next),
                (pair_logits.argmax(-1) == batch.is_random_next).sum(),
                functional.cross_entropy(pair_logits.float(), batch.is_random_next, reduction="sum"),
            ],
            dtype=torch.float64,
        )
    masked, right, masked_loss, pairs, right_pairs, pair_loss = sums.tolist()
    return PretrainingScore(int(masked), right, masked_loss, int(pairs), right_pairs, pair_loss)


def _collate(pairs: SentencePairs, masking: Masking, keys: list[int], indices: Tensor) -> MaskedBatch:
    """Draw the pairs of these indices and mask them."""
    drawn = pairs.draw(keys[0], indices)
    input_ids, masked_positions = masking.apply(drawn.tokens, keys[1], indices)
    return MaskedBatch(input_ids, drawn.segments, drawn.mask, drawn.is_random_next, masked_positions, drawn.tokens)


def _loss(model: nn.Module, batch: MaskedBatch, label_smoothing: float) -> Tensor:
    """Return both losses as a sum over masked tokens: a pair is weighted by its number of masked tokens.

    So the update does not depend on how a batch is split for gradient accumulation.
    """
    token_logits, pair_logits = model(batch.input_ids, batch.segment_ids, batch.mask, batch.masked_positions)
    targets = batch.target_ids[batch.masked_positions]
    tokens = functional.cross_entropy(token_logits, targets, reduction="sum", label_smoothing=label_smoothing)
    pairs = functional.cross_entropy(pair_logits, batch.is_random_next, reduction="none")
    return tokens + (pairs * batch.masked_positions.sum(1)).sum()

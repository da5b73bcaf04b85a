"""The task `masked`: BERT's pretraining. Fill in what is hidden; tell whether one stretch of text follows another."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from qkv.data import Documents, Tokenizer, read_text, sentences
from qkv.data.corpora.text import read_documents
from qkv.data.sampling.mlm import Hiding
from qkv.data.sampling.sentence_pairs import Frame, SentencePairs
from qkv.models import Encoder
from qkv.random import derive_seed
from qkv.registry import unknown_name_error
from qkv.storage import QkvError
from qkv.tasks.base import Task, ModelSizes, Preset, register
from qkv.tasks.options import read_options, read_text_options
from qkv.tasks.text import sizes_asked_for
from qkv.train import Settings, Objective
from qkv.train.objective import Tensors

TOGETHER = 64
"""Examples that are judged at once."""
SEGMENTS = 2
"""Stretches of text in an example."""


def small() -> Preset:
    """A small BERT on Python's own documentation, a few minutes on two cores."""
    return Preset(
        "encoder",
        {"dim": 96, "heads": 4, "hidden_dim": 384, "layers": 2, "dropout": 0.1, "max_length": 64},
        {"steps": 2000, "batch_size": 32, "learning_rate": 3e-3, "warmup": 200, "validate_every": 250},
        {"source": "python", "size": 2000, "length": 64},
    )


def wikitext() -> Preset:
    """A BERT of 14 million parameters on WikiText-2, eight minutes on a GPU."""
    return Preset(
        "encoder",
        {"dim": 384, "heads": 6, "hidden_dim": 1536, "layers": 6, "dropout": 0.2, "max_length": 128},
        {"minutes": 8.0, "batch_size": 256, "learning_rate": 7e-4, "warmup": 1000, "weight_decay": 0.1, "validate_every": 1000},
        {"source": "wikitext", "size": 8192, "length": 128, "examples": 1024},
    )


@dataclass(frozen=True)
class MaskedOptions:
    """Which text, how it is cut, and how much of it is hidden."""

    source: str = "python"
    """python, wikitext, a folder of .txt files, or one file."""
    tokenizer: str = "wordpiece"
    """wordpiece, trained on the text, or a tokenizer.json that has [MASK], [CLS] and [SEP]."""
    size: int = 2000
    """Tokens of a tokenizer that is trained."""
    length: int = 64
    """Tokens of an example, [CLS] and two [SEP] among them."""
    share: float = 0.15
    """Share of tokens to name."""
    whole_words: bool = False
    """Whether all pieces of a word are hidden together."""
    examples: int = 512
    """Pairs of a held-out part that the model is judged on."""
    seed: int = 0
    """Of those examples, not of the training."""

    def __post_init__(self) -> None:
        if self.examples < 1:
            raise ValueError(f"examples must be at least 1, got {self.examples}")
        if not 0 < self.share < 1:
            raise ValueError(f"share must be more than 0 and below 1, got {self.share}")


class Judged(NamedTuple):
    """What a model did on examples, in sums."""

    asked: int
    """Tokens that it had to name."""
    named: float
    """Of them rightly named."""
    lost: float
    """Cross entropy of them, in nats."""
    pairs: int
    told: float
    """Of the pairs rightly told whether the second follows the first."""
    pairs_lost: float

    @property
    def score(self) -> float:
        """Both losses, each a mean: what training makes smaller."""
        return self.lost / self.asked + self.pairs_lost / self.pairs


@register("masked")
@dataclass(frozen=True)
class MaskedTask(Task):
    """Fill in hidden tokens and tell which sentence is the next: BERT's pretraining, on any text."""

    tokenizer: Tokenizer
    settings: MaskedOptions
    texts: dict[str, Documents]
    """Part -> its documents; empty for a restored run, which needs none to answer."""
    test_file: str | None = None
    """Where the test part is from, if not from the source."""
    _parts: dict[str, SentencePairs] = field(default_factory=dict, repr=False, compare=False)

    presets: ClassVar[dict[str, Callable[[], Preset]]] = {"small": small, "wikitext": wikitext}

    @classmethod
    def load(cls, options: dict[str, Any]) -> "MaskedTask":
        """Find the text, and train or read the tokenizer."""
        given = read_text_options(MaskedOptions, options)
        texts = read_text(given.source)
        if given.tokenizer in ("bytes", "characters"):
            raise ValueError(
                f"tokenizer {given.tokenizer!r} has no [MASK]; take wordpiece, or the tokenizer.json of a BERT"
            )
        if given.tokenizer == "wordpiece":
            tokenizer = Tokenizer.train(texts["train"], "wordpiece", given.size)
        else:
            tokenizer = Tokenizer.load(given.tokenizer)
        return cls(require_signs(tokenizer, given.tokenizer), given, texts)

    @classmethod
    def model_sizes(cls, options: dict[str, Any]) -> ModelSizes | None:
        """As many tokens as are asked for, if a tokenizer is trained; no text is read."""
        given = read_text_options(MaskedOptions, options)
        if given.tokenizer != "wordpiece":
            return None
        return ModelSizes((given.size, SEGMENTS), note=sizes_asked_for(given.size))

    @classmethod
    def restore(cls, options: dict[str, Any], vocabulary: dict[str, Any]) -> "MaskedTask":
        """The tokenizer without a text; `with_data` finds that again."""
        tokenizer = Tokenizer.from_record(vocabulary)
        return cls(require_signs(tokenizer, "vocabulary.json"), read_options(MaskedOptions, options), {})

    def with_data(self) -> "MaskedTask":
        """The same job with the text that its options name."""
        return replace(self, texts=read_text(self.settings.source), test_file=None, _parts={})

    def with_test(self, path: str) -> "MaskedTask":
        """The same job with this text as its test part; what is counted is still the training part."""
        texts = {**read_text(self.settings.source), "test": read_documents(path)}
        return replace(self, texts=texts, test_file=path, _parts={})

    @property
    def options(self) -> dict[str, Any]:
        """The options in full."""
        return asdict(self.settings)

    def vocabulary(self) -> dict[str, Any]:
        """The tokenizer."""
        return self.tokenizer.to_record()

    def sizes(self) -> tuple[int, ...]:
        """Tokens and segments."""
        return len(self.tokenizer), SEGMENTS

    def part(self, name: str) -> SentencePairs:
        """The pairs of sentences of a part; its text is cut when it is first asked for."""
        if name not in ("train", "valid", "test"):
            raise unknown_name_error("part of the text", name, ("train", "valid", "test"))
        if name not in self._parts:
            if not self.texts:
                raise QkvError("this job was restored without its text; ask with_data() for it")
            self._parts[name] = self._read(name)
        return self._parts[name]

    def unigram(self) -> Tensor:
        """The probability of each token wherever it stands, from counts in the training part with one more each."""
        counts = self.part("train").tokens.long().bincount(minlength=len(self.tokenizer)) + 1
        return counts.double() / counts.sum()

    def examples(self, split: str) -> Iterator[Tensors]:
        """The examples of a held-out part that everybody is judged on."""
        own, part = self.settings, self.part(split)
        keys = [derive_seed(own.seed, f"{split} {purpose}") for purpose in ("pairs of sentences", "hidden tokens")]
        for numbers in torch.arange(own.examples).split(TOGETHER):
            yield _collate(part, self._hiding(), keys, numbers)

    def validate_model(self, model: nn.Module) -> None:
        """An encoder with both heads, for rows as long as these."""
        if not isinstance(model, Encoder) or not model.config.pretraining:
            what = "an encoder without heads" if isinstance(model, Encoder) else f"a {type(model).__name__}"
            raise ValueError(f"the task masked needs model.family=encoder with model.pretraining=True, got {what}")
        if self.settings.length > model.config.max_length:
            raise ValueError(
                f"data.length={self.settings.length} exceeds model.max_length={model.config.max_length}: "
                "set both, such as --set model.max_length=256 --set data.length=256"
            )

    def objective(self, model: nn.Module, settings: Settings) -> Objective:
        """Fresh pairs, hidden anew, at every step: a function of the seed and the number of the example alone."""
        self.validate_model(model)
        keys = [derive_seed(settings.seed, purpose) for purpose in ("pairs of sentences", "hidden tokens")]
        hiding = self._hiding()
        train = self.part("train")
        valid = list(self.examples("valid"))

        def validate(model: nn.Module, may_stop: Callable[[], None]) -> float:
            return judge(model, valid, may_stop).score

        return Objective(
            model=model,
            order=lambda step: list(range(step * settings.batch_size, (step + 1) * settings.batch_size)),
            collate=lambda ids: _collate(train, hiding, keys, torch.tensor(ids, dtype=torch.int64)),
            count=lambda tensors: int(tensors[4].sum()),
            loss=lambda model, tensors: _loss(model, tensors, settings.label_smoothing),
            validate=validate,
        )

    def evaluate(self, model: nn.Module, split: str, **search: Any) -> dict[str, float]:
        """Hidden tokens named and next sentences told, half of which are, beside what counting alone gets.

        `unigram_accuracy` is what always naming one token gets, the best one for these very examples; `unigram_loss`,
        in nats a token as `masked_loss`, that of the shares of tokens in the training part.
        """
        self.validate_model(model)
        examples = list(self.examples(split))
        model.eval()
        found = judge(model, examples, lambda: None)
        unigram = self.unigram()
        answers = torch.cat([tensors[5][tensors[4]] for tensors in examples])
        return {
            "examples": found.pairs,
            "masked_accuracy": found.named / found.asked,
            "unigram_accuracy": int(answers.bincount().max()) / len(answers),
            "masked_loss": found.lost / found.asked,
            "unigram_loss": float(-unigram[answers].log().mean()),
            "next_sentence_accuracy": found.told / found.pairs,
            "masked_tokens": found.asked,
        }

    def _read(self, name: str) -> SentencePairs:
        signs = self.tokenizer
        assert signs.classify is not None
        assert signs.separator is not None
        frame = Frame(signs.classify, signs.separator, signs.pad, self.settings.length)
        cut = (self.tokenizer.encode_all(sentences(document)) for document in self.texts[name])
        try:
            return SentencePairs(cut, frame)
        except ValueError as error:
            where = self.test_file if name == "test" and self.test_file is not None else self.settings.source
            raise QkvError(f"the {name} part of the text makes no pairs: {error}", where) from error

    def _hiding(self) -> Hiding:
        return Hiding.of(self.tokenizer, self.settings.share, whole_words=self.settings.whole_words)


def require_signs(tokenizer: Tokenizer, where: str) -> Tokenizer:
    """The tokenizer, if it has what a BERT reads: [MASK], [CLS] and [SEP]."""
    needed = {"[MASK]": tokenizer.mask, "[CLS]": tokenizer.classify, "[SEP]": tokenizer.separator}
    missing = [name for name, number in needed.items() if number is None]
    if missing:
        raise QkvError(f"the tokenizer has no {', '.join(missing)}, which the task masked needs", where)
    return tokenizer


@torch.no_grad()
def judge(model: nn.Module, examples: list[Tensors], may_stop: Callable[[], None]) -> Judged:
    """How the model does on these examples; `may_stop` is called before each batch of them."""
    device = next(model.parameters()).device
    sums = torch.zeros(6, dtype=torch.float64)
    for tensors in examples:
        may_stop()
        tokens, segments, mask, apart, asked, right = (tensor.to(device) for tensor in tensors)
        said, told = model(tokens, segments, mask, asked)
        answers = right[asked]
        sums += torch.tensor(
            [
                len(answers),
                (said.argmax(-1) == answers).sum(),
                functional.cross_entropy(said.float(), answers, reduction="sum"),
                len(apart),
                (told.argmax(-1) == apart).sum(),
                functional.cross_entropy(told.float(), apart, reduction="sum"),
            ],
            dtype=torch.float64,
        )
    asked_, named, lost, pairs, told_, pairs_lost = sums.tolist()
    return Judged(int(asked_), named, lost, int(pairs), told_, pairs_lost)


def _collate(pairs: SentencePairs, hiding: Hiding, keys: list[int], numbers: Tensor) -> Tensors:
    """(what is seen, segments, mask, whether the second is from elsewhere, where is asked, what is right)"""
    drawn = pairs.draw(keys[0], numbers)
    seen, asked = hiding.hide(drawn.tokens, keys[1], numbers)
    return seen, drawn.segments, drawn.mask, drawn.apart, asked, drawn.tokens


def _loss(model: nn.Module, tensors: Tensors, smoothing: float) -> Tensor:
    """Mean over hidden tokens of both losses, as a sum over them: a pair counts as often as it has hidden tokens.

    So the update is the same however a batch is cut into parts.
    """
    tokens, segments, mask, apart, asked, right = tensors
    said, told = model(tokens, segments, mask, asked)
    words = functional.cross_entropy(said, right[asked], reduction="sum", label_smoothing=smoothing)
    return words + (functional.cross_entropy(told, apart, reduction="none") * asked.sum(1)).sum()

import math
from collections import Counter

import pytest
import torch
from torch.nn import functional

from qkv import runs, tasks
from qkv.compare.resources import measure_resources
from qkv.data import split_sentences
from qkv.errors import QkvError
from qkv.models import Encoder, EncoderConfig
from qkv.train import Settings

SIZES = {"dim": 16, "heads": 2, "hidden_dim": 16, "layers": 1, "dropout": 0.0, "max_length": 32}


@pytest.fixture(scope="module")
def job():
    return tasks.tasks["masked"].load({"size": 600, "length": 32, "examples": 100})


def model(job, **options):
    torch.manual_seed(0)
    return Encoder(EncoderConfig(**{**SIZES, **options}), *job.sizes())


class Knowing(Encoder):
    """Says what it was told to say of the examples that the job will ask about."""

    def __init__(self, job, split, *, right):
        super().__init__(EncoderConfig(**SIZES), *job.sizes())
        self.answers, self.right = iter(list(job.examples(split))), right

    def forward(self, tokens, segments, mask, at):
        seen, where, real, apart, asked, answers = next(self.answers)
        assert all(torch.equal(*pair) for pair in ((tokens, seen), (segments, where), (mask, real), (at, asked)))
        wanted = answers[asked] if self.right else (answers[asked] + 1) % 600
        told = apart if self.right else 1 - apart
        return 50.0 * functional.one_hot(wanted, 600), 50.0 * functional.one_hot(told, 2)


def test_a_file_to_train_on_is_the_source(tmp_path):
    (tmp_path / "mine.txt").write_text("Alpha comes first. Beta is next.\n\n" * 500)
    own = tasks.tasks["masked"].load({"train_file": str(tmp_path / "mine.txt"), "size": 60})
    assert own.settings.source == str(tmp_path / "mine.txt")
    assert own.tokenizer.encode("alpha") != own.tokenizer.encode("gamma")
    assert "train_file" not in own.options


def test_one_who_knows_and_one_who_errs(job):
    knows = job.evaluate(Knowing(job, "test", right=True), "test")
    errs = job.evaluate(Knowing(job, "test", right=False), "test")
    assert (knows["masked_accuracy"], knows["next_sentence_accuracy"], knows["examples"]) == (1, 1, 100)
    assert (errs["masked_accuracy"], errs["next_sentence_accuracy"]) == (0, 0)
    assert knows["masked_loss"] == pytest.approx(0, abs=1e-6)
    assert errs["masked_loss"] == pytest.approx(50, abs=1e-3)


def test_what_counting_alone_gets(job):
    """From plain loops over the examples and the text."""
    asked = [
        answer
        for tensors in job.examples("valid")
        for at, right in zip(tensors[4].tolist(), tensors[5].tolist(), strict=True)
        for hidden, answer in zip(at, right, strict=True)
        if hidden
    ]
    cut = [job.tokenizer.encode(s) for document in job.texts["train"] for s in split_sentences(document)]
    counts = Counter(token for sentence in cut for token in sentence)
    total = sum(counts.values()) + len(job.tokenizer)
    found = job.evaluate(model(job), "valid")
    assert found["masked_tokens"] == len(asked)
    assert found["unigram_accuracy"] == Counter(asked).most_common(1)[0][1] / len(asked)
    loss = -sum(math.log((counts[token] + 1) / total) for token in asked) / len(asked)
    assert found["unigram_loss"] == pytest.approx(loss, rel=1e-9)


def test_examples_are_a_function_of_seed_and_number(job):
    settings = Settings(steps=1, batch_size=6)
    task, again = (job.objective(model(job), settings) for _ in range(2))
    ids = task.order(2)
    assert ids == list(range(12, 18))
    whole = task.collate(ids)
    for one, other in zip(whole, again.collate(ids), strict=True):
        assert torch.equal(one, other)
    for rank in range(2):
        for tensor, part in zip(whole, task.collate(ids[rank::2]), strict=True):
            width = part.shape[-1] if part.dim() > 1 else None
            assert torch.equal(tensor[rank::2][..., :width], part)
    differing = job.objective(model(job), Settings(steps=1, batch_size=6, seed=1)).collate(ids)
    assert differing[0].shape != whole[0].shape or not torch.equal(differing[0], whole[0])


def test_rows_are_split_over_processes(job):
    objective = job.objective(model(job), Settings(steps=1, batch_size=3))
    whole = objective.collate(objective.order(0))
    split = [objective.split_sequence(whole, part, 3) for part in range(3)]
    assert torch.equal(split[1][3], whole[3])  # whether the second segment is random belongs to the row
    for place in (0, 1, 2, 4, 5):
        assert torch.equal(torch.cat([x[place] for x in split], 1), whole[place])
    assert sum(map(objective.count, split)) == objective.count(whole)


def test_the_loss_is_a_sum_over_rows(job):
    """So that a batch may be cut into parts: and for one who knows nothing it is log tokens + log 2 a hidden token."""
    task = job.objective(model(job).double(), Settings(steps=1, batch_size=6))
    whole = task.collate(task.order(0))
    parts = [task.collate(task.order(0)[rank::2]) for rank in range(2)]
    summed = sum(task.loss(task.model, part) for part in parts)
    torch.testing.assert_close(summed, task.loss(task.model, whole), rtol=1e-12, atol=0)
    assert sum(map(task.count, parts)) == task.count(whole)
    for weight in (task.model.lm_head.weight, task.model.next_sentence_head.weight, task.model.next_sentence_head.bias):
        weight.data.zero_()
    even = task.loss(task.model, whole) / task.count(whole)
    assert even.item() == pytest.approx(math.log(600) + math.log(2))
    assert task.validate(task.model, lambda: None) == pytest.approx(math.log(600) + math.log(2))


def test_a_run_is_restored_without_its_text(job):
    other = tasks.tasks["masked"].restore(job.options, job.vocabulary())
    assert other.tokenizer == job.tokenizer
    assert other.sizes() == (600, 2)
    with pytest.raises(QkvError, match="restored without its text"):
        other.evaluate(model(job), "test")
    assert other.with_data().evaluate(model(job), "test") == job.evaluate(model(job), "test")


def test_another_text_to_test_on(job, tmp_path):
    """Only "value" is ever hidden, or its neighbors: the best constant guess gets about a half."""
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("value value .\n\n" * 40)
    found = job.with_test_file(str(tmp_path)).evaluate(model(job), "test")
    assert found["unigram_accuracy"] == pytest.approx(2 / 3, abs=0.1)


def test_whole_words(job):
    hidden = tasks.tasks["masked"].load({**job.options, "whole_words": True})
    tokens = next(hidden.examples("valid"))
    pieces = [hidden.tokenizer.id_to_token(number).startswith("##") for number in range(600)]
    goes_on = torch.tensor(pieces)[tokens[5]][:, 1:]
    assert goes_on.sum() > 50
    # a stretch may be cut within a word, after [CLS] or [SEP]; elsewhere pieces of a word share their fate
    inside = goes_on & (tokens[5][:, :-1] > 4)
    assert torch.equal(tokens[4][:, 1:][inside], tokens[4][:, :-1][inside])


def test_what_a_comparison_counts(job):
    """Four projections, scores and values, two layers of feed-forward; one pooled token; both heads where is asked."""
    changes = {"model": SIZES, "train": {"steps": 1, "batch_size": 2}}
    config = runs.configure("masked", runs.preset("masked", None), changes)
    row = job.example_batch(config.train)
    found, time, asked = measure_resources(config, job, row, "cpu"), row[0].shape[1], int(row[4].sum())
    reading = 4 * time * 16 * 16 + 2 * time * time * 16 + 2 * time * 16 * 16
    assert found.multiplications == reading + 16 * 16 + 16 * 2 + asked * (16 * 16 + 16 * 600)
    assert found.state_bytes is None
    assert row[0].shape[0] == 1


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"tokenizer": "bytes"}, r"tokenizer 'bytes' has no \[MASK\]; use wordpiece"),
        ({"share": 1.5}, "share must be more than 0 and below 1, got 1.5"),
        ({"examples": 0}, "examples must be at least 1, got 0"),
        ({"lenght": 64}, "unknown data setting 'lenght'; did you mean 'length'"),
    ],
)
def test_wrong_options(options, match):
    with pytest.raises(ValueError, match=match):
        tasks.tasks["masked"].load(options)


def test_a_text_without_pairs(tmp_path):
    """A part of a single document has nothing that is from elsewhere."""
    (tmp_path / "short.txt").write_text("One sentence is here. Another is there.\n\n" * 200)
    loaded = tasks.tasks["masked"].load({"source": str(tmp_path / "short.txt"), "size": 60})
    with pytest.raises(QkvError, match="the valid split of the text makes no pairs"):
        loaded.evaluate(model(loaded, max_length=64), "valid")


def test_wrong_models_and_parts(job):
    with pytest.raises(ValueError, match=r"needs model.family=encoder .* got a Linear"):
        job.objective(torch.nn.Linear(2, 2), Settings(steps=1))
    with pytest.raises(ValueError, match="got an encoder without heads"):
        job.objective(model(job, pretraining=False), Settings(steps=1))
    with pytest.raises(ValueError, match=r"data.length=32 exceeds model.max_length=31"):
        job.objective(model(job, max_length=31), Settings(steps=1))
    with pytest.raises(ValueError, match="unknown split of the text 'tset'; did you mean 'test'"):
        job.evaluate(model(job), "tset")

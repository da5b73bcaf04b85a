import re
from collections import Counter
from dataclasses import replace

import pytest
import torch

from qkv import runs, tasks
from qkv.data import Analogy, Vectors, WordPair, read_corpus, split_paragraphs
from qkv.errors import QkvError
from qkv.inference import score_analogies, score_similarity
from qkv.models import MLP
from qkv.train import Loop, Run, create_run
from tests.train.job import events, outcome
from tests.train.loops import stop_at


@pytest.fixture(scope="module")
def job():
    return tasks.WordsTask.load({"least": 20})


def config(**train):
    usual = {"steps": 12, "batch_size": 3, "validate_every": 4, **train}
    return runs.configure("words", runs.preset("words", "small"), {"model": {"dim": 13}, "train": usual})


def loop_in(folder, job, chosen):
    return Loop(job.objective(runs.build(chosen, job), chosen.train), chosen.train, Run(folder))


def test_the_data(job):
    """Every word that is common enough, and no other, has a number; the parts are those of the text."""
    counted = Counter(word for words in split_paragraphs(read_corpus("python")["train"]) for word in words)
    assert dict(zip(job.counts.words, job.counts.counts, strict=True)) == {w: n for w, n in counted.items() if n >= 20}
    assert job.sizes() == (len(job.counts),)
    assert len(job.splits["train"].words) == sum(job.counts.counts)
    assert set(job.splits) == {"train", "valid", "test"}
    restored = tasks.WordsTask.restore(job.options, job.vocabulary())
    assert (restored.counts, restored.settings) == (job.counts, job.settings)


def test_a_file_to_train_on_is_the_source(tmp_path):
    (tmp_path / "mine.txt").write_text("one two\n\n" * 2000)
    own = tasks.WordsTask.load({"train_file": str(tmp_path / "mine.txt"), "least": 2})
    assert own.settings.source == str(tmp_path / "mine.txt")
    assert set(own.counts.words) == {"one", "two"}
    assert "train_file" not in own.options


@pytest.mark.parametrize("objective", ["skip_gram", "cbow"])
def test_training_lowers_the_held_out_loss(job, tmp_path, objective):
    chosen = config(steps=40, validate_every=40)
    chosen = replace(chosen, model={**chosen.model, "objective": objective})
    before = runs.build(chosen, job)
    loop = loop_in(tmp_path, job, chosen)
    loop.train()
    # nothing is known at the start: each of 1 + 5 scores costs log 2
    assert job.evaluate(before, "test")["loss"] == pytest.approx(6 * 0.6931, abs=1e-3)
    assert job.evaluate(loop.model, "test")["loss"] < 3
    assert events(tmp_path, "validated")[0]["score"] < 3


def test_a_stopped_run_goes_on_to_the_last_bit(job, tmp_path):
    torch.set_num_threads(1)
    whole, parts = (create_run(tmp_path / name).folder for name in ("whole", "parts"))
    loop_in(whole, job, config()).train()
    stop_at(5, loop_in(parts, job, config()))
    again = loop_in(parts, job, config())
    again.resume()
    assert again.progress.step == 5
    stop_at(9, again)
    last = loop_in(parts, job, config())
    last.resume()
    last.train()
    assert outcome(whole) == outcome(parts)


def test_order_and_draws_are_functions_of_the_step(job):
    chosen = config()
    task = job.objective(runs.build(chosen, job), chosen.train)
    blocks = job.splits["train"].block_count
    numbers = [number for step in range(3 * blocks) for number in task.order(step)]
    assert sorted(numbers) == list(range(9 * blocks))  # 3 blocks a step: nine epochs, each block once in each
    assert [number // blocks for number in numbers] == sorted(number // blocks for number in numbers)
    first, again = task.collate(task.order(4)), task.collate(task.order(4))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_the_rate_falls_in_a_line(job, tmp_path):
    create_run(tmp_path / "run")
    loop = loop_in(tmp_path / "run", job, config(steps=4))
    loop.train()
    rates = [line["rate"] for line in loop.run.read_metrics() if "rate" in line]
    assert rates == pytest.approx([0.025, 0.01875, 0.0125, 0.00625])


def test_a_loss_that_is_not_finite_ends_the_training(job, tmp_path):
    """The update is made by then, so the loop cannot leave it out; the checkpoint of step 4 stays."""
    chosen = config()
    run = create_run(tmp_path / "run")
    task = job.objective(runs.build(chosen, job), chosen.train)
    losses = iter([1.0] * 5 + [float("nan")])
    task = replace(task, update=lambda model, tensors, rate: next(losses))
    with pytest.raises(QkvError, match=r"the loss is nan at step 6; the last checkpoint is valid: use a learning rate"):
        Loop(task, chosen.train, run).train()
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-00000004"]


@pytest.mark.parametrize(
    "name", ["weight_decay", "max_grad_norm", "ema_decay", "label_smoothing", "accumulation_steps"]
)
def test_settings_that_mean_nothing_are_refused(job, tmp_path, name):
    value = 2 if name == "accumulation_steps" else 0.5
    with pytest.raises(ValueError, match=f"train.{name} has no effect on a task that updates its model itself"):
        loop_in(tmp_path, job, config(**{name: value}))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sauce": "x"}, ValueError, "unknown data setting 'sauce'; did you mean 'source'?"),
        ({"least": 10**6}, QkvError, "no word occurs 1000000 times"),
        ({"least": 0}, ValueError, "least must be at least 1, got 0"),
        ({"window": 0}, QkvError, "window must be at least 1, got 0"),
        ({"threshold": 2}, QkvError, "threshold must be at least 0 and below 1, got 2"),
        ({"source": "nowhere.txt"}, QkvError, "nowhere.txt"),
    ],
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        tasks.WordsTask.load(options)


def test_another_family_is_refused(job):
    with pytest.raises(TypeError, match="the task words needs a model of the family word_vectors, got a MLP"):
        job.evaluate(MLP([2, 1]), "test")


def test_another_part_is_refused(job):
    with pytest.raises(ValueError, match="unknown split 'exam'"):
        job.evaluate(runs.build(config(), job), "exam")


def test_a_changed_text_is_refused(job):
    other = tasks.WordsTask.restore({"least": 30}, job.vocabulary())
    with pytest.raises(QkvError, match=r"the text has changed since training: \d+ words were learned, it has \d+ now"):
        other.with_data()


def test_another_text_to_test_with(job, tmp_path):
    """Of an untrained model every neighbor costs six times log 2, in whatever text."""
    (tmp_path / "mine.txt").write_text("The class is an object of the type.\n\nxyzzy")
    other = job.with_test_file(str(tmp_path / "mine.txt"))
    assert other.evaluate(runs.build(config(), job), "test")["loss"] == pytest.approx(6 * 0.6931, abs=1e-3)
    (tmp_path / "mine.txt").write_text("xyzzy " * 9)
    with pytest.raises(QkvError, match="the text has no word that is in counts, in .*mine.txt"):
        job.with_test_file(str(tmp_path / "mine.txt"))


VECTORS = Vectors(("a", "b", "c", "d"), torch.tensor([[1.0, 0], [1, 0.1], [0, 1], [0.1, 1]]))


def test_agreement_by_hand():
    """Cosines order a-b, then a-d, then a-c; people say a-b, a-c, a-d: one swap of three, rho = 1/2."""
    pairs = [WordPair("a", "b", 9), WordPair("a", "c", 5), WordPair("a", "d", 2), WordPair("a", "x", 10)]
    found = score_similarity(VECTORS, pairs)
    assert (found.spearman, found.pairs, found.of) == (pytest.approx(0.5), 3, 4)
    with pytest.raises(QkvError, match="0 of 1 word pairs have vectors for both words; at least 2 are needed"):
        score_similarity(VECTORS, pairs[3:])


def test_completed_by_hand():
    questions = [Analogy("s", ("a", "b", "c", "d")), Analogy("s", ("b", "a", "d", "a")), Analogy("s", tuple("abcx"))]
    found = score_analogies(VECTORS, questions)
    assert (found.right, found.asked, found.of, found.accuracy) == (1, 2, 3, 0.5)
    assert score_analogies(VECTORS, questions[2:]).accuracy == 0

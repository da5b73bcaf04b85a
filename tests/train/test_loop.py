"""What the loop does to weights and metrics."""

import math
import random
import signal
import sys
import threading
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from qkv.data import Buckets
from qkv.errors import QkvError
from qkv.models import MLP
from qkv.random import derive_seed
from qkv.train import Compute, Loop, Objective, Run, Settings, cosine_schedule
from tests.train.job import Trouble, events, losses, settings_of, task_of
from tests.train.loops import equal, loop_in, resumed, stop_at


def test_it_learns(tmp_path):
    progress = loop_in(tmp_path / "run", steps=150, validate_every=50, learning_rate=1e-2).train()
    assert (progress.step, progress.validated) == (150, 150)
    start, end = losses(tmp_path / "run")[0][1], losses(tmp_path / "run")[-1][1]
    assert start > 2.2
    assert end < 0.75 * start
    assert progress.best == min(line["score"] for line in events(tmp_path / "run", "validated"))


def test_two_steps_by_hand(tmp_path):
    """AdamW on the mean of w . x, whose gradient is that of x: (0.3, -0.4), then (6, 8), clipped to (0.6, 0.8)."""
    model = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -2.0]]))
    x = torch.tensor([[0.3, -0.4], [3.0, 4.0], [9.0, 12.0]], dtype=torch.float64)
    task = Objective(
        model,
        lambda step: [[0], [1, 2]][step],
        lambda ids: (x[ids],),
        lambda tensors: len(tensors[0]),
        lambda model, tensors: model(tensors[0]).sum(),
        lambda *_: 0.0,
    )
    loop_in(tmp_path / "run", task=task, steps=2, warmup=0, learning_rate=0.1, weight_decay=0.5, ema_decay=0).train()
    lines = [line for line in Run(tmp_path / "run").read_metrics() if "loss" in line]
    assert [line["norm"] for line in lines] == pytest.approx([0.5, 10])
    assert [line["rate"] for line in lines] == pytest.approx([0.1, 0.05])
    assert [line["tokens"] for line in lines] == [1, 2]
    assert lines[0]["loss"] == pytest.approx(0.3 + 0.8)
    # the first step of Adam is the sign of the gradient; both times the weight decays first
    first = [1 * 0.95 - 0.1, -2 * 0.95 + 0.1]
    assert lines[1]["loss"] == pytest.approx(6 * first[0] + 8 * first[1], rel=1e-6)
    second = []
    for weight, before, now in zip(first, (0.3, -0.4), (0.6, 0.8), strict=True):
        mean = (0.9 * 0.1 * before + 0.1 * now) / (1 - 0.9**2)
        square = (0.98 * 0.02 * before**2 + 0.02 * now**2) / (1 - 0.98**2)
        second.append(weight * 0.975 - 0.05 * mean / square**0.5)
    assert model.weight.flatten().tolist() == pytest.approx(second, rel=1e-6)


def test_dropout_is_a_function_of_seed_and_step(tmp_path):
    """What is dropped, by hand; also if a validation in between has drawn numbers."""
    model, dropped = nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.5)), []

    def loss(model, tensors):
        dropped.append(model[1](torch.ones(64)))
        return model[0].weight.sum()

    def task(validate):
        return Objective(model, lambda step: [0], lambda ids: (torch.ones(1),), lambda tensors: 1, loss, validate)

    loop_in(tmp_path / "run", task=task(lambda *_: torch.rand(()).item()), steps=8, validate_every=2, seed=5).train()
    expected = []
    for step in range(8):
        torch.manual_seed(derive_seed(5, "dropout", step, 0))
        expected.append(nn.functional.dropout(torch.ones(64), 0.5))
    assert equal(dropped, expected)
    assert len({tuple(mask.tolist()) for mask in dropped}) == 8


def test_what_is_validated_is_the_running_mean_without_dropout(tmp_path):
    task, seen = task_of(settings_of()), []

    def validate(model, may_stop):
        seen.append((model.training, torch.is_grad_enabled(), equal(weights(model), [*loop.ema.values()])))
        return task.validate(model, may_stop)

    def weights(model):
        return [value.clone() for value in model.state_dict().values()]

    loop = loop_in(tmp_path / "run", task=replace(task, validate=validate), steps=20)
    loop.train()
    assert seen == [(False, False, True)] * 2
    assert not equal(weights(loop.model), [*loop.ema.values()])
    assert equal([*loop.best.values()], [*loop.ema.values()])


def test_metrics_lines(tmp_path):
    reported = []
    loop_in(tmp_path / "run", steps=12, report=reported.append).train()
    written = Run(tmp_path / "run").read_metrics()
    assert [{"steps": 12, **line} for line in written] == reported
    steps = [line for line in written if "loss" in line]
    assert [line["step"] for line in steps] == list(range(1, 13))
    assert [line["rate"] for line in steps] == [cosine_schedule(settings_of(steps=12), step) for step in range(12)]
    assert {tuple(line) for line in steps} == {("step", "loss", "rate", "norm", "tokens", "seconds")}
    assert [(line["step"], line["event"]) for line in written if "event" in line] == [
        (10, "validated"),
        (12, "validated"),
    ]


def test_it_is_silent_and_leaves_the_random_state_alone(tmp_path, capfd):
    loop = loop_in(tmp_path / "run", steps=3)
    before = torch.get_rng_state()
    loop.train()
    assert torch.equal(torch.get_rng_state(), before)
    assert capfd.readouterr() == ("", "")


# not finite


def fingerprint(loop):
    weights = [value.clone() for value in loop.model.state_dict().values()]
    memory = [value.clone() for entry in loop.optimizer.state.values() for value in entry.values()]
    return weights + memory + [value.clone() for value in loop.ema.values()]


def broken_loss(task, loop_of, at):
    def loss(model, tensors):
        summed = task.loss(model, tensors)
        return summed * at.get(loop_of().progress.step, 1.0)

    return replace(task, loss=loss)


def test_at_10_steps_of_nan_or_inf_0_updates_are_applied(tmp_path):
    settings = settings_of(steps=40)
    at = {step: (math.nan, math.inf)[step % 2] for step in random.Random(5).sample(range(1, 40), 10)}
    task, seen = task_of(settings), []
    loop = loop_in(
        tmp_path / "run",
        task=broken_loss(task, lambda: loop, at),
        steps=40,
        report=lambda line: "loss" in line and seen.append(fingerprint(loop)),
    )
    loop.train()
    same = [step for step in range(1, 40) if equal(seen[step - 1], seen[step])]
    assert same == sorted(at)
    found = events(tmp_path / "run", "not_finite")
    assert [line["step"] for line in found] == [step + 1 for step in sorted(at)]
    assert [line["ids"] for line in found] == [task.order(step) for step in sorted(at)]
    assert found[0]["message"].startswith("no update: the loss is ")
    assert [step for step, loss in losses(tmp_path / "run") if loss is None] == [step + 1 for step in sorted(at)]
    assert all(torch.isfinite(value).all() for value in loop.best.values())


def test_a_gradient_that_is_not_finite_is_not_applied(tmp_path):
    """The loss itself is 0; the square root has no finite slope there."""
    model = nn.Linear(1, 1, bias=False)
    task = Objective(
        model,
        lambda step: [0],
        lambda ids: (torch.zeros(1, 1),),
        lambda t: 1,
        lambda m, t: (m(t[0]) + m.weight * 0).abs().sqrt().sum() if loop.progress.step == 1 else m.weight.sum(),
        lambda *_: 0.0,
    )
    before = model.weight.item()
    loop = loop_in(tmp_path / "run", task=task, steps=2, ema_decay=0)
    loop.train()
    assert [line["step"] for line in events(tmp_path / "run", "not_finite")] == [2]
    assert losses(tmp_path / "run")[1] == (2, 0.0)
    assert math.isfinite(model.weight.item())
    assert model.weight.item() != before


@pytest.mark.parametrize(
    ("bad", "ends", "expectation"),
    [(19, 40, nullcontext()), (20, 24, pytest.raises(QkvError, match="20 updates in a row .*, the last at step 25"))],
)
def test_20_in_a_row_raise(tmp_path, bad, ends, expectation):
    """19 do not; those before a stop count too."""
    at = dict.fromkeys(range(5, 5 + bad), math.nan)
    values = {"steps": 40, "validate_every": 7}
    loop = loop_in(tmp_path / "run", task=broken_loss(task_of(settings_of(**values)), lambda: loop, at), **values)
    stop_at(12, loop)
    loop = resumed(tmp_path / "run", task=broken_loss(task_of(settings_of(**values)), lambda: loop, at), **values)
    with expectation:
        loop.train()
    assert loop.progress.step == ends
    assert all(torch.isfinite(value).all() for value in loop.model.state_dict().values())


def test_a_batch_that_is_not_finite_leaves_the_means_of_batches_alone(tmp_path):
    points = torch.linspace(-1, 1, 64).view(16, 4).clone()
    points[5] = math.nan
    model = MLP((4, 8, 1), normalization="batch")
    task = Objective(
        model=model,
        order=lambda step: [4, 5] if step == 3 else [0, 1, 2, 3],
        collate=lambda ids: (points[ids],),
        count=lambda tensors: len(tensors[0]),
        loss=lambda model, tensors: model(tensors[0]).pow(2).sum(),
        validate=lambda model, _: float(model(points[:4]).sum()),
    )
    seen = []

    def note(line):
        seen.append({name: buffer.clone() for name, buffer in model.named_buffers()})

    Loop(task, Settings(steps=6, validate_every=6, warmup=0), Run(tmp_path), report=note).train()
    assert all(buffer.isfinite().all() for buffer in model.buffers())
    assert all(torch.equal(seen[2][name], seen[3][name]) for name in seen[2])  # of updates 3 and 4
    assert not all(torch.equal(seen[1][name], seen[2][name]) for name in seen[2])
    with pytest.raises(ValueError, match="accumulation_steps=2 is incompatible with batch normalization"):
        Loop(task, Settings(steps=6, accumulation_steps=2), Run(tmp_path / "other"))


def test_only_those_in_a_row_count(tmp_path):
    at = {step: math.nan for step in range(1, 40) if step != 20}
    loop = loop_in(tmp_path / "run", task=broken_loss(task_of(settings_of()), lambda: loop, at), steps=39)
    loop.train()
    assert len(events(tmp_path / "run", "not_finite")) == 37
    assert loop.progress.skipped == 18


def test_a_score_that_is_nan_does_not_keep_the_untrained_weights(tmp_path):
    task = replace(task_of(settings_of()), validate=lambda *_: math.nan)
    loop = loop_in(tmp_path / "run", task=task, steps=20, ema_decay=0)
    untrained = {name: value.clone() for name, value in loop.best.items()}
    progress = loop.train()
    assert (progress.best_step, progress.best) == (10, math.inf)
    assert not torch.equal(loop.best["lm_head.weight"], untrained["lm_head.weight"])
    assert resumed(tmp_path / "run", task=task, steps=20, ema_decay=0).progress == progress


# parts and order


def test_a_batch_in_4_parts_is_the_same_update(tmp_path):
    whole, parts = (
        loop_in(tmp_path / str(count), trouble=Trouble(double=True), steps=40, batch_size=8, accumulation_steps=count)
        for count in (1, 4)
    )
    for loop in (whole, parts):
        loop.train()
    assert losses(tmp_path / "1") == [(step, pytest.approx(loss, abs=1e-12)) for step, loss in losses(tmp_path / "4")]
    assert len(losses(tmp_path / "1")) == 40
    # the bias of keys changes no softmax: its gradient is rounding alone, which Adam makes large
    names = [name for name in whole.best if not name.endswith("key.bias")]
    assert len(names) == len(whole.best) - 3
    for name in names:
        torch.testing.assert_close(parts.best[name], whole.best[name], rtol=0, atol=1e-12)


def test_more_parts_than_examples(tmp_path):
    few, many = (
        loop_in(tmp_path / str(count), trouble=Trouble(double=True), steps=20, batch_size=3, accumulation_steps=count)
        for count in (1, 11)
    )
    for loop in (few, many):
        loop.train()
    assert losses(tmp_path / "1") == [(step, pytest.approx(loss, abs=1e-12)) for step, loss in losses(tmp_path / "11")]


def counting():
    """A task of 1,037 examples, 100 an update, that notes the ids it is trained on."""
    seen, base = [], task_of(settings_of())
    buckets = Buckets([1 + number % 7 for number in range(1037)], 100, seed=3)

    def loss(model, tensors):
        seen.append(tensors[0].tolist())
        return model.weight.sum()

    model = nn.Linear(1, 1)
    model.weight.data.fill_(1.0)
    return (
        replace(
            base,
            model=model,
            order=lambda step: buckets.batch(*buckets.locate(step)),
            collate=lambda ids: (torch.tensor(ids),),
            count=lambda tensors: len(tensors[0]),
            loss=loss,
            validate=lambda *_: 0.0,
        ),
        seen,
    )


def test_0_of_10000_ids_differ_when_resumed_or_with_workers(tmp_path):
    task, seen = counting()
    loop_in(tmp_path / "alone", task=task, steps=110).train()
    expected = [number for batch in seen for number in batch]
    assert len(expected) > 10_000
    assert sorted(expected[:1037]) == list(range(1037))

    for name, machine in (("stopped", Compute()), ("workers", Compute(workers=2))):
        task, seen = counting()
        moments = sorted(random.Random(2).sample(range(1, 110), 5))
        for moment in moments:
            stop_at(moment, resumed(tmp_path / name, task=task, machine=machine, steps=110))
        resumed(tmp_path / name, task=task, machine=machine, steps=110).train()
        found = [number for batch in seen for number in batch]
        assert sum(a != b for a, b in zip(found, expected, strict=True)) == 0


def test_the_running_mean_by_hand(tmp_path):
    """Kept: the smaller of 0.9 and (1 + step) / (10 + step)."""
    kept = []
    loop = loop_in(tmp_path / "run", steps=3, ema_decay=0.9, report=lambda _: kept.append(weights()))

    def weights():
        return loop.model.lm_head.bias.detach().double().clone()

    mean = weights()
    loop.train()
    for step, value in enumerate(kept[:3]):
        keep = (1 + step) / (10 + step)
        mean = keep * mean + (1 - keep) * value
    torch.testing.assert_close(loop.ema["lm_head.bias"].double(), mean, rtol=0, atol=1e-6)


# around it


def test_scalars_go_to_tensorboard_where_it_is_installed(tmp_path, monkeypatch):
    written = []

    class SummaryWriter:
        def __init__(self, folder, purge_step):
            written.append(("open", folder, purge_step))

        def add_scalar(self, name, value, step):
            written.append((name, value, step))

        def close(self):
            written.append("close")

    monkeypatch.setattr("qkv.train.tensorboard.find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=SummaryWriter))
    stop_at(3, loop_in(tmp_path / "run", steps=5, validate_every=5))
    resumed(tmp_path / "run", steps=5, validate_every=5).train()
    board = str(tmp_path / "run" / "tensorboard")
    opened = [entry for entry in written if entry[0] == "open"]
    assert opened == [("open", board, 1), ("open", board, 4)]
    assert [entry for entry in written if entry[0] == "loss"] == [
        ("loss", loss, step) for step, loss in losses(tmp_path / "run")
    ]
    assert [entry[2] for entry in written if entry[0] == "score"] == [5]
    assert written.count("close") == 2


def test_tensorboard_is_not_needed(tmp_path, monkeypatch):
    monkeypatch.setattr("qkv.train.tensorboard.find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    loop_in(tmp_path / "run", steps=2).train()
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_handlers_are_given_back_and_another_thread_can_train(tmp_path):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    loop = loop_in(tmp_path / "run", steps=2)
    thread = threading.Thread(target=loop.train)
    thread.start()
    thread.join(60)
    assert loop.progress.step == 2
    stop_at(1, loop_in(tmp_path / "other", steps=2))
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_an_update_needs_an_example(tmp_path):
    task = task_of(settings_of())
    with pytest.raises(ValueError, match=r"objective.order\(3\) must give at least one id, got none"):
        loop_in(tmp_path / "run", task=replace(task, order=lambda step: task.order(0) if step < 3 else [])).train()


def test_a_model_without_parameters(tmp_path):
    with pytest.raises(ValueError, match="model has no parameter to train: Identity"):
        loop_in(tmp_path / "run", task=replace(task_of(settings_of()), model=nn.Identity()))


def test_every_part_is_trained_whoever_set_it_aside(tmp_path):
    """A part that came in eval mode, and a model that whoever listens has judged between two updates."""
    model, modes = nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.5)), []
    model[1].eval()

    def loss(model, tensors):
        modes.append([part.training for part in model.modules()])
        return model(tensors[0]).sum()

    task = Objective(model, lambda step: [0], lambda ids: (torch.ones(1, 1),), lambda tensors: 1, loss, lambda *_: 0.0)
    loop = loop_in(tmp_path / "run", task=task, steps=5, validate_every=2)
    loop.report = lambda line: model.eval() if line["step"] == 3 else None
    loop.train()
    assert modes == [[True] * 3] * 5

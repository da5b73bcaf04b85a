"""Every task has a report with its metrics, and shows answers that are wrong."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from qkv import runs, tasks
from qkv.data import LabeledExamples
from qkv.draw import encode_png, report_page
from qkv.draw.png import data_uri
from qkv.tasks.base import RunSummary
from qkv.tasks.classification.report import make_mistakes
from qkv.tasks.pairs import PairsTask
from qkv.train import Settings
from tests.tasks.tiny import write_pairs

SMALL = {"dim": 8, "heads": 2, "hidden_dim": 8}
TEXT = "The value of a line is a number. Another statement returns the value again.\n\n" * 200
CASES = {
    "recall": ({"pairs": 4, "length": 32, "vocabulary": 64, "examples": 4}, {"dim": 8}, "accuracy"),
    "text": ({"length": 16, "size": 280}, {**SMALL, "layers": 1}, "perplexity"),
    "masked": ({"length": 32, "size": 60, "examples": 8}, {**SMALL, "layers": 1}, "masked_accuracy"),
    "words": ({"least": 2}, {"dim": 8}, "loss"),
    "pairs": ({}, {**SMALL, "encoder_layers": 1, "decoder_layers": 1}, "sequence_error_rate"),
    "xor": ({}, {}, "accuracy"),
}


def untrained_report(name, tmp_path):
    options, sizes, _ = CASES[name]
    if name in ("text", "masked", "words"):
        (tmp_path / "text.txt").write_text(TEXT)
        options = {**options, "train_file": str(tmp_path / "text.txt")}
    elif name == "pairs":
        options = write_pairs(tmp_path)
    config = runs.configure(name, runs.preset(name, None), {"model": sizes, "data": options})
    task = tasks.tasks[name].load(config.data)
    model = runs.build(config, task).eval()
    split = task.default_split
    rates = {split: task.evaluate(model, split)}
    summary = RunSummary(name, config.family, config.model, config.train, config.data, [], rates)
    return task.report(model, summary)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", CASES)
def test_every_task_has_a_report(tmp_path, name):
    report = untrained_report(name, tmp_path)
    assert report.headline == CASES[name][2]
    page = report_page(report)
    assert page.index("Losses") < page.index("Metrics") < page.index("Settings")
    assert (report.confusion is not None) == (name == "xor")


@pytest.mark.parametrize("name", sorted(set(CASES) - {"words"}))
def test_a_model_that_learned_nothing_has_wrong_answers(tmp_path, name):
    report = untrained_report(name, tmp_path)
    mistakes = report.mistakes
    assert 0 < mistakes.wrong <= mistakes.checked
    assert 0 < len(mistakes.examples) <= mistakes.wrong
    for example in mistakes.examples:
        assert example.answers[0].text not in example.references
        assert example.source
    assert "Wrong answers" in report_page(report)


def test_words_have_neighbors(tmp_path):
    report = untrained_report("words", tmp_path)
    assert "value" in [example.source for example in report.examples]
    assert all(len(example.answers) == 5 for example in report.examples)
    page = report_page(report)
    assert "Nearest neighbors" in page
    assert "wrong first prediction" not in page


def test_mistakes_of_a_classifier_by_hand():
    images = torch.tensor([[[[0, 9]]], [[[1, 8]]], [[[2, 7]]], [[[3, 6]]]], dtype=torch.uint8)
    examples = LabeledExamples(images, torch.tensor([0, 1, 1, 0]))
    probabilities = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.25, 0.75]])
    found = make_mistakes(examples, probabilities, ("cat", "dog"))
    assert (found.wrong, found.checked) == (2, 4)
    assert [(one.answers[0].text, one.references) for one in found.examples] == [("dog", ["cat"]), ("cat", ["dog"])]
    assert [one.answers[0].probability for one in found.examples] == pytest.approx([0.75, 0.6])
    assert found.examples[0].image == data_uri(encode_png(bytes((3, 6)), 2, 1, 1))
    points = LabeledExamples(torch.tensor([[0.5, 2.0]]), torch.tensor([1]))
    (wrong,) = make_mistakes(points, torch.tensor([[1.0, 0.0]]), ("cat", "dog")).examples
    assert (wrong.source, wrong.image) == ("0.5, 2", "")


class KnowsNext(nn.Module):
    """Predicts the id after each id, with probability near 1."""

    def __init__(self, size):
        super().__init__()
        self.size, self.weight = size, nn.Parameter(torch.zeros(()))

    def forward(self, ids):
        return 20 * nn.functional.one_hot((ids + 1) % self.size, self.size).float() + self.weight


def test_mistakes_of_text_by_hand():
    """Ids 0 1 2 3 5 6: only 5 is a surprise, after 0 1 2 3."""
    tokenizer = SimpleNamespace(
        start=0, end=6, encode=lambda text: [1, 2, 3, 5], decode=lambda ids: "".join(map(str, ids)), id_to_token=str
    )
    task = tasks.TextTask(tasks.text.TextOptions(length=16), tokenizer, {"test": ["one document"]})
    found = task.mistakes(KnowsNext(7), "test")
    assert (found.wrong, found.checked) == (1, 5)
    (wrong,) = found.examples
    assert (wrong.source, wrong.answers[0].text, wrong.references) == ("0123", "4", ["5"])
    assert wrong.answers[0].probability == pytest.approx(1, abs=1e-6)


def test_mistakes_of_pairs_by_hand(tmp_path, monkeypatch):
    task = PairsTask.load(write_pairs(tmp_path))
    pairs = task.data.splits["valid"]
    second = pairs[1]
    targets = {pair.source: task.data.targets.encode(pair.targets[0]) for pair in pairs}
    targets[second.source] = targets[second.source][::-1] + targets[second.source]

    def predict(model, vocabulary, sources, search):
        return [[SimpleNamespace(tokens=targets[tuple(source)], log_probability=0.0)] for source in sources]

    monkeypatch.setattr("qkv.tasks.seq2seq_report.predict_targets", predict)
    found = task.mistakes(None, "valid")
    assert (found.wrong, found.checked) == (1, len(pairs))
    assert found.examples[0].source == task.join_source(second.source)


def test_the_settings_of_training_are_shown():
    task = tasks.tasks["xor"].load({})
    model = runs.build(runs.configure("xor", runs.preset("xor", None), {}), task)
    lines = [{"step": 1, "loss": 2.0}, {"step": 1, "event": "validated", "score": 1.5, "best": 1.5}]
    settings = Settings(steps=3, label_smoothing=0.1)
    report = task.report(model, RunSummary("xor", "network", {}, settings, {}, lines, {"test": {"accuracy": 0.5}}))
    assert report.training_loss == [(1, 2.0)]
    assert report.validation_loss == [(1, 1.5)]
    assert report.training_loss_extra == "label smoothing 0.1"
    assert report.settings["training"]["steps"] == 3

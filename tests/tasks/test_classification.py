import pytest
import torch
from torch.nn import functional

from qkv import tasks
from qkv.data import LabeledExamples
from qkv.errors import QkvError
from qkv.inference import PredictOptions
from qkv.models import MLP, Perceptron
from qkv.tasks.classification.task import Scale, loss, to_probabilities
from qkv.train import Settings


@pytest.fixture
def job():
    """30 examples of three classes, 17 to train on."""
    inputs, labels = torch.randn(30, 5), torch.arange(30) % 3
    parts = {"train": slice(0, 17), "valid": slice(17, 23), "test": slice(23, 30)}
    labeled = {name: LabeledExamples(inputs[part], labels[part]) for name, part in parts.items()}
    return tasks.XorTask(labeled, ("a", "b", "c"), (5,), Scale((1.0,), (2.0,)), {})


def test_the_scale_of_each_column_and_of_all():
    x = torch.tensor([[1.0, 10.0, 7.0], [3.0, 30.0, 7.0]])
    assert Scale.of(x, columns=True).apply(x).tolist() == [[-1, -1, 0], [1, 1, 0]]
    seen = Scale.of(x).apply(x)
    assert seen.mean().item() == pytest.approx(0, abs=1e-6)
    assert seen.std(correction=0).item() == pytest.approx(1, abs=1e-6)


def test_a_column_that_never_changes_is_not_blown_up():
    """The mean of many 0.1 is not 0.1, so their deviation is not 0."""
    x = torch.full((49, 2), 0.1, dtype=torch.float64)
    scale = Scale.of(x, columns=True)
    assert scale == Scale((0.1, 0.1), (1.0, 1.0))
    assert scale.apply(x + 1).tolist() == [[1, 1]] * 49


def test_one_logit_is_two_logits():
    """log(1 + e^-a) is the cross entropy of the logits 0 and a, smoothed or not."""
    one = MLP((5, 1)).double()
    x, labels = torch.randn(13, 5, dtype=torch.float64), torch.arange(13) % 2
    logits = functional.pad(one(x), (1, 0))
    for smoothing in (0.0, 0.2):
        expected = functional.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
        torch.testing.assert_close(loss(one, (x, labels), smoothing), expected)
    torch.testing.assert_close(to_probabilities(one(x), 2), logits.softmax(-1))


def test_the_loss_is_a_sum(job):
    model = MLP((5, 3))
    task = job.objective(model, Settings(steps=1, batch_size=4))
    tensors = task.collate([0, 3, 5])
    assert task.count(tensors) == 3
    assert torch.equal(tensors[0], (job.splits["train"].inputs[[0, 3, 5]] - 1) / 2)
    expected = -model(tensors[0]).log_softmax(-1).gather(1, tensors[1][:, None]).sum()
    torch.testing.assert_close(task.loss(model, tensors), expected)
    assert sorted(n for step in range(17) for n in task.order(step)) == sorted(list(range(17)) * 4)


def test_validation_is_the_mean_loss_of_the_held_out(job):
    model = MLP((5, 3)).eval()
    valid = job.splits["valid"]
    expected = functional.cross_entropy(model((valid.inputs - 1) / 2), valid.labels).item()
    calls = []
    with torch.no_grad():
        score = job.objective(model, Settings(steps=1)).validate(model, lambda: calls.append(1))
    assert score == pytest.approx(expected, rel=1e-6)
    assert calls == [1]


def test_figures_of_a_model_that_is_right_for_two_of_three(job):
    class Twice(torch.nn.Module):
        """Takes class c for class b."""

        def __init__(self):
            super().__init__()
            self.nothing = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x):
            seen = torch.stack([(row - (test.inputs - 1) / 2).abs().sum(1).argmin() for row in x])
            return 20.0 * functional.one_hot(test.labels[seen].clamp(max=1), 3)

    test = job.splits["test"]
    figures = job.evaluate(Twice(), "test")
    assert test.labels.tolist() == [2, 0, 1, 2, 0, 1, 2]
    assert figures["accuracy"] == pytest.approx(4 / 7)
    assert figures["loss"] == pytest.approx(20 * 3 / 7, rel=1e-5)
    assert figures["examples"] == 7
    assert job.confusion(Twice(), "test").counts == [[2, 0, 0], [0, 2, 0], [0, 3, 0]]
    assert job.chance == pytest.approx(3 / 7)


def test_a_perceptron_is_judged_by_its_mistakes():
    job = tasks.tasks["xor"].load({})
    model = Perceptron(2)
    with torch.no_grad():
        model.weight.fill_(1)
        model.bias.fill_(-0.5)
    assert job.objective(model, Settings(steps=1)).validate(model, lambda: None) == 0.25
    assert job.probabilities(model, torch.tensor([[0.0, 0.0], [1.0, 0.0]])).tolist() == [[1, 0], [0, 1]]
    task = job.objective(model, Settings(steps=1))
    assert task.loss(model, task.collate([0, 1, 2, 3])).item() == pytest.approx(1.5)  # (1, 1) is taken for a 1
    assert job.evaluate(model, "test") == {"accuracy": 0.75, "own_loss": pytest.approx(1.5 / 4), "examples": 4}


def test_restored_without_data(job):
    again = tasks.XorTask.restore({}, job.vocabulary())
    assert (again.classes, again.shape, again.scale, again.sizes()) == (job.classes, (5,), job.scale, (5, 3))
    with pytest.raises(ValueError, match=r"unknown split 'test' \(there are: \)"):
        again.evaluate(MLP((5, 3)), "test")
    assert again.with_test_examples(job.splits["test"]).splits["test"] is job.splits["test"]


def test_examples_that_do_not_fit(job):
    with pytest.raises(QkvError, match=r"examples must have shape \(5,\), got \(7,\)"):
        job.with_test_examples(LabeledExamples(torch.zeros(2, 7), torch.tensor([0, 1])))
    with pytest.raises(QkvError, match="labels must be 0 to 2, got 3"):
        job.with_test_examples(LabeledExamples(torch.zeros(2, 5), torch.tensor([0, 3])))
    predictor = job.predictor(MLP((5, 3)), PredictOptions())
    assert predictor.problem("1,2,3") == "'1,2,3' has 3 values, but the model takes 5"
    assert predictor.problem("1 2;3,4 5") is None

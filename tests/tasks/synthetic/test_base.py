import math

import pytest
import torch

from qkv.models import Decoder, DecoderConfig
from qkv.tasks import tasks
from qkv.tasks.synthetic.base import BLOCK, Condition, SyntheticTask, scale_accuracy
from qkv.tasks.synthetic.rows import RowBatch, last_answers, pad_rows, split_numbers
from qkv.train import Settings

NAMES = sorted(name for name in tasks if issubclass(tasks[name], SyntheticTask))
OPTIONS = {"listops": {"shortest": 10, "longest": 30, "depth": 5, "test_lengths": [20, 30]}}


def load(name, **options):
    return tasks[name].load({"examples": 8, **OPTIONS.get(name, {}), **options})


class Oracle(torch.nn.Module):
    """Knows the answers of some batches, and is wrong in every answer of the first `wrong` rows of each."""

    def __init__(self, batches, tokens, wrong=0):
        super().__init__()
        self.nothing = torch.nn.Parameter(torch.zeros(1))
        self.batches, self.tokens, self.wrong = batches, tokens, wrong

    def forward(self, given, at):
        (targets,) = (one.target_ids for one in self.batches if torch.equal(one.input_ids, given))
        answers = targets.clone()
        answers[: self.wrong] = (answers[: self.wrong] + 1) % self.tokens
        return 9.0 * torch.nn.functional.one_hot(answers[at], self.tokens)


def test_the_family():
    assert NAMES == ["copy", "listops", "modular", "needle", "overwrite", "parity", "reverse"]


@pytest.mark.parametrize("name", NAMES)
def test_an_example_depends_on_seed_and_number_alone(name):
    task = load(name)
    whole = task.examples("train", 0, 3 * BLOCK)
    for number in (0, 5, BLOCK, 2 * BLOCK + 3):
        alone = task.examples("train", number, 1)
        asked = whole.target_ids[number] != -100
        last = int(asked.nonzero()[-1]) + 1
        assert torch.equal(alone.input_ids[0, :last], whole.input_ids[number, :last])
        assert torch.equal(alone.target_ids[0, :last], whole.target_ids[number, :last])
        assert int((alone.target_ids != -100).sum()) == int(asked.sum())
    other = load(name, seed=1).examples("train", 0, 3 * BLOCK)
    assert other.input_ids.shape != whole.input_ids.shape or not torch.equal(other.input_ids, whole.input_ids)


@pytest.mark.parametrize("name", NAMES)
def test_examples_do_not_depend_on_how_a_batch_is_cut(name):
    objective = load(name).objective(torch.nn.Identity(), Settings(steps=1, batch_size=24))
    ids = objective.order(2)
    assert ids == list(range(48, 72))
    whole = objective.collate(ids)
    counts = [objective.count(objective.collate(ids[rank::3])) for rank in range(3)]
    assert sum(counts) == objective.count(whole)
    for rank in range(3):
        tokens, targets = objective.collate(ids[rank::3])
        width = tokens.shape[1]
        assert torch.equal(tokens, whole[0][rank::3, :width])
        assert torch.equal(targets, whole[1][rank::3, :width])
    assert [tensor.shape[0] for tensor in objective.collate([])] == [0, 0]


@pytest.mark.parametrize("name", NAMES)
def test_splits_have_no_example_in_common(name):
    task = load(name)
    condition = task.conditions()[-1]
    rows = {split: task.examples(split, 0, 8, condition).input_ids.tolist() for split in ("train", "valid", "test")}
    found = {tuple(row) for split in rows.values() for row in split}
    assert len(found) == 24


def test_numbers_of_splits_are_disjoint():
    last_of_train = split_numbers("train", 2**40 - 1, 1)
    assert last_of_train < split_numbers("valid", 0, 1)
    assert split_numbers("valid", 2**40 - 1, 1) < split_numbers("test", 0, 1)
    with pytest.raises(ValueError, match=r"end before 2\*\*40, got 1099511627776 and 1"):
        split_numbers("train", 2**40, 1)
    with pytest.raises(ValueError, match="unknown split 'tests'; did you mean 'test'"):
        split_numbers("tests", 0, 1)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_knows_the_answers_is_right(name):
    task = load(name)
    conditions = task.conditions()
    batches = [task.examples("test", 0, 8, condition) for condition in conditions]
    metrics = task.evaluate(Oracle(batches, len(task.names)), "test")
    names = [task.metric_name(condition) for condition in conditions]
    assert {metrics[metric] for metric in ("accuracy", "scaled_accuracy", *names)} == {1.0}
    assert (metrics["examples"], metrics["chance"]) == (8 * len(conditions), task.chance)
    wrong = task.evaluate(Oracle(batches, len(task.names), wrong=2), "test")
    assert wrong["accuracy"] == pytest.approx(0.75)  # two of eight rows, and all rows have as many answers
    assert wrong["scaled_accuracy"] == pytest.approx((0.75 - task.chance) / (1 - task.chance))


def test_row_accuracy_needs_every_answer_of_a_row():
    class OneWrong(Oracle):
        def forward(self, given, at):
            logits = super().forward(given, at)
            logits[0] = -logits[0]
            return logits

    task = load("copy", test_lengths=[4])
    (condition,) = task.conditions()
    metrics = task.evaluate(OneWrong([task.examples("test", 0, 8, condition)], 17), "test")
    assert metrics["row_accuracy"] == 7 / 8
    assert metrics["accuracy"] == 31 / 32


def test_state_tasks_score_the_last_answer():
    targets = torch.tensor([[-100, 3, -100, 4, -100], [5, -100, -100, -100, 6], [-100] * 5])
    last = last_answers(RowBatch(torch.zeros_like(targets), targets))
    assert last.target_ids.tolist() == [[-100, -100, -100, 4, -100], [-100, -100, -100, -100, 6], [-100] * 5]
    assert tasks["parity"].scores_last
    assert tasks["modular"].scores_last


def test_validation_is_the_loss_of_an_answer():
    class Even(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.nothing = torch.nn.Parameter(torch.zeros(1))

        def forward(self, given, at):
            return torch.zeros(int(at.sum()), 17)

    objective = load("copy").objective(Even(), Settings(steps=1))
    assert objective.validate(objective.model, lambda: None) == pytest.approx(math.log(17))


def test_training_sizes_are_all_used():
    task = load("parity", shortest=3, longest=6)
    batch = task.examples("train", 0, 40 * BLOCK)
    lengths = (batch.target_ids != -100).sum(1)
    assert lengths.unique().tolist() == [3, 4, 5, 6]
    blocks = lengths.view(40, BLOCK)
    assert torch.equal(blocks, blocks[:, :1].expand_as(blocks))


def test_metric_names_have_size_and_depth():
    assert load("needle").metric_name(Condition(64, 0.25)) == "length_64_depth_25_accuracy"
    assert load("overwrite").metric_name(Condition(8)) == "updates_8_accuracy"


def test_scaled_accuracy():
    assert [scale_accuracy(x, 0.25) for x in (0.25, 1.0, 0.625, 0.0)] == pytest.approx([0, 1, 0.5, -1 / 3])


def test_padding_asks_nothing():
    short = RowBatch(torch.tensor([[1]]), torch.tensor([[2]]))
    long = RowBatch(torch.tensor([[3, 4, 5]]), torch.tensor([[-100, 6, 7]]))
    tokens, targets = pad_rows([short, long])
    assert tokens.tolist() == [[1, 0, 0], [3, 4, 5]]
    assert targets.tolist() == [[2, -100, -100], [-100, 6, 7]]


def test_a_text_is_read_by_the_names_of_tokens():
    task = load("listops")
    reader = task.text_input(torch.nn.Identity())
    assert reader.tokenize("MAX 2 9 X").ids == [11, 2, 9, 14]
    assert reader.tokenize(reader.example).ids[-1] == 14
    with pytest.raises(ValueError, match="this model reads 0 1 2 .* got 'MAXX'; did you mean 'MAX'"):
        reader.tokenize("MAXX 2 X")


def test_mistakes_are_named():
    task = load("reverse")
    batch = task.examples("test", 0, 8, task.conditions()[0])
    found = task.mistakes(Oracle([batch], 17, wrong=1), "test")
    assert (found.wrong, found.checked) == (20, 160)
    first = found.examples[0]
    assert first.source == "> at position 20 of row 0"
    assert first.references == [str(int(batch.input_ids[0, 19]))]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("parity", {"shortest": 9, "longest": 8}, "longest must be at least 9, got 8"),
        ("parity", {"examples": 0}, "examples must be at least 1, got 0"),
        ("parity", {"test_lengths": ["x"]}, "test_lengths must be whole numbers of at least 1, such as 1,4, got 'x'"),
        ("parity", {"test_lengths": [8, 8]}, "test_lengths must be at least one number, and none twice"),
        ("parity", {"test_lengths": []}, "test_lengths must be at least one number"),
        ("modular", {"modulus": 1}, "modulus must be at least 2, got 1"),
        ("overwrite", {"pairs": 9, "keys": 8}, "keys must be at least 9, got 8"),
        ("overwrite", {"test_updates": -1}, "test_updates must be whole numbers of at least 0"),
        ("needle", {"haystack": "noisy"}, "unknown haystack 'noisy'; did you mean 'noise'"),
        ("needle", {"test_depths": [0, 101]}, "test_depths must be at most 100 percent, got 101"),
        ("needle", {"test_lengths": [4]}, "test_lengths must be whole numbers of at least 5"),
        ("copy", {"symbols": 1}, "symbols must be at least 2, got 1"),
        ("listops", {"shortest": 3}, "shortest must be at least 4, got 3"),
        ("listops", {"test_lengths": [9]}, "test_lengths must be at least shortest=10, got 9"),
        ("copy", {"lenght": 1}, "unknown data setting 'lenght'"),
    ],
)
def test_bad_options(name, options, message):
    with pytest.raises(ValueError, match=message):
        load(name, **options)


def test_lists_survive_a_config_file():
    task = load("parity", test_lengths=(8, 9))
    assert task.options["test_lengths"] == [8, 9]
    assert tasks["parity"].restore(task.options, {}).settings == task.settings
    assert load("parity", test_lengths=64).settings.test_lengths == (64,)


def decoder(task, length):
    return Decoder(DecoderConfig(dim=8, heads=1, layers=1, positions="none", max_length=length), task.sizes()[0])


@pytest.mark.parametrize(
    ("name", "options", "length"),
    [
        ("parity", {"longest": 20, "test_lengths": [30]}, 30),
        ("parity", {"longest": 40, "test_lengths": [30]}, 40),
        ("copy", {"longest": 20, "test_lengths": [9]}, 40),
        ("overwrite", {"pairs": 3, "updates": 5, "test_updates": [0]}, 6 + 10 + 6),
        ("listops", {"longest": 30, "test_lengths": [25]}, 30),
        ("recall", {"vocabulary": 64, "length": 16, "pairs": 2, "test_sizes": "32:2"}, 32),
    ],
)
def test_a_model_that_is_too_short_is_refused_before_training(name, options, length):
    task = load(name, **options)
    task.validate_model(decoder(task, length))
    with pytest.raises(ValueError, match=f"rows of {length} tokens exceed model.max_length={length - 1}"):
        task.validate_model(decoder(task, length - 1))


def test_cost_is_counted_at_the_largest_size_of_the_test():
    assert load("parity").example_batch(Settings(steps=1)).input_ids.shape == (1, 256)
    assert load("overwrite", pairs=8).example_batch(Settings(steps=1)).input_ids.shape == (1, 16 + 48 + 16)
    recall = load("recall", vocabulary=64, length=16, pairs=2, test_sizes="16:4,32:2")
    assert recall.example_batch(Settings(steps=1)).input_ids.shape == (1, 32)

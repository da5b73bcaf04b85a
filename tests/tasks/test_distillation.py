"""Learning from other models, against sums taken by hand."""

import json

import pytest
import torch

from qkv import runs, tasks
from qkv.data import Pair
from qkv.decode import Hypothesis
from qkv.errors import QkvError
from qkv.models import EncoderDecoder, EncoderDecoderConfig, Ensemble
from qkv.tasks.distillation import TeacherProbabilities, make_distillation_objective, pseudo_label
from qkv.tasks.seq2seq import Seq2SeqData, collate, encode, make_objective
from qkv.train import Loop, Run, Settings, create_run
from tests.runs.sealing import reseal
from tests.tasks.tiny import write_pairs

PAIRS = [Pair(tuple(word), (tuple(word[::-1]), tuple(word.upper()))) for word in ("abc", "ab", "cab", "bacca", "b")]
STRINGS = Seq2SeqData.build({"train": PAIRS, "valid": PAIRS[:2], "test": PAIRS[2:]})


def net(seed):
    torch.manual_seed(seed)
    config = EncoderDecoderConfig(dim=8, heads=2, hidden_dim=8, encoder_layers=1, decoder_layers=1, max_length=24)
    return EncoderDecoder(config, len(STRINGS.sources), len(STRINGS.targets)).eval()


@pytest.fixture
def teachers():
    return Ensemble([net(1), net(2)])


def test_beliefs_are_what_the_teachers_predict_one_example_at_a_time(teachers, monkeypatch):
    monkeypatch.setattr("qkv.tasks.distillation.TEACHER_BATCH_SIZE", {"cpu": 3})
    examples = encode(STRINGS, PAIRS)
    beliefs = TeacherProbabilities(teachers, examples)
    found = beliefs(torch.tensor([7, 0, 4]), 6)
    for row, number in enumerate([7, 0, 4]):
        source, mask, given, wanted = collate([examples[number]])
        expected = teachers(source, given, mask)[0].exp()
        torch.testing.assert_close(found[row, : wanted.shape[1]].float(), expected, rtol=2e-3, atol=1e-6)
    assert beliefs.state_dict() == {}


def by_hand(model, teachers, ids, trust, smoothing):
    """The two cross entropies, token by token."""
    total = 0.0
    for source, mask, given, wanted in (collate([encode(STRINGS, PAIRS)[number]]) for number in ids):
        logs, believed = model(source, given, mask)[0].log_softmax(-1), teachers(source, given, mask)[0].exp()
        for place, token in enumerate(wanted[0].tolist()):
            hard = -(1 - smoothing) * logs[place, token] - smoothing * logs[place].mean()
            total += float((1 - trust) * hard - trust * (believed[place] * logs[place]).sum())
    return total


@pytest.mark.parametrize(("trust", "smoothing"), [(0.0, 0.0), (0.3, 0.1), (1.0, 0.1)])
def test_the_loss_by_hand(teachers, trust, smoothing):
    model = net(3)
    task = make_distillation_objective(model, STRINGS, Settings(steps=1, label_smoothing=smoothing), teachers, trust)
    ids = [8, 1, 3]
    with torch.no_grad():
        loss = task.loss(model, task.collate(ids)).item()
        expected = by_hand(model, teachers, ids, trust, smoothing)
    assert loss == pytest.approx(expected, rel=1e-3)
    assert task.count(task.collate(ids)) == sum(len(encode(STRINGS, PAIRS)[number][1]) + 1 for number in ids)


def test_without_trust_it_is_the_plain_task(teachers):
    model, settings = net(3), Settings(steps=1, batch_size=4)
    plain, other = (
        make_objective(model, STRINGS, settings),
        make_distillation_objective(model, STRINGS, settings, teachers, 0.0),
    )
    ids = plain.order(1)
    assert other.order(1) == ids
    torch.testing.assert_close(other.loss(model, other.collate(ids)), plain.loss(model, plain.collate(ids)))


def test_labels_are_what_the_teachers_say(teachers, monkeypatch):
    """One finished answer, one that never ends, one that is empty; what they cannot read they are not asked."""
    asked, said = [], {("a", "b"): ["B"], ("c",): ["C", "C"], ("b",): []}

    def answer(model, strings, sources, search, batch_size):
        asked.extend(sources)
        tokens = [tuple(STRINGS.targets.encode(said[source])) for source in sources]
        return [[Hypothesis(one, -1.0, -1.0, finished=len(one) < 2)] for one in tokens]

    monkeypatch.setattr("qkv.tasks.distillation.predict_targets", answer)
    found = pseudo_label(teachers, STRINGS, [("a", "b"), ("z",), ("c",), (), tuple("a" * 25), ("b",)])
    assert asked == [("a", "b"), ("c",), ("b",)]
    assert found == [Pair(("a", "b"), (("B",),))]


def run_of(folder, data, seed=0):
    config = runs.configure("pairs", runs.preset("pairs", "quick"), {
        "model": {"dim": 8, "heads": 2, "hidden_dim": 8, "convolution": 0},
        "train": {"steps": 4, "validate_every": 2, "batch_size": 8, "seed": seed, "warmup": 1},
        "data": data,
    })  # fmt: skip
    job = tasks.tasks["pairs"].load(config.data)
    run = create_run(folder)
    runs.save_config(run, config, job)
    model = runs.build(config, job)
    loop = Loop(runs.make_objective(config, job, model), config.train, run)
    loop.train()
    return loop


def test_from_run_folders_with_words_that_nobody_labeled(tmp_path):
    data = write_pairs(tmp_path)
    names = [tmp_path / "first", tmp_path / "second"]
    for seed, name in enumerate(names):
        run_of(name, data, seed)
    (tmp_path / "more.txt").write_text("fade\n\ncafe\nbed\nzebra\nfade\n")
    lessons = {"teachers": ",".join(map(str, names)), "trust": 0.5, "unlabeled": str(tmp_path / "more.txt")}
    pupil = run_of(tmp_path / "pupil", {**data, **lessons})
    assert pupil.progress.step == 4
    config, _, model = runs.load(tmp_path / "pupil")
    assert config.data["teachers"] == lessons["teachers"]
    assert not any("table" in name for name in model.state_dict())


def test_teachers_of_other_tokens_are_refused(tmp_path):
    data = write_pairs(tmp_path)
    run_of(tmp_path / "first", data)
    vocabulary = json.loads((tmp_path / "first" / "vocabulary.json").read_text())
    vocabulary["sources"]["tokens"][0] = "q"
    (tmp_path / "first" / "vocabulary.json").write_text(json.dumps(vocabulary))
    reseal(tmp_path / "first")
    with pytest.raises(QkvError, match="teachers must have the vocabulary of the new model"):
        run_of(tmp_path / "pupil", {**data, "teachers": str(tmp_path / "first")})
    with pytest.raises(QkvError, match="there is no such run folder"):
        run_of(tmp_path / "other", {**data, "teachers": str(tmp_path / "none")})
    assert Run(tmp_path / "other").folder.exists()


@pytest.mark.parametrize(
    ("lessons", "message"),
    [
        ({"trust": 1.5}, r"trust must be from 0 .* to 1 .*, got 1\.5"),
        ({"unlabeled": "words.txt"}, "unlabeled='words.txt' needs teachers"),
    ],
)
def test_lessons_that_mean_nothing(tmp_path, lessons, message):
    with pytest.raises(ValueError, match=message):
        tasks.tasks["pairs"].load({**write_pairs(tmp_path), **lessons})


def test_what_is_not_there_is_said_before_there_is_a_folder(tmp_path):
    data = write_pairs(tmp_path)
    config = runs.configure("pairs", runs.preset("pairs", "quick"), {})
    task = tasks.tasks["pairs"].load({**data, "teachers": str(tmp_path / "none")})
    with pytest.raises(QkvError, match="there is no such run folder"):
        runs.validate(config, task, net(0))
    run_of(tmp_path / "first", data)
    lessons = {"teachers": str(tmp_path / "first"), "unlabeled": str(tmp_path / "mor.txt")}
    with pytest.raises(QkvError, match=r"there is no file mor\.txt"):
        tasks.tasks["pairs"].load({**data, **lessons}).validate_model(net(0))


def test_runs_that_answer_as_one(tmp_path):
    data = write_pairs(tmp_path)
    for seed, name in enumerate(("first", "second")):
        run_of(tmp_path / name, data, seed)
    _, job, model = runs.load(tmp_path / "first", tmp_path / "second")
    assert isinstance(model, Ensemble)
    assert len(model.members) == 2
    assert job.with_test_pairs(job.load(job.options).data.splits["test"]).evaluate(model, "test")["examples"] == 15

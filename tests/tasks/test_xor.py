import pytest
import torch

from qkv import runs, tasks
from qkv.errors import QkvError
from qkv.train import Loop, Run, Settings


def train(tmp_path, config, job):
    model = runs.build(config, job)
    loop = Loop(job.objective(model, config.train), config.train, Run(tmp_path))
    loop.train()
    model.load_state_dict(loop.best)
    return model


@pytest.mark.parametrize(("preset", "most"), [("network", 1.0), ("logistic", 0.75), ("perceptron", 0.75)])
def test_only_a_hidden_layer_learns_xor(tmp_path, preset, most):
    job = tasks.tasks["xor"].load({})
    model = train(tmp_path, runs.configure("xor", runs.preset("xor", preset), {}), job)
    assert job.evaluate(model, "test")["accuracy"] <= most
    assert (job.evaluate(model, "test")["accuracy"] == 1.0) == (preset == "network")


def test_the_default_is_two_two_one():
    config = runs.configure("xor", runs.preset("xor", None), {})
    assert runs.build(config, tasks.tasks["xor"].load({})).sizes == (2, 2, 1)


@pytest.fixture
def rings(tmp_path):
    """Two rings around one another, in different units: no line separates them."""
    random = torch.Generator().manual_seed(0)
    angle = 6.2832 * torch.rand(200, generator=random)
    radius = torch.tensor([1.0, 2.0]).repeat(100)
    rows = torch.stack((1000 * radius * angle.cos(), radius * angle.sin()), 1)
    path = tmp_path / "rings.csv"
    lines = [f"{x},{y},{'outer' if r > 1.5 else 'inner'}\n" for (x, y), r in zip(rows.tolist(), radius, strict=True)]
    path.write_text("x,y,ring\n" + "".join(lines))
    return path


def test_points_of_a_file(tmp_path, rings):
    job = tasks.tasks["xor"].load({"train_file": str(rings), "held_out": 0.2})
    assert {name: len(part) for name, part in job.splits.items()} == {"train": 128, "valid": 32, "test": 40}
    assert job.classes == ("inner", "outer")
    config = runs.configure("xor", runs.preset("xor", "wide"), {"train": {"steps": 200}})
    assert job.evaluate(train(tmp_path, config, job), "test")["accuracy"] >= 0.95


def test_few_points_are_all_trained_and_chosen_on_but_tested_with_only_if_one_says_so(tmp_path):
    path = tmp_path / "or.csv"
    path.write_text("0,0,no\n0,1,yes\n1,0,yes\n1,1,yes\n")
    job = tasks.tasks["xor"].load({"train_file": str(path), "test_file": str(path)})
    assert [len(part) for part in job.splits.values()] == [4, 4, 4]
    with pytest.raises(QkvError, match=r"every class has fewer than 5 points, so none can be held out.*or\.csv"):
        tasks.tasks["xor"].load({"train_file": str(path)})


def write_classes(path, **counts):
    """So many points of each class, no two alike; all have their class's number in the first column."""
    rows = [(number, place, name) for number, (name, count) in enumerate(counts.items()) for place in range(count)]
    path.write_text("".join(f"{number},{place},{name}\n" for number, place, name in rows))
    return str(path)


def classes_of(part):
    return part.labels.bincount(minlength=3).tolist()


def test_a_rare_class_does_not_keep_the_others_from_being_held_out(tmp_path):
    job = tasks.tasks["xor"].load({"train_file": write_classes(tmp_path / "rare.csv", a=40, b=7, c=3)})
    assert {name: classes_of(part) for name, part in job.splits.items()} == {
        "train": [33, 6, 3],
        "valid": [3, 0, 0],
        "test": [4, 1, 0],
    }
    rows = [tuple(row) for part in job.splits.values() for row in part.inputs.tolist()]
    assert len(set(rows)) == len(rows) == 50


@pytest.mark.parametrize("count", [5, 9, 10, 11])
def test_a_few_points_a_class_are_trained_and_tested_on(tmp_path, count):
    job = tasks.tasks["xor"].load({"train_file": write_classes(tmp_path / "few.csv", a=count, b=count)})
    assert len(job.splits["test"]) == 2
    config = runs.configure("xor", runs.preset("xor", "wide"), {"train": {"steps": 3, "validate_every": 1}})
    assert job.evaluate(train(tmp_path, config, job), "valid")["examples"] == (2 if count >= 10 else 2 * count - 2)


def test_the_scale_is_that_of_the_training_part(tmp_path):
    """The held-out points are not looked at before they are judged on."""
    path = tmp_path / "points.csv"
    write_classes(path, a=20, b=20)
    job = tasks.tasks["xor"].load({"train_file": str(path)})
    seen = job.splits["train"].inputs[:, 1]
    assert job.scale.mean[1] == pytest.approx(float(seen.mean()), rel=1e-12)
    held = {tuple(row) for name in ("valid", "test") for row in job.splits[name].inputs.int().tolist()}
    lines = path.read_text().splitlines()
    moved = [f"{n},9{p},{c}" if (int(n), int(p)) in held else line for line in lines for n, p, c in [line.split(",")]]
    assert moved != lines
    path.write_text("\n".join(moved))
    assert tasks.tasks["xor"].load({"train_file": str(path)}).scale == job.scale


def test_large_numbers_that_differ_by_little_are_told_apart(tmp_path):
    path = tmp_path / "seconds.csv"
    path.write_text("".join(f"{1_700_000_000 + n},{'late' if n % 2 else 'early'}\n" * 12 for n in (0, 1)))
    job = tasks.tasks["xor"].load({"train_file": str(path)})
    assert sorted(set(job.objective(None, Settings(steps=1)).collate(range(20))[0][:, 0].tolist())) == [-1, 1]
    assert job.scale.apply(torch.tensor([1700000001], dtype=torch.float64)).tolist() == [1]


def test_bad_options(tmp_path, rings):
    with pytest.raises(ValueError, match="unknown data setting 'train_fil'; did you mean 'train_file'"):
        tasks.tasks["xor"].load({"train_fil": "x"})
    with pytest.raises(QkvError, match="--test-file needs a training file, too"):
        tasks.tasks["xor"].load({"test_file": "x"})
    with pytest.raises(ValueError, match=r"held_out must be more than 0 and at most 0\.4, got 0\.5"):
        tasks.tasks["xor"].load({"held_out": 0.5})
    other = tmp_path / "other.csv"
    other.write_text("1,2,middle\n")
    with pytest.raises(QkvError, match="line 1: class must be one of inner, outer, got 'middle'"):
        tasks.tasks["xor"].load({"train_file": str(rings), "test_file": str(other)})

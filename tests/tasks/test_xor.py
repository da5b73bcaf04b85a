import pytest
import torch

from qkv import tasks
from qkv.storage import QkvError
from qkv.train import Loop, Run


def train(tmp_path, config, job):
    model = tasks.build(config, job)
    loop = Loop(job.task(model, config.train), config.train, Run(tmp_path))
    loop.train()
    model.load_state_dict(loop.best)
    return model


@pytest.mark.parametrize(("preset", "most"), [("network", 1.0), ("logistic", 0.75), ("perceptron", 0.75)])
def test_only_a_hidden_layer_learns_xor(tmp_path, preset, most):
    job = tasks.jobs["xor"].load({})
    model = train(tmp_path, tasks.configure("xor", tasks.preset("xor", preset), {}), job)
    assert job.evaluate(model, "test")["accuracy"] <= most
    assert (job.evaluate(model, "test")["accuracy"] == 1.0) == (preset == "network")


def test_the_default_is_two_two_one():
    config = tasks.configure("xor", tasks.preset("xor", None), {})
    assert tasks.build(config, tasks.jobs["xor"].load({})).sizes == (2, 2, 1)


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
    job = tasks.jobs["xor"].load({"train_file": str(rings), "held_out": 0.2})
    assert {name: len(part) for name, part in job.parts.items()} == {"train": 128, "valid": 32, "test": 40}
    assert job.classes == ("inner", "outer")
    config = tasks.configure("xor", tasks.preset("xor", "wide"), {"train": {"steps": 200}})
    assert job.evaluate(train(tmp_path, config, job), "test")["accuracy"] >= 0.95


def test_few_points_are_all_of_the_parts(tmp_path):
    path = tmp_path / "or.csv"
    path.write_text("0,0,no\n0,1,yes\n1,0,yes\n1,1,yes\n")
    job = tasks.jobs["xor"].load({"train_file": str(path), "test_file": str(path)})
    assert [len(part) for part in job.parts.values()] == [4, 4, 4]


def test_bad_options(tmp_path, rings):
    with pytest.raises(ValueError, match="unknown data setting 'train_fil'; did you mean 'train_file'"):
        tasks.jobs["xor"].load({"train_fil": "x"})
    with pytest.raises(QkvError, match="a test file needs a training file beside it"):
        tasks.jobs["xor"].load({"test_file": "x"})
    with pytest.raises(ValueError, match=r"held_out must be more than 0 and at most 0\.4, got 0\.5"):
        tasks.jobs["xor"].load({"held_out": 0.5})
    other = tmp_path / "other.csv"
    other.write_text("1,2,middle\n")
    with pytest.raises(QkvError, match="line 1: class 'middle' is none of inner, outer"):
        tasks.jobs["xor"].load({"train_file": str(rings), "test_file": str(other)})

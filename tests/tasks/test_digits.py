import numpy
import pytest

from qkv import runs, tasks
from qkv.compare.candidates import Grid, make_candidates
from qkv.errors import QkvError
from qkv.train import Loop, Run
from tests.data.archives import need
from tests.data.files.test_images import idx


def bars(count, classes=3):
    """Pictures of 11 x 11 with a bar at the height of their class, in noise."""
    random = numpy.random.default_rng(0)
    labels = numpy.arange(count) % classes
    pictures = random.integers(0, 60, (count, 11, 11), dtype=numpy.uint8)
    for picture, label in zip(pictures, labels, strict=True):
        picture[2 + 3 * label] = 255
    return pictures, labels


def learn(tmp_path, job, **model):
    changes = {"model": model, "train": {"steps": 60, "batch_size": 16, "warmup": 5, "validate_every": 20}}
    config = runs.configure("digits", runs.preset("digits", "quick"), changes)
    built = runs.build(config, job)
    loop = Loop(job.objective(built, config.train), config.train, Run(tmp_path))
    loop.train()
    built.load_state_dict(loop.best)
    return built


@pytest.mark.parametrize("model", [{}, {"downsample": "stride", "padding": 1}, {"family": "network", "layers": 0}])
def test_pictures_of_an_npz_file_are_learned(tmp_path, model):
    (pictures, labels), path = bars(90), tmp_path / "bars.npz"
    numpy.savez(path, train_images=pictures[:60], train_labels=labels[:60, None], test_images=pictures[60:],
                test_labels=labels[60:, None])  # fmt: skip
    job = tasks.tasks["digits"].load({"train_file": str(path)})
    assert {name: len(part) for name, part in job.splits.items()} == {"train": 54, "test": 30, "valid": 6}
    assert job.sizes() == (1, 11, 11, 3)
    assert job.evaluate(learn(tmp_path, job, **model), "test")["accuracy"] >= 0.9


def test_pictures_of_idx_files(tmp_path):
    pictures, labels = bars(90)
    for part, rows in (("train", slice(0, 60)), ("test", slice(60, 90))):
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(idx(pictures[rows]))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels[rows]))
    files = {"train_file": f"{tmp_path}/train-images-idx3-ubyte", "test_file": f"{tmp_path}/test-images-idx3-ubyte"}
    job = tasks.tasks["digits"].load(files)
    assert {name: len(part) for name, part in job.splits.items()} == {"train": 54, "test": 30, "valid": 6}
    assert len(job.read_test(files["test_file"])) == 30


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"train_images": bars(30)[0], "train_labels": [2] * 30}, "all 30 images are of class 2; at least two"),
        ({"test_images": bars(30)[0], "test_labels": bars(30)[1]}, "the file has no train_images"),
        ({"train_images": bars(9)[0], "train_labels": bars(9)[1]}, "every class has fewer than 10 images"),
    ],
)
def test_bad_files(tmp_path, arrays, message):
    numpy.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(QkvError, match=message):
        tasks.tasks["digits"].load({"train_file": str(tmp_path / "bad.npz")})


def test_the_preset_of_the_whole_set_names_its_data():
    config = runs.configure("digits", runs.preset("digits", "whole"), {})
    assert config.data == {"part": "whole"}
    assert runs.configure("digits", runs.preset("digits", "whole"), {"data": {"part": "small"}}).data == {
        "part": "small"
    }
    both = make_candidates("digits", "whole", {}, Grid(models="convolutional,network"))
    assert [contestant.config.data for contestant in both] == [{"part": "whole"}] * 2


def test_unknown_settings():
    with pytest.raises(ValueError, match="unknown data setting 'parts'; did you mean 'part'"):
        tasks.tasks["digits"].load({"parts": "whole"})


@pytest.mark.slow
def test_the_digits_are_read(tmp_path):
    need("small")
    job = tasks.tasks["digits"].load({})
    config = runs.configure("digits", runs.preset("digits", "quick"), {"train": {"steps": 300}})
    model = runs.build(config, job)
    loop = Loop(job.objective(model, config.train), config.train, Run(tmp_path))
    loop.train()
    model.load_state_dict(loop.best)
    assert job.evaluate(model, "test")["accuracy"] >= 0.93


def test_ten_pictures_a_class_are_enough(tmp_path):
    pictures, labels = bars(30)
    numpy.savez(tmp_path / "ten.npz", train_images=pictures, train_labels=labels)
    job = tasks.tasks["digits"].load({"train_file": str(tmp_path / "ten.npz")})
    assert {name: len(part) for name, part in job.splits.items()} == {"train": 24, "test": 3, "valid": 3}


def test_bad_input_a_table_names_the_task_that_takes_it(tmp_path):
    (tmp_path / "iris.csv").write_text("5,3,a\n4,3,b\n")
    with pytest.raises(QkvError, match=r"this task needs images .*: qkv train classify --train-file iris\.csv"):
        tasks.DigitsTask.load({"train_file": str(tmp_path / "iris.csv")})

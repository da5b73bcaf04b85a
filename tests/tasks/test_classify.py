"""One task for points and images: the data decide."""

import numpy
import pytest
import torch
from PIL import Image

from qkv import runs, tasks
from qkv.errors import QkvError
from qkv.inference import PredictOptions
from tests.tasks.test_digits import bars

CLASSIFY = tasks.tasks["classify"]
NAMES = ("high", "middle", "low")


@pytest.fixture
def pictures(tmp_path):
    """A folder of bars, by class."""
    return save_bars(tmp_path / "bars", 60)


def save_bars(folder, count):
    for index, (image, label) in enumerate(zip(*bars(count), strict=True)):
        (folder / NAMES[label]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / NAMES[label] / f"{index:02}.png")
    return folder


def test_a_folder_of_images(pictures):
    job = CLASSIFY.load({"train_file": str(pictures)})
    assert job.classes == ("high", "low", "middle")
    assert job.shape == (1, 11, 11)
    assert {name: len(part) for name, part in job.splits.items()} == {
        "train": 51,
        "test": 6,
        "valid": 3,
    }  # a tenth of 20, then of 18
    assert job.warnings == ("grayscale images of 11 x 11 pixels in 3 classes",)
    again = CLASSIFY.restore(job.options, job.vocabulary())
    assert len(again.read_test(str(pictures))) == 60


def test_a_folder_with_splits(tmp_path, pictures):
    for name, count in (("train", 30), ("val", 9), ("test", 12)):
        save_bars(tmp_path / "all" / name, count)
    job = CLASSIFY.load({"train_file": str(tmp_path / "all"), "size": 8})
    assert {name: len(part) for name, part in job.splits.items()} == {"train": 30, "valid": 9, "test": 12}
    assert job.splits["test"].inputs.shape == (12, 1, 8, 8)
    (tmp_path / "all" / "test" / "low").rename(tmp_path / "all" / "test" / "lowest")
    with pytest.raises(QkvError, match="class must be one of high, low, middle, got the subfolder 'lowest'"):
        CLASSIFY.load({"train_file": str(tmp_path / "all")})


def test_the_preset_follows_the_data(tmp_path, pictures):
    (tmp_path / "points.csv").write_text("".join(f"{n},{'ab'[n % 2]}\n" for n in range(40)))
    numpy.savez(tmp_path / "bars.npz", train_images=bars(60)[0], train_labels=bars(60)[1])
    families = {}
    for path in (pictures, tmp_path / "points.csv", tmp_path / "bars.npz"):
        data = {"train_file": str(path)}
        config = runs.configure("classify", runs.preset("classify", None, data), {"data": data})
        runs.build(config, CLASSIFY.load(config.data))  # the model takes the data
        families[path.name] = config.family
    assert families == {"bars": "convolutional", "points.csv": "network", "bars.npz": "convolutional"}
    assert runs.preset("classify", "linear", {"train_file": str(pictures)}).family == "network"


def test_bad_input_options(tmp_path, pictures):
    (tmp_path / "points.csv").write_text("".join(f"{n},{'ab'[n % 2]}\n" for n in range(40)))
    with pytest.raises(QkvError, match=r"needs data to train on: --train-file points\.csv, images\.npz or a folder"):
        CLASSIFY.load({})
    with pytest.raises(ValueError, match=r"data\.size has no effect on points, which .*points\.csv holds"):
        CLASSIFY.load({"train_file": str(tmp_path / "points.csv"), "size": 8})
    with pytest.raises(ValueError, match=r"data\.label has no effect on images"):
        CLASSIFY.load({"train_file": str(pictures), "label": "0"})
    with pytest.raises(ValueError, match="size must be from 0 to 4096, got -1"):
        CLASSIFY.load({"train_file": str(pictures), "size": -1})


class Brightness(torch.nn.Module):
    """Class 0 for an image of 0, class 1 for one of 255, whatever its size."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, images):
        return torch.stack((-images.flatten(1).mean(1), images.flatten(1).mean(1)), 1) * 1e3


@pytest.fixture
def predictor():
    warnings = []
    job = CLASSIFY.restore({}, {"classes": ["dark", "light"], "shape": [1, 2, 3], "mean": [127.5], "deviation": [1.0]})
    found = job.predictor(Brightness(), PredictOptions(warn=warnings.append))
    found.warnings = warnings
    return found


def answers(predictor, *texts):
    names = [name for text in texts for name in predictor.expand(text)]
    assert [predictor.problem(name) for name in names] == [None] * len(names)
    return [(one["input"], one["answers"][0]["text"]) for one in predictor.predict(names, range(len(names)))]


def test_every_way_to_name_an_image(tmp_path, predictor):
    dark, light = tmp_path / "dark.png", tmp_path / "more" / "light.jpg"
    light.parent.mkdir()
    Image.new("L", (3, 2), 0).save(dark)
    arrays = {"images": numpy.full((2, 2, 3), 255, numpy.uint8), "other": numpy.zeros(3)}
    numpy.savez(tmp_path / "a.npz", **arrays)
    (tmp_path / "b-idx").write_bytes(bytes((0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3)) + bytes(6))
    names = (dark, tmp_path / "a.npz", tmp_path / "b-idx", "255 255 255 255 255 255")
    assert answers(predictor, *map(str, names)) == [
        (str(dark), "dark"),
        (f"{tmp_path}/a.npz:images[0]", "light"),
        (f"{tmp_path}/a.npz:images[1]", "light"),
        (f"{tmp_path}/b-idx[0]", "dark"),
        ("255 255 255 255 255 255", "light"),
    ]
    assert predictor.warnings == []
    Image.new("RGB", (30, 20), "white").save(light)
    assert answers(predictor, str(tmp_path / "more"), str(light)) == [(str(light), "light")] * 2
    told = "the model takes grayscale images of 2 x 3 pixels; others are converted"
    assert predictor.warnings == [told]


def test_bad_input_is_one_sentence_per_image(tmp_path, predictor):
    (tmp_path / "none").mkdir()
    (tmp_path / "x.npz").write_bytes(b"PK")
    (tmp_path / "x.png").write_bytes(b"?")
    bad = {
        str(tmp_path / "none"): "the folder .*none has no images",
        str(tmp_path / "x.npz"): r"x\.npz is not a valid \.npz file",
        str(tmp_path / "x.png"): r"x\.png is not an image that pillow can read",
        str(tmp_path / "missing.png"): r"there is no file missing\.png",
        str(tmp_path / "missing.npz"): r"there is no file missing\.npz",
        "1 2": "'1 2' has 2 values, but the model takes 6",
    }
    for text, message in bad.items():
        (name,) = predictor.expand(text)
        with pytest.raises(ValueError, match=message):
            predictor.check(name)

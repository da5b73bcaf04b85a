"""`qkv predict` of objects: lines, drawings, tables, and COCO results that pycocotools loads."""

import contextlib
import csv
import io
import json
import xml.etree.ElementTree as ET
from types import SimpleNamespace

import pytest
from PIL import Image
from pycocotools.coco import COCO

from qkv import detect, runs
from qkv.inference import ObjectFinder, PredictOptions
from qkv.tasks.detection.predictor import BoxPredictor
from tests.cli.run import qkv, run
from tests.inference.red_boxes import RedBoxes, red_picture
from tests.tasks.detection.scenes import TINY
from tests.web.runs import train

BOX = (40, 20, 100, 80)
CLASSES = ("blue", "red")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A folder with two pictures, of which one has an object; `qkv predict RUN` runs a detector of red boxes."""
    folder = tmp_path / "photos"
    folder.mkdir()
    Image.fromarray(red_picture(120, 160, BOX)).save(folder / "a.png")
    Image.fromarray(red_picture(120, 160, (0, 0, 0, 0))).save(folder / "b.png")

    def load(folders, device, options, draft, *, int8):
        return SimpleNamespace(predictor=BoxPredictor(ObjectFinder(RedBoxes(), CLASSES, 160), options))

    monkeypatch.setattr("qkv.cli.modeling.predict._load_run", load)
    return folder


def frames(path):
    found = [rect for rect in ET.parse(path).iter(f"{SVG}rect") if rect.get("class") == "found"]
    return [[float(rect.get(name)) for name in ("x", "y", "width", "height")] for rect in found]


def test_objects_are_printed_and_drawn_beside_the_picture(photos):
    done = run("predict", "run", str(photos / "a.png"))
    assert (done.code, done.stdout) == (0, f"{photos / 'a.png'}\tred\t0.90\t40.0,20.0,100.0,80.0\n")
    assert done.stderr == f"drawn: {photos / 'a.boxes.svg'}\n"
    assert frames(photos / "a.boxes.svg") == [[120, 60, 180, 180]]  # drawn at 480 x 360
    assert not (photos / "b.boxes.svg").exists()


def test_folder_in_folder_out(photos, tmp_path):
    out = tmp_path / "found" / "here"
    said = qkv("predict", "run", str(photos), "--out", str(out))
    assert said == f"2 of 2 inputs predicted: {out}\n"
    assert sorted(path.name for path in out.iterdir()) == ["a.boxes.svg", "b.boxes.svg", "index.html", "results.json"]
    assert sorted(path.name for path in photos.iterdir()) == ["a.png", "b.png"]
    assert (len(frames(out / "a.boxes.svg")), len(frames(out / "b.boxes.svg"))) == (1, 0)
    page = (out / "index.html").read_text()
    assert "a.boxes.svg" in page
    assert "nothing found" in page
    assert [row["category"] for row in json.loads((out / "results.json").read_text())] == ["red"]


def test_json_is_coco_results(photos):
    rows = json.loads(qkv("predict", "run", str(photos / "b.png"), str(photos / "a.png"), "--json"))
    assert rows == [
        {
            "image_id": 2,
            "category_id": 2,
            "bbox": [40, 20, 60, 60],
            "score": pytest.approx(0.9),
            "file_name": str(photos / "a.png"),
            "category": "red",
        }
    ]
    truth = COCO()
    truth.dataset = {
        "images": [{"id": 1}, {"id": 2}], "categories": [{"id": 1}, {"id": 2}], "annotations": [],
    }  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        loaded = truth.loadRes(rows)
    assert [one["area"] for one in loaded.loadAnns(loaded.getAnnIds(imgIds=[2], catIds=[2]))] == [3600]


def test_table_has_a_row_per_object_and_an_empty_one_without(photos, tmp_path):
    qkv("predict", "run", str(photos), "--no-draw", "--out", str(tmp_path / "a.tsv"))
    with (tmp_path / "a.tsv").open(newline="") as file:
        header, *rows = csv.reader(file, delimiter="\t")
    assert header == ["input", "label", "score", "x1", "y1", "x2", "y2"]
    assert rows == [
        [str(photos / "a.png"), "red", "0.9000", "40.0", "20.0", "100.0", "80.0"],
        [str(photos / "b.png"), "", "", "", "", "", ""],
    ]
    assert list(photos.glob("*.svg")) == []


def test_pictures_of_the_same_stem_have_drawings_of_their_own(photos):
    Image.fromarray(red_picture(120, 160, BOX)).save(photos / "a.bmp")
    qkv("predict", "run", str(photos))
    assert sorted(path.name for path in photos.glob("*.svg")) == ["a-2.boxes.svg", "a.boxes.svg", "b.boxes.svg"]


def test_the_least_score_is_an_option(photos):
    assert "nothing found" in qkv("predict", "run", str(photos / "a.png"), "--min-score", "0.95", "--no-draw")


def test_a_large_photo_is_drawn_smaller_with_its_boxes_in_place(photos):
    Image.fromarray(red_picture(1200, 1600, (400, 200, 1000, 800))).save(photos / "c.png")
    predictor = BoxPredictor(ObjectFinder(RedBoxes(), CLASSES, 160), PredictOptions())
    (record,) = predictor.predict([str(photos / "c.png")], [0])
    root = ET.fromstring(predictor.draw(record))
    (found,) = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class") == "found"]
    assert root.get("viewBox") == "0 0 1024 768"
    wanted = [value * 0.64 for value in (400, 200, 600, 600)]
    assert [float(found.get(name)) for name in ("x", "y", "width", "height")] == pytest.approx(wanted, abs=7)


def test_bad_input_files_stop_no_other_and_exit_with_3(photos):
    (photos / "c.png").write_bytes((photos / "a.png").read_bytes()[:200])  # its header is whole
    (photos / "d.png").write_bytes(b"no picture")
    done = run("predict", "run", *(str(photos / name) for name in ("c.png", "d.png", "none.png", "a.png")), "--json")
    assert done.code == 3
    assert [row["image_id"] for row in json.loads(done.stdout)] == [4]
    first, second, third = done.stderr.splitlines()
    assert first.startswith("qkv: c.png is a damaged image")
    assert second == f"qkv: d.png is not an image that pillow can read, in {photos}"
    assert third.startswith("qkv: there is no file none.png")


def test_bad_input_folder_without_images(photos, tmp_path):
    (tmp_path / "empty").mkdir()
    done = run("predict", "run", str(tmp_path / "empty"))
    assert (done.code, done.stdout) == (3, "")
    assert done.stderr == f"qkv: the folder {tmp_path / 'empty'} has no images\n"


def test_a_folder_that_cannot_be_written_is_a_warning_beside_and_an_error_in_out(photos, tmp_path):
    (photos / "a.boxes.svg").mkdir()
    done = run("predict", "run", str(photos / "a.png"))
    assert (done.code, done.stdout.count("\n")) == (0, 1)
    assert done.stderr.startswith("qkv: ")
    (tmp_path / "file").write_text("")
    said = qkv("predict", "run", str(photos), "--out", str(tmp_path / "file"), code=2)
    assert said == f"qkv: file is a file, but a folder is expected, in {tmp_path}\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--best", "3"), "--best 3 has no effect"),
        (("--min-score", "1.5"), "--min-score must be from 0 to 1, got 1.5"),
        (("--search", "beam"), "--search has no effect"),
        (("--out", "x.csv"), "--out x.csv: the name must end in .tsv or .json"),
    ],
)
def test_bad_input_options(photos, options, message):
    assert message in qkv("predict", "run", str(photos), *options, code=2)


@pytest.mark.filterwarnings("ignore::qkv.errors.QkvWarning")  # the anchors are printed
def test_a_trained_run_is_loaded_and_finds_objects(tmp_path):
    changes = {
        "model": {"hidden_dim": 8, "samples": 8, "pool": 3},
        "train": {"steps": 2, "batch_size": 2, "warmup": 1, "validate_every": 2},
        "data": TINY,
    }
    folder = train(tmp_path / "run", "detect", changes)
    Image.fromarray(red_picture(60, 80, BOX)).save(tmp_path / "a.png")
    loaded = runs.load(folder)
    found = detect(folder, tmp_path / "a.png", min_score=0)
    assert found == detect(loaded, tmp_path / "a.png", min_score=0)
    assert all(one.label in loaded[1].classes for one in found)
    lines = qkv("predict", str(folder), str(tmp_path / "a.png"), "--min-score", "0").splitlines()
    assert len(lines) == max(1, len(found))
    assert len(frames(tmp_path / "a.boxes.svg")) == len(found)


def test_bad_input_run_without_boxes(tmp_path):
    run_folder = train(tmp_path / "xor", "xor", {"train": {"steps": 2, "validate_every": 2}})
    with pytest.raises(ValueError, match="is a run of task 'xor'; finding objects needs one of task 'detect'"):
        detect(run_folder, red_picture(9, 9, (0, 0, 3, 3)))
    assert "--min-score is for runs of task detect" in qkv(
        "predict", str(run_folder), "0,1", "--min-score", "0.5", code=2
    )
    said = qkv("predict", str(run_folder), "0,1", "--out", str(tmp_path / "folder"), code=2)
    assert said == f"qkv: --out {tmp_path / 'folder'}: the name must end in .tsv or .json\n"

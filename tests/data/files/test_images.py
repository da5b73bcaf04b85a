import gzip
import struct
import zipfile

import numpy
import pytest
import torch

from qkv.data import read_idx, read_images, read_npz
from qkv.errors import QkvError


def idx(array):
    array = numpy.asarray(array, dtype=numpy.uint8)
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


PICTURES = numpy.arange(3 * 5 * 7, dtype=numpy.uint8).reshape(3, 5, 7)


@pytest.fixture
def files(tmp_path):
    images, labels = tmp_path / "train-images-idx3-ubyte", tmp_path / "train-labels-idx1-ubyte"
    images.write_bytes(idx(PICTURES))
    labels.write_bytes(idx([4, 0, 9]))
    return images, labels


def test_images_and_their_labels(files):
    found = read_images(files[0])
    assert torch.equal(found.inputs, torch.from_numpy(PICTURES)[:, None])
    assert found.labels.tolist() == [4, 0, 9]
    other = files[1].with_name("theirs")
    other.write_bytes(idx([1, 2, 3]))
    assert read_images(files[0], other).labels.tolist() == [1, 2, 3]


def test_gzipped(files):
    files[0].write_bytes(gzip.compress(idx(PICTURES)))
    assert torch.equal(read_idx(files[0], 3), torch.from_numpy(PICTURES))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            idx([1, 2, 3]) + b"123456789",
            "must begin with the magic number 00 00 08 03 .uint8 with 3 axes., got 00 00 08 01",
        ),
        (b"not an IDX file at all", "must begin with the magic number .*, got 6e 6f 74 20"),
        (idx(PICTURES)[:-1], "has 120 bytes, but the header gives 3 x 5 x 7: 121 bytes"),
        (idx(PICTURES) + b"!", "has 122 bytes, but the header gives 3 x 5 x 7: 121 bytes"),
        (idx(PICTURES)[:10], "has 10 bytes, but the header alone needs 16"),
        (gzip.compress(idx(PICTURES))[:-9], "is damaged or truncated"),
        (idx(numpy.zeros((0, 5, 7))), "is empty: the header gives 0 x 5 x 7"),
    ],
)
def test_bad_files_are_one_sentence(files, data, message):
    files[0].write_bytes(data)
    with pytest.raises(QkvError, match=f"^train-images-idx3-ubyte {message}.*, in /"):
        read_images(files[0])


def test_too_few_labels_and_missing_labels(files):
    files[1].write_bytes(idx([4, 0]))
    with pytest.raises(
        QkvError, match="train-labels-idx1-ubyte has 2 labels, but train-images-idx3-ubyte has 3 images"
    ):
        read_images(files[0])
    files[1].unlink()
    with pytest.raises(QkvError, match="there is no file train-labels-idx1-ubyte"):
        read_images(files[0])
    with pytest.raises(QkvError, match="cannot be inferred from the name digits; pass --set data.train_labels=FILE"):
        read_images(files[0].with_name("digits"))


def test_a_medmnist_file(tmp_path):
    path = tmp_path / "med.npz"
    color = numpy.arange(2 * 5 * 7 * 3, dtype=numpy.uint8).reshape(2, 5, 7, 3)
    labels = {"train_labels": [[1], [0], [2]], "val_labels": [[1], [1]]}
    numpy.savez(path, train_images=numpy.stack([color[0]] * 3), val_images=color, **labels)
    parts = read_npz(path)
    assert set(parts) == {"train", "valid"}
    assert parts["valid"].inputs.shape == (2, 3, 5, 7)
    assert parts["valid"].inputs[1, 2, 4, 6] == color[1, 4, 6, 2]
    assert parts["train"].labels.tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"pictures": PICTURES}, "must have train_images and train_labels, but has pictures"),
        ({"train_images": PICTURES}, "has train_images, but no train_labels"),
        ({"train_images": PICTURES, "train_labels": [1, 2]}, "train_labels has 2 labels, but train_images has 3"),
        ({"train_images": PICTURES, "train_labels": numpy.int64(1)}, r"one per image, got int64 \(\)"),
        ({"train_images": PICTURES, "train_labels": numpy.zeros(0, int)}, r"one per .*, got int64 \(0,\)"),
        ({"train_images": PICTURES, "train_labels": numpy.zeros((0, 1), int)}, r"got int64 \(0, 1\)"),
        ({"train_images": PICTURES, "train_labels": [0.5, 1, 2]}, "train_labels must be integers, one per"),
        ({"train_images": PICTURES, "train_labels": [[0, 1]] * 3}, "train_labels must be integers, one per"),
        ({"train_images": PICTURES, "train_labels": [0, -1, 2]}, "train_labels must be at least 0, got -1"),
        ({"train_images": PICTURES * 0.5, "train_labels": [0, 1, 2]}, "train_images must be uint8 .*, got float64"),
        (
            {"train_images": PICTURES[0], "train_labels": [0, 1]},
            r"train_images must be uint8 .*, got uint8 \(5, 7\)",
        ),
    ],
)
def test_bad_arrays(tmp_path, arrays, message):
    numpy.savez(tmp_path / "med.npz", **arrays)
    with pytest.raises(QkvError, match=message):
        read_npz(tmp_path / "med.npz")


def test_invalid_npz_files_and_pickles_are_rejected(tmp_path):
    path = tmp_path / "med.npz"
    path.write_bytes(b"PK\x03\x04 half a file")
    with pytest.raises(QkvError, match=r"med\.npz is not a valid \.npz file"):
        read_npz(path)
    path.write_bytes(b"text")
    with pytest.raises(QkvError, match=r"med\.npz is not an \.npz file: it does not start with PK"):
        read_npz(path)
    numpy.savez(path, train_images=numpy.array([{}], dtype=object))
    with pytest.raises(QkvError, match=r"med\.npz is not a valid \.npz file \(Object arrays cannot"):
        read_npz(path)


def test_bad_input_that_claims_more_than_it_has(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1048576, 8192, 8192), }\n"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("train_images.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    with pytest.raises(QkvError, match=r"train_images.npy has 85 bytes, but its header gives 70,368,744,177,749"):
        read_npz(path)
    numpy.savez_compressed(path, train_images=numpy.zeros((2, 50, 50), "uint8"), train_labels=numpy.zeros(2, "uint8"))
    assert len(read_npz(path)["train"]) == 2
    monkeypatch.setenv("QKV_MAX_BYTES", "5000")
    with pytest.raises(QkvError, match=r"train_images.npy has 5,128 bytes unpacked, but at most 5,000 are read"):
        read_npz(path)


def test_bad_input_names_the_arrays_that_are_there(tmp_path):
    numpy.savez(tmp_path / "a.npz", X=numpy.zeros((1, 2, 2), "uint8"), y=numpy.zeros(1, "uint8"))
    with pytest.raises(QkvError, match="a.npz must have train_images and train_labels, but has X, y"):
        read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize(("high", "kind"), [(10_000, "int64"), (2**62, "int64"), (2**64 - 1, "uint64")])
def test_bad_input_labels_that_would_be_a_table_of_classes(tmp_path, high, kind):
    images, labels = numpy.zeros((2, 2, 2), "uint8"), numpy.array([0, high], kind)
    numpy.savez(tmp_path / "a.npz", train_images=images, train_labels=labels)
    with pytest.raises(QkvError, match=f"train_labels must be classes from 0 to 9,999, got {high:,}"):
        read_npz(tmp_path / "a.npz")


def test_bad_input_a_packed_file_is_read_as_far_as_its_header_says(tmp_path, monkeypatch):
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(idx(PICTURES) + bytes(10**6)))
    with pytest.raises(QkvError, match="images.gz has more bytes, but the header gives 3 x 5 x 7: 121 bytes"):
        read_idx(path, 3)
    path.write_bytes(gzip.compress(idx(PICTURES)[:-2]))
    with pytest.raises(QkvError, match="images.gz has 119 bytes, but the header gives 3 x 5 x 7: 121 bytes"):
        read_idx(path, 3)
    path.write_bytes(gzip.compress(idx(PICTURES)))
    assert torch.equal(read_idx(path, 3), torch.from_numpy(PICTURES))
    monkeypatch.setenv("QKV_MAX_BYTES", "120")
    with pytest.raises(QkvError, match=r"has 121 bytes unpacked, but at most 120 are read; .* QKV_MAX_BYTES raises"):
        read_idx(path, 3)
    monkeypatch.setenv("QKV_MAX_BYTES", "much")
    with pytest.raises(QkvError, match="QKV_MAX_BYTES must be a number of bytes, got 'much'"):
        read_idx(path, 3)


def test_bad_input_a_long_list_of_arrays_is_refused_before_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "many.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(25_000):
            archive.writestr(str(number), b"")

    def read(*_):
        raise AssertionError("the list was read")

    monkeypatch.setattr(zipfile, "ZipFile", read)
    with pytest.raises(QkvError, match=r"many\.npz lists 25,000 arrays in 1,\d{3},\d{3} bytes; at most 1,048,576"):
        read_npz(path)

"""Hostile data files, caches and arguments."""

import gzip
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy

from qkv.data.corpora.mnist import SMALL
from tests.hostile.case import Arguments, Case, make_node, make_sparse
from tests.hostile.run_cases import DEEP

BOMB_BYTES = 6 * 10**9
TRAIN = {"tsv": "pairs", "csv": "xor", "txt": "text", "npz": "digits"}


def cases() -> list[Case]:
    """Return all cases of data files, caches and arguments."""
    return [*_nodes(), *_archives(), *_labels(), *_vectors(), *_texts(), *_caches(), *_arguments()]


def _file(name: str, file: str, write: Any, *command: str) -> Case:
    """Return the case of one file, which `write(path)` makes; FILE in the command is its path."""

    def make(bases: Path, folder: Path) -> Arguments:
        path = folder / file
        write(path)
        return [word.replace("FILE", str(path)).replace("BASES", str(bases)) for word in command]

    return Case(name, make)


def _train(name: str, file: str, write: Any) -> Case:
    task = TRAIN.get(file.rpartition(".")[2], "digits")
    return _file(
        f"{task}: {name}", file, write, "train", task, "--train-file", "FILE", "--run", "FILE.run", "--steps", "1"
    )


def _nodes() -> list[Case]:
    found = []
    for ending in TRAIN:
        for node in ("fifo", "zero", "folder", "socket"):
            if (ending, node) != ("txt", "folder"):  # a folder of text files is meant
                found.append(_train(f"{node} as .{ending}", f"a.{ending}", _node(node)))
    for node in ("fifo", "zero"):
        found += [
            _train(f"{node} as IDX images", "train-images-idx3-ubyte", _node(node)),
            _file(f"dictionary is {node}", "words.dict", _node(node), "pronounce", "a", "--dictionary", "FILE"),
            _file(f"test file is {node}", "test.tsv", _node(node), "eval", "BASES/pairs", "--test-file", "FILE"),
            _file(f"vectors are {node}", "vectors.txt", _node(node), "words", "nearest", "FILE", "king"),
            _file(
                f"tokenizer is {node}",
                "t.json",
                _node(node),
                *("train", "text", "--train-file", "BASES/text.txt", "--set", "data.tokenizer=FILE"),
            ),
        ]
    return found


def _node(node: str) -> Any:
    return lambda path: make_node(path, node)


def _archives() -> list[Case]:
    found = []
    for shape in ((2**20, 2**13, 2**13), (2**40, 28, 28), (2**62, 4, 4)):
        found.append(
            _train(
                f"npz header of {shape}",
                "a.npz",
                _npz(train_images=_npy(shape, b"\0" * 784), train_labels=_npy((1,), b"\0")),
            )
        )
    found += [
        _train("npz that unpacks to 6 GB", "a.npz", _npz_bomb("train_images")),
        _train("npz whose labels unpack to 6 GB", "b.npz", _npz_bomb("train_labels")),
        _train("gzipped IDX that unpacks to 6 GB", "train-images-idx3-ubyte.gz", _idx_bomb(3)),
        _train("gzipped IDX that unpacks to 6 GB of one row", "train-images-idx3-ubyte.gz", _idx_bomb(3, rows=1)),
        _train("IDX header of 2^96 pixels", "train-images-idx3-ubyte", _idx((2**32 - 1,) * 3)),
        _train("IDX header of 58 TiB", "train-images-idx3-ubyte", _idx((2**20, 2**13, 2**13))),
        _train("IDX that is empty", "train-images-idx3-ubyte", _idx((0, 28, 28))),
        _train(
            "npz of pickles", "a.npz", _npz(train_images=_npy((1,), b"x" * 8, "|O"), train_labels=_npy((1,), b"\0"))
        ),
        _train("npz of broken headers", "a.npz", _npz(train_images=b"\x93NUMPY\x01\x00\xff\xff{", train_labels=b"")),
        _train("npz of deep headers", "a.npz", _npz(train_images=_header(b"(" * 20_000), train_labels=b"")),
        _train("npz that is a text", "a.npz", lambda path: path.write_bytes(b"hello")),
        _train("npz that is cut", "a.npz", lambda path: path.write_bytes(b"PK\x03\x04" + b"\0" * 90)),
        _train("npz with other arrays", "a.npz", _npz(X=_npy((1,), b"\0"), y=_npy((1,), b"\0"))),
    ]
    return found


def _labels() -> list[Case]:
    def write(labels: list[int], kind: str) -> Any:
        images = numpy.zeros((len(labels), 4, 4), dtype="uint8")
        return lambda path: numpy.savez(path, train_images=images, train_labels=numpy.array(labels, dtype=kind))

    found = []
    for high in (10**6, 10**9, 2**40, 2**62):
        found.append(_train(f"labels up to {high}", "a.npz", write([0] * 20 + [high] * 20, "int64")))
    found.append(_train("labels of uint64", "a.npz", write([0] * 20 + [2**64 - 1] * 20, "uint64")))
    found.append(_train("labels below 0", "a.npz", write([0] * 20 + [-5] * 20, "int64")))
    return found


def _vectors() -> list[Case]:
    texts = {
        "width of 1e11": b"1 100000000000\nking 1 2\n",
        "width of 1e30": b"1 " + b"9" * 30 + b"\nking 1 2\n",
        "count of 1e12": b"1000000000000 3\nking 1 2 3\n",
        "header of 5,000 digits": b"1 " + b"9" * 5_000 + b"\nking 1 2\n",
        "no header": b"king 1 2 3\n",
        "noise": bytes(range(128, 256)) * 50,
    }
    command = ("words", "nearest", "FILE", "king")
    found = [_file(f"vectors: {name}", "v.txt", _bytes(data), *command) for name, data in texts.items()]
    return [*found, _file("vectors: 1 TB of zeros", "v.txt", lambda path: make_sparse(path, 2**40, b"1 2\n"), *command)]


def _bytes(data: bytes) -> Any:
    return lambda path: path.write_bytes(data)


def _texts() -> list[Case]:
    def sparse(path: Path) -> None:
        make_sparse(path, 2**40)

    return [
        *(_train(f"1 TB of zeros as .{ending}", f"a.{ending}", sparse) for ending in TRAIN),
        _train("1 TB of zeros as IDX", "train-images-idx3-ubyte", sparse),
        _file("dictionary of 1 TB", "d.dict", sparse, "pronounce", "a", "--dictionary", "FILE"),
        _train("a table of 100,000 columns", "a.csv", _bytes(b"1," * 100_000 + b"a\n2,b\n")),
        _train("a field of 3 MB", "a.csv", _bytes(b"1," + b"a" * 3_000_000 + b"\n2,b\n")),
        _train("numbers of 5,000 digits", "a.csv", _bytes(b"9" * 5_000 + b",a\n2,b\n")),
        _train("numbers to predict", "a.csv", _bytes(b"".join(b"%d,%d.5\n" % (n, n * n) for n in range(30)))),
        _train("no tab in any line", "a.tsv", _bytes(b"abc\n" * 50_000)),
        _train("not UTF-8", "a.txt", _bytes(b"\xff\xfe" * 50_000)),
        _train("one line of a text without spaces", "a.tsv", _bytes(b"a" * 50_000_000)),
        _file(
            "tokenizer of deep JSON",
            "t.json",
            _bytes(b'{"a":' * DEEP),
            *("train", "text", "--train-file", "BASES/text.txt", "--set", "data.tokenizer=FILE"),
        ),
    ]


def _caches() -> list[Case]:
    def cached(name: str, node: str) -> Case:
        def make(bases: Path, folder: Path) -> Arguments:
            (folder / "cache").mkdir()
            make_node(folder / "cache" / SMALL.file, node)
            return ["train", "digits", "--steps", "1", "--run", str(folder / "run")]

        environment = (("QKV_CACHE", "{folder}/cache"), ("PIP_NO_INDEX", "1"), ("PATH", "/nowhere"))
        return Case(name, make, environment)

    return [cached(f"cache entry is {node}", node) for node in ("folder", "fifo", "zero")]


def _arguments() -> list[Case]:
    def arguments(name: str, *words: str | bytes) -> Case:
        def make(bases: Path, folder: Path) -> Arguments:
            return [w if isinstance(w, bytes) else w.replace("BASES", str(bases)) for w in words]

        return Case(name, make)

    def setting(name: str, text: str | bytes) -> Case:
        before = b"" if isinstance(text, bytes) else ""
        return arguments(name, "train", "recall", "--steps", "1", "--run", "new", "--set", before + text)

    return [
        setting("a million minus signs", "model.dim=" + "-" * 100_000 + "1"),
        setting("nested brackets", "model.dim=" + "(" * 100_000),
        setting("nested lists", "model.dim=" + "[" * 150 + "]" * 150),
        setting("not", "model.dim=" + "not " * 25_000 + "1"),
        setting("10,000 digits", "model.dim=" + "9" * 10_000),
        setting("a width of 1e12", "model.dim=1000000000000"),
        setting("a million layers", "model.layers=1000000"),
        setting("order 30", "model.attention=taylor(order=30)"),
        setting("order 1e9", "model.attention=taylor(order=1000000000)"),
        setting("a vocabulary of 1e12", "data.vocabulary=1000000000000"),
        setting("a length of 1e12", "data.length=1000000000000"),
        setting("bytes that are no text", b"model.dim=\xff\xfe"),
        arguments("a million answers", "predict", "BASES/pairs", "abc", "--best", "1000000"),
        arguments("a million beams", "predict", "BASES/pairs", "abc", "--beams", "1000000"),
        arguments("a million pronunciations", "pronounce", "xyzzyx", "--best", "1000000"),
        arguments("a million beams of phones", "pronounce", "xyzzyx", "--beams", "1000000"),
        arguments("1e12 tokens", "predict", "BASES/text", "The", "--tokens", "1000000000000"),
        arguments("a folder that is no text", "predict", b"/tmp/\xff\xfe", "abc"),
        arguments("a task that is no text", "train", b"\xff\xfe"),
        arguments("an option that is no text", "predict", "BASES/pairs", b"--\xff\xfe"),
        arguments("beams of a number too large", "predict", "BASES/pairs", "abc", "--beams", "9" * 30),
    ]


def _npy(shape: tuple[int, ...], data: bytes, kind: str = "|u1") -> bytes:
    return _header(f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()) + data


def _header(text: bytes) -> bytes:
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text) + 1) + text + b"\n"


def _npz(**arrays: bytes) -> Any:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as file:
            for name, data in arrays.items():
                file.writestr(f"{name}.npy", data)

    return write


_deflated: dict[int, bytes] = {}


def _zeros(size: int, before: bytes) -> bytes:
    """Return gzip data that unpacks to `before` and `size` zeros: one block of zeros, packed once and repeated."""
    block = 50_000_000
    if block not in _deflated:
        _deflated[block] = gzip.compress(bytes(block), 6, mtime=0)
    return gzip.compress(before, mtime=0) + _deflated[block] * (size // block)


def _idx_bomb(axes: int, rows: int = 0) -> Any:
    sizes = (rows, 60_000, 100_000) if rows else (BOMB_BYTES // 10_000, 100, 100)
    header = bytes((0, 0, 8, axes)) + struct.pack(f">{axes}I", *sizes)

    def write(path: Path) -> None:
        path.write_bytes(_zeros(BOMB_BYTES, header))
        path.with_name("train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes((0, 0, 8, 1, 0, 0, 0, 1, 0))))

    return write


def _idx(sizes: tuple[int, ...]) -> Any:
    def write(path: Path) -> None:
        path.write_bytes(bytes((0, 0, 8, len(sizes))) + struct.pack(f">{len(sizes)}I", *sizes) + bytes(100))
        path.with_name("train-labels-idx1-ubyte").write_bytes(bytes((0, 0, 8, 1, 0, 0, 0, 1, 0)))

    return write


def _npz_bomb(name: str) -> Any:
    """Write an archive whose member `name` is 6 GB of zeros."""

    def write(path: Path) -> None:
        shape = (BOMB_BYTES // 10_000, 100, 100) if name == "train_images" else (BOMB_BYTES,)
        other = {"train_images": "train_labels", "train_labels": "train_images"}[name]
        with zipfile.ZipFile(path, "w") as file:
            file.writestr(f"{other}.npy", _npy((1, 1, 1) if other == "train_images" else (1,), b"\0"))
            header = _npy(shape, b"")
            file.writestr(f"{name}.npy", _deflate_zeros(header))
            # stored bytes that the directory calls deflated
            entry = file.getinfo(f"{name}.npy")
            entry.compress_type, entry.file_size, entry.CRC = zipfile.ZIP_DEFLATED, BOMB_BYTES + len(header), 0

    return write


def _deflate_zeros(before: bytes) -> bytes:
    """Return deflated `before` and 6 GB of zeros; after a full flush a block can be repeated as it is."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    start = packer.compress(before) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(10**6)) + packer.flush(zlib.Z_FULL_FLUSH)
    return start + block * (BOMB_BYTES // 10**6) + packer.flush()

import json
import struct

import pytest
import torch
from safetensors.torch import save_file

from qkv.errors import QkvError
from qkv.storage.safetensors_header import TensorHeader, read_header


def write(path, header, size=None, data=b""):
    path.write_bytes(struct.pack("<Q", len(header) if size is None else size) + header + data)
    return path


def test_the_header_of_a_file(tmp_path):
    tensors = {
        "a": torch.zeros(2, 3),
        "b": torch.zeros(5, dtype=torch.int64),
        "c": torch.zeros((), dtype=torch.bfloat16),
    }
    save_file(tensors, tmp_path / "x.safetensors", {"format": "pt"})
    found = read_header(tmp_path / "x.safetensors")
    assert found == {"a": TensorHeader("F32", (2, 3)), "b": TensorHeader("I64", (5,)), "c": TensorHeader("BF16", ())}
    assert [found[name].is_float for name in "abc"] == [True, False, True]


@pytest.mark.parametrize(
    ("header", "size", "said"),
    [
        (b"{}", 2**63, "it has 10 bytes, too few for its header"),
        (json.dumps({"a": {"dtype": "F32", "shape": [10**12]}}).encode(), None, "but its header gives 4,000,000,000,0"),
        (json.dumps({"a": {"dtype": "F32", "shape": [-1]}}).encode(), None, "does not give the type and shape of a"),
        (json.dumps({"a": {"dtype": "F99", "shape": [1]}}).encode(), None, "does not give the type and shape of a"),
        (json.dumps({"a": 5}).encode(), None, "does not give the type and shape of a"),
        (b" " * (16 * 2**20 + 1), None, "its header has 16,777,217 bytes, but at most 16,777,216 are read"),
    ],
)
def test_bad_input(tmp_path, header, size, said):
    path = write(tmp_path / "x.safetensors", header, size)
    with pytest.raises(QkvError, match=f"x.safetensors is damaged or not safetensors: .*{said}"):
        read_header(path)

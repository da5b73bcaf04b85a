"""Compile every kernel as it is launched, for compute capability 9.0, without a GPU.

python -m tests.attention.triton.compile_triton bfloat16
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.pop("TRITON_INTERPRET", None)

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from qkv.attention.triton import launch as feature_map_launch
from qkv.attention.triton import op as feature_map_operator
from qkv.attention.triton.kernels import decode_step as decode_triton

TARGET = GPUTarget("cuda", 90, 32)
TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.bool: "i1", torch.int32: "i32"}


ROOM = 232448
"""Bytes of shared memory that a program may have on such a chip."""


class Launches:
    """Stands in for a kernel: compiles what it would be launched with."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return self.compile

    def compile(self, *arguments, num_warps=4, num_stages=3, maxnreg=None, **named):
        names = self.kernel.arg_names
        values = dict(zip(names, arguments, strict=False)) | named
        signature, constants, hints = {}, {}, {}
        for place, name in enumerate(names):
            value = values[name]
            if value is None or name in named:
                signature[name], constants[place,] = "constexpr", value
                continue
            signature[name] = self.type_of(value)
            if isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0):
                hints[place,] = [["tt.divisibility", 16]]
        options = {"num_warps": num_warps, "num_stages": num_stages, "maxnreg": maxnreg}
        source = ASTSource(self.kernel, signature, constants, hints)
        made = triton.compile(source, target=TARGET, options=options)
        print(self.kernel.fn.__name__, *resources(made.asm["cubin"]), made.metadata.shared, flush=True)
        assert made.metadata.shared <= ROOM, f"{self.kernel.fn.__name__} needs {made.metadata.shared} bytes: {named}"

    @staticmethod
    def type_of(value):
        if isinstance(value, torch.Tensor):
            return "*" + TYPES[value.dtype]
        return "fp32" if isinstance(value, float) else "i32"


def resources(binary):
    """Registers a thread, and bytes that did not fit into them."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        said = subprocess.check_output([tool, "--dump-resource-usage", file.name], text=True)
    return [int(number) for number in re.search(r"REG:(\d+) STACK:(\d+)", said).groups()]


def compile_all(dtype):
    """Forward and backward of each kind: at the benchmark's sizes plain and with all there is, and at the largest."""
    for launch in ("STATES", "SCAN", "READ", "PULL"):
        kept = getattr(feature_map_launch, launch)
        kept.kernel = Launches(kept.kernel)
    for kept in (decode_triton.ADVANCE, decode_triton.GATHER):
        kept.kernel = Launches(kept.kernel)
    forward = feature_map_operator._attend
    backward = feature_map_operator._attend_backward
    step = decode_triton.feature_map_step._init_fn
    usual = ((True, False), (True, True), (False, False))
    for kind, key_dim, value_dim, segment, ways in (
        ("taylor", 16, 64, 256, usual),
        ("taylor", 64, 64, 512, usual),
        ("linear", 64, 64, 128, usual),
        ("elu", 64, 64, 128, usual),
        ("linear", 128, 128, 128, [(True, False)]),
        ("elu", 128, 256, 128, [(True, True)]),
        ("taylor", 64, 256, 512, [(True, True)]),
    ):
        for causal, rich in ways:
            q = torch.zeros(1, 2, 1024, key_dim, dtype=dtype)
            v = torch.zeros(1, 2, 1024, value_dim, dtype=dtype)
            mask = torch.ones(1, 1024, dtype=torch.bool) if rich else None
            decay = torch.ones(2) if rich else None
            options = (kind, 0.25, causal, segment, True)
            out, inverse, sums, norms, *state = forward(q, q, v, mask, decay, None, None, *options)
            state = [x if x.numel() else None for x in state]
            forward(q, q, v, mask, decay, *state, *options)
            backward(v, *state, q, q, v, mask, decay, out, inverse, sums, norms, *options)
        token = [x[:, :, :1] for x in (q, q, v)]
        step(*token, None, None, *state, kind, 0.25)


if __name__ == "__main__":
    compile_all(getattr(torch, sys.argv[1]))

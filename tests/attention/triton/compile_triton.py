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

from qkv.attention.triton import decode, delta_decode, delta_launch, delta_op, gate, launch, op

TARGET = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.bool: "i1",
    torch.int32: "i32",
}
MAX_SHARED_MEMORY = 232448
"""Bytes of shared memory per program on such a GPU."""


class CompileOnly:
    """Stands in for a kernel: compiles what it would be launched with, and may read the machine code (slow)."""

    def __init__(self, kernel, reads_code):
        self.kernel, self.reads_code = kernel, reads_code

    def __getitem__(self, grid):
        return self.compile

    def compile(self, *arguments, num_warps=4, num_stages=3, maxnreg=None, **named):
        names = self.kernel.arg_names
        values = dict(zip(names, arguments, strict=False)) | named
        constants, hints = {}, {}
        signature = {
            name: "constexpr" if name in named else signature_of(values[name], (index,), constants, hints)
            for index, name in enumerate(names)
        }
        constants |= {(index,): values[name] for index, name in enumerate(names) if name in named}
        options = {"num_warps": num_warps, "num_stages": num_stages, "maxnreg": maxnreg}
        source = ASTSource(self.kernel, signature, constants, hints)
        made = triton.compile(source, target=TARGET, options=options)
        name = self.kernel.fn.__name__
        print(name, *resources(made.asm["cubin"]), made.metadata.shared, flush=True)
        assert made.metadata.shared <= MAX_SHARED_MEMORY, f"{name} needs {made.metadata.shared} bytes: {named}"
        mixed = mixed_up_halves(disassemble(made.asm["cubin"])) if self.reads_code else []
        assert not mixed, f"ptxas gave {name} a wrong address in shared memory, {mixed}: {named}"


def signature_of(value, path, constants, hints):
    """Return the type of an argument, nested like its tuples; note constants and aligned values by their path."""
    if isinstance(value, tuple):
        return type(value)(*(signature_of(x, (*path, i), constants, hints) for i, x in enumerate(value)))
    if value is None or (isinstance(value, int) and value == 1):
        constants[path] = value
        return "constexpr"
    if isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0):
        hints[path] = [["tt.divisibility", 16]]
    if isinstance(value, torch.Tensor):
        return "*" + TYPES[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def resources(binary):
    """Return the registers per thread, and the bytes that were spilled."""
    printed = run_tool("cuobjdump", "--dump-resource-usage", binary)
    return [int(number) for number in re.search(r"REG:(\d+) STACK:(\d+)", printed).groups()]


def disassemble(binary):
    """Return the instructions that use uniform registers, as (name, arguments)."""
    found = re.findall(r"\*/ +(?:@!?U?P\w+ +)?([A-Z0-9.]+) ([^;]*\bUR[^;]*);", run_tool("nvdisasm", "-c", binary))
    return [(name, [argument.strip() for argument in arguments.split(",")]) for name, arguments in found]


def run_tool(name, option, binary):
    """Return what a tool of CUDA prints about the machine code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        tool = Path(triton.__file__).parent / "backends/nvidia/bin" / name
        return subprocess.check_output([tool, option, file.name], text=True)


def mixed_up_halves(instructions):
    """Return the 64-bit additions that take one register as the low and as the high half of an operand.

    The address of an operand of a dot product in shared memory is a constant plus 32 bits, so its high half is a
    register with 0. ptxas 12.8 can take the register of the low half instead, and the product reads other memory.
    """
    low, found = {}, []
    for name, arguments in instructions:
        if name == "UIADD3.X" and "0x" in arguments[2] and low.get(arguments[4]) == arguments[1]:
            found.append(" ".join([name, *arguments]))
        if arguments[0].startswith("UR") and arguments[0] != "URZ":
            first = int(arguments[0][2:])
            written = [f"UR{first}", f"UR{first + 1}"] if re.search(r"\.64|\.WIDE", name) else [arguments[0]]
            low = {carry: register for carry, register in low.items() if register not in written}
        if name == "UIADD3" and arguments[1].startswith("UP") and "0x" in arguments[3] and arguments[2] != arguments[0]:
            low[arguments[1]] = arguments[2]
    return found


def compile_all(dtype):
    """Compile forward, backward and decoding of each kind: at the benchmark's sizes, and at the largest.

    At the benchmark's sizes plain, with mask and decay or gate, and without causal order. In bfloat16 heads of 32, too,
    and only then the machine code is read.
    """
    kernels = [launch.CHUNK_STATE, launch.SCAN, launch.OUTPUT, launch.GRAD_QK, decode.DECODE_STEP, decode.COMBINE_PARTS]
    kernels += [gate.GATE_SUMS, gate.GATE_GRADIENT]
    for cached in kernels:
        cached.kernel = CompileOnly(cached.kernel, reads_code=dtype == torch.bfloat16)
    step = decode.feature_map_step._init_fn
    decays = {"decay": torch.ones(2), "gate": torch.ones(1, 2, 1024)}
    usual = ((True, None), (True, "decay"), (True, "gate"), (False, None))
    sizes = [
        ("taylor", 16, 64, 256, usual),
        ("taylor", 64, 64, 512, usual),
        ("linear", 64, 64, 128, usual),
        ("elu", 64, 64, 128, usual),
        ("linear", 128, 128, 128, [(True, None), (True, "gate")]),
        ("elu", 128, 256, 128, [(True, "decay"), (True, "gate")]),
        ("taylor", 64, 256, 512, [(True, "decay"), (True, "gate")]),
    ]
    if dtype == torch.bfloat16:
        sizes.append(("taylor", 32, 32, 512, [(False, None)]))
    for kind, key_dim, value_dim, segment, ways in sizes:
        for causal, faded in ways:
            q = torch.zeros(1, 2, 1024, key_dim, dtype=dtype)
            v = torch.zeros(1, 2, 1024, value_dim, dtype=dtype)
            decay = decays.get(faded)
            mask = None if decay is None else torch.ones(1, 1024, dtype=torch.bool)
            options = (kind, 0.25, causal, segment, True)
            out, inv_norm, kv_sum, k_sum, *state, gate_values = op._forward(q, q, v, mask, decay, None, None, *options)
            state = [x if x.numel() else None for x in state]
            op._forward(q, q, v, mask, decay, *state, *options)
            op._backward(v, *state, q, q, v, mask, decay, out, inv_norm, kv_sum, k_sum, gate_values, *options)
        token = [x[:, :, :1] for x in (q, q, v)]
        for rates in (None, torch.ones(1, 2, 1)):
            step(*token, None, rates, *state, kind, 0.25)


def compile_delta(dtype):
    """Compile forward and backward of the delta rule, at the benchmark's sizes and at the largest."""
    passes = delta_launch.PAIRS, delta_launch.INVERSE, delta_launch.WALK, delta_launch.WALK_BACK, delta_launch.GRAD
    for cached in (*passes, delta_launch.JOIN, delta_decode.DELTA_STEP):
        cached.kernel = CompileOnly(cached.kernel, reads_code=dtype == torch.bfloat16)
    for key_dim, value_dim, group in ((64, 64, 1), (128, 128, 1), (128, 256, 2)):
        q = torch.zeros(1, 2 * group, 1024, key_dim, dtype=dtype)
        k, v = (torch.zeros(1, 2, 1024, dim, dtype=dtype) for dim in (key_dim, value_dim))
        rates, starts = torch.zeros(1, 2, 1024), torch.zeros(1, 1024, dtype=torch.bool) if group > 1 else None
        inputs = q, k, v, rates, rates, starts
        delta_op._forward(*inputs, None, 2, 0.25, False)
        out, final, *saved = delta_op._forward(*inputs, None, 2, 0.25, True)
        delta_op._backward(out, final, *inputs, *saved, 2, 0.25)
        token = (None if x is None else x[:, :, :1] if x.dim() > 2 else x[:, :1] for x in inputs)
        delta_decode.delta_step._init_fn(*token, final, 0.25)


if __name__ == "__main__":
    compile_all(getattr(torch, sys.argv[1]))
    compile_delta(getattr(torch, sys.argv[1]))

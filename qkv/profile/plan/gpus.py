"""Facts about GPUs for plans, each with its source.

Rates are those of dense products; data sheets often give twice as many, for sparse matrices. `link` is the bandwidth
of one direction, half of what data sheets add up.
"""

from dataclasses import dataclass, replace

from qkv.errors import unknown_name_error

GB = 10**9
TERA = 10**12


@dataclass(frozen=True)
class Ceilings:
    """Rates that large calls reached in a measurement, lowest and highest."""

    bfloat16: tuple[float, float]
    """FLOP/s of matrix products."""
    bandwidth: tuple[float, float]
    """Bytes/s of a copy, read and written."""


@dataclass(frozen=True)
class Gpu:
    """Memory, rates and links of one GPU."""

    name: str
    memory: int
    """Bytes."""
    bfloat16: float
    """FLOP/s of dense matrix products."""
    float32: float
    """FLOP/s without tensor cores."""
    bandwidth: float
    """Bytes/s of its memory."""
    link: float
    """Bytes/s to the other GPUs of its node, one direction."""
    node: int
    """GPUs in a usual node."""
    source: str
    measured: Ceilings | None = None

    def rate(self, precision: str) -> float:
        """Return the FLOP/s of products in `bfloat16` or `float32`."""
        return self.bfloat16 if precision == "bfloat16" else self.float32


_A100 = Gpu(
    "a100",
    memory=80 * GB,
    bfloat16=312 * TERA,
    float32=19.5 * TERA,
    bandwidth=2_039 * GB,
    link=300 * GB,
    node=8,
    source="NVIDIA A100 80GB SXM data sheet",
)
_H100 = Gpu(
    "h100",
    memory=80 * GB,
    bfloat16=989 * TERA,
    float32=67 * TERA,
    bandwidth=3_350 * GB,
    link=450 * GB,
    node=8,
    source="NVIDIA H100 SXM data sheet",
)
_H200 = replace(
    _H100,
    name="h200",
    memory=141 * GB,
    bandwidth=4_800 * GB,
    source="NVIDIA H200 SXM data sheet",
    measured=Ceilings((761 * TERA, 790 * TERA), (4_240 * GB, 4_300 * GB)),
)
_B200 = Gpu(
    "b200",
    memory=180 * GB,
    bfloat16=2_250 * TERA,
    float32=80 * TERA,
    bandwidth=8_000 * GB,
    link=900 * GB,
    node=8,
    source="NVIDIA DGX B200 data sheet, an eighth of the system",
)
_L40S = Gpu(
    "l40s",
    memory=48 * GB,
    bfloat16=362 * TERA,
    float32=91.6 * TERA,
    bandwidth=864 * GB,
    link=32 * GB,
    node=8,
    source="NVIDIA L40S data sheet; PCIe 4.0 x16 instead of NVLink",
)
GPUS = {gpu.name: gpu for gpu in (_A100, _H100, _H200, _B200, _L40S)}
"""Name -> facts."""


def find_gpu(name: str) -> Gpu:
    """Return the facts about a GPU; an unknown name raises with the nearest one."""
    if name.lower() not in GPUS:
        raise unknown_name_error("GPU", name, GPUS)
    return GPUS[name.lower()]

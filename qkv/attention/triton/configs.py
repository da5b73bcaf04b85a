"""Launch configurations of each pass, as they were measured to be fastest: fixed tables instead of an autotuner.

An autotuner would choose by the clock, so that two runs could differ in their last bits.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class KernelConfig:
    """Launch configuration of one kernel."""

    block: int
    """Tokens per program, or per step of a program that accumulates a state."""
    num_warps: int
    num_stages: int
    """Loads in flight at once (software pipelining)."""
    max_registers: int | None = None
    """Maximum registers per thread; with fewer, more programs run on a multiprocessor at once."""
    key_block: int = 64
    """Tokens that a block attends to at a time."""
    feature_block: int = 32
    """Features per tile when the state is read."""

    def options(self) -> dict[str, int | None]:
        """Return the compiler options."""
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, "maxnreg": self.max_registers}


@dataclass(frozen=True, kw_only=True)
class PassConfigs:
    """Launch configurations of all passes."""

    state: KernelConfig
    output: KernelConfig
    grad_q: KernelConfig
    grad_k: KernelConfig
    grad_v: KernelConfig
    grad_state: KernelConfig
    """The sums of the backward."""
    min_programs: int = 384
    """Programs that accumulate states in parallel, at least, if the sequence is long enough: three per processor of an
    H200, and four where each has many features. Fixed, so that any GPU gives the same bits."""
    gated: "PassConfigs | None" = None
    """Those with a gate per token, if they are others; its `min_programs` is not used."""


SizeTable = Mapping[tuple[int, int], PassConfigs]
"""(largest padded key_dim, largest value block) -> configurations; the first entry that fits is taken."""


def tuned_for(table: SizeTable, block_k: int, block_v: int) -> PassConfigs:
    """Return the first entry for keys of `block_k` and values of `block_v` columns."""
    return next(found for (key_dim, value_dim), found in table.items() if block_k <= key_dim and block_v <= value_dim)


DEFAULT = PassConfigs(
    state=KernelConfig(64, 4, 3),
    output=KernelConfig(128, 8, 2),
    grad_q=KernelConfig(64, 4, 2),
    grad_k=KernelConfig(64, 4, 2),
    grad_v=KernelConfig(128, 8, 2),
    grad_state=KernelConfig(64, 4, 3),
)
"""For float32 operands, which were not measured."""
WIDE_FLOAT32 = PassConfigs(
    state=KernelConfig(32, 8, 1),
    output=KernelConfig(64, 8, 1, key_block=32),
    grad_q=KernelConfig(32, 8, 1, key_block=32, feature_block=16),
    grad_k=KernelConfig(32, 8, 1, key_block=32, feature_block=16),
    grad_v=KernelConfig(64, 8, 1, key_block=32),
    grad_state=KernelConfig(32, 8, 1),
)
"""For float32 operands of more than 64 columns, which otherwise do not fit into shared memory."""

TAYLOR_CONFIGS: SizeTable = {
    (16, 64): PassConfigs(
        state=KernelConfig(64, 4, 3, 168),
        output=KernelConfig(128, 4, 3, 168, key_block=32),
        grad_q=KernelConfig(128, 4, 3, 168, key_block=32),
        grad_k=KernelConfig(128, 4, 2, 168, key_block=32),
        grad_v=KernelConfig(128, 4, 3, 168, key_block=16),
        grad_state=KernelConfig(64, 4, 3, 168),
        gated=PassConfigs(
            state=KernelConfig(64, 4, 2, 168),
            output=KernelConfig(128, 4, 3, 168, key_block=32),
            grad_q=KernelConfig(128, 4, 3, 168, key_block=32),
            grad_k=KernelConfig(128, 4, 2, 168, key_block=32),
            grad_v=KernelConfig(128, 4, 3, 168, key_block=16),
            grad_state=KernelConfig(64, 4, 2, 168),
        ),
    ),
    (64, 64): PassConfigs(
        state=KernelConfig(64, 4, 3, 168),
        output=KernelConfig(128, 4, 3, key_block=32, feature_block=64),
        grad_q=KernelConfig(128, 4, 3, key_block=32),
        grad_k=KernelConfig(128, 4, 3, key_block=32),
        grad_v=KernelConfig(128, 4, 3, key_block=32, feature_block=64),
        grad_state=KernelConfig(128, 4, 2),
        min_programs=512,
    ),
    (16, 128): PassConfigs(
        state=KernelConfig(64, 4, 3, 168),
        output=KernelConfig(128, 4, 3, key_block=32),
        grad_q=KernelConfig(128, 4, 3, key_block=32),
        grad_k=KernelConfig(128, 4, 3, key_block=32),
        grad_v=KernelConfig(128, 4, 3, key_block=32),
        grad_state=KernelConfig(64, 4, 2, 168),
    ),
    (64, 128): PassConfigs(
        state=KernelConfig(64, 4, 3),
        output=KernelConfig(128, 4, 3, key_block=32),
        grad_q=KernelConfig(128, 4, 2, key_block=32),
        grad_k=KernelConfig(128, 4, 2, key_block=32),
        grad_v=KernelConfig(128, 4, 3, key_block=32),
        grad_state=KernelConfig(64, 4, 2, 168),
        min_programs=512,
    ),
}
"""Measured on an H200 with bfloat16, like those below."""
_WIDE_LINEAR = PassConfigs(
    state=KernelConfig(128, 8, 2),
    output=KernelConfig(64, 4, 1, 168, key_block=32),
    grad_q=KernelConfig(64, 4, 1, 168, key_block=32),
    grad_k=KernelConfig(64, 4, 1, 168, key_block=32),
    grad_v=KernelConfig(64, 4, 1, 168, key_block=32),
    grad_state=KernelConfig(128, 8, 2),
)
LINEAR_CONFIGS: SizeTable = {
    (64, 64): PassConfigs(
        state=KernelConfig(64, 4, 3),
        output=KernelConfig(64, 4, 1),
        grad_q=KernelConfig(64, 4, 1, 128),
        grad_k=KernelConfig(64, 4, 3, 128, key_block=32),
        grad_v=KernelConfig(64, 4, 1, 128),
        grad_state=KernelConfig(64, 4, 3),
        gated=PassConfigs(
            state=KernelConfig(64, 4, 3, 168),
            output=KernelConfig(64, 4, 1, 128),
            grad_q=KernelConfig(64, 4, 1, 128),
            grad_k=KernelConfig(64, 4, 1, 128),
            grad_v=KernelConfig(64, 4, 1, 128),
            grad_state=KernelConfig(128, 4, 2, 168),
        ),
    ),
    (128, 128): _WIDE_LINEAR,
}
ELU_CONFIGS: SizeTable = {
    (64, 64): PassConfigs(
        state=KernelConfig(128, 4, 2, 168),
        output=KernelConfig(64, 4, 1, 128),
        grad_q=KernelConfig(64, 4, 1, 128),
        grad_k=KernelConfig(64, 4, 1, 128),
        grad_v=KernelConfig(64, 4, 1, 128),
        grad_state=KernelConfig(128, 4, 2, 168),
    ),
    (128, 128): _WIDE_LINEAR,
}

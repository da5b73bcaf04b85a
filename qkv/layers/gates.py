"""Gates: what a layer computes from its tokens for its attention kind and its output.

    decay  = exp(a) * softplus(W x + b)            ForgetGate: a rate per token (Mamba-2, Gated DeltaNet)
    decay  = -log sigmoid(U V x + b) / 16          ChannelGate: a rate per token and channel (GLA)
    beta   = largest * sigmoid(W x)                WriteGate: the write strength of the delta rule
    output = norm(o) * silu(W x)                   OutputGate: a factor per channel of the output

A gate is a module from x (batch, time, dim) to a tensor (batch, heads, time, ...), as attention kinds take it.
Rates are summed over long sequences and then exponentiated, so gates compute in at least float32, under autocast too.
Initial values: https://arxiv.org/abs/2405.21060, https://arxiv.org/abs/2412.06464, https://arxiv.org/abs/2312.06635.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from qkv.attention import Attention
from qkv.attention.internal.precision import no_autocast, upcast
from qkv.cost import Cost, Span, linear
from qkv.shapes import Hidden

MAX_FACTOR = 16.0
"""Largest initial factor exp(a) of a forget gate; the initial ones are uniform."""
MIN_FACTOR = 1e-3
"""Smallest initial factor exp(a): its logarithm is learned, and 0 has none."""
STEP_RANGE = (0.001, 0.1)
"""Range of softplus(b) of a new forget gate, log-uniform."""
CHANNEL_DIVISOR = 16.0
"""Divisor of the rates of a channel gate: without it, a new layer forgets half of its state at every token."""


class Gate(nn.Module, ABC):
    """A tensor per token, head and perhaps channel, computed from the tokens (batch, time, dim)."""

    gives: ClassVar[str]
    """What an attention kind must accept: "gate", "channel_gate" or "beta"; "output" if the kind does not see it."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.dim = _positive("dim", dim)
        self.heads = _positive("heads", heads)

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes that must be those of the layer, by name."""
        return {"dim": self.dim, "heads": self.heads}

    @abstractmethod
    def forward(self, x: Hidden) -> Tensor:
        """Return the values (batch, heads, time, ...) in at least float32."""

    @abstractmethod
    def cost(self, span: Span) -> Cost:
        """Return the multiplications and parameters at this span."""


class ForgetGate(Gate):
    """A decay rate per token and head: exp(a) * softplus(W x + b)."""

    gives = "gate"

    def __init__(self, dim: int, heads: int):
        super().__init__(dim, heads)
        self.rate = nn.Linear(dim, heads)
        factors = (torch.rand(heads) * MAX_FACTOR).clamp(min=MIN_FACTOR)
        self.log_factor = nn.Parameter(factors.log())
        low, high = map(math.log, STEP_RANGE)
        steps = torch.exp(torch.rand(heads) * (high - low) + low)
        with torch.no_grad():
            self.rate.bias.copy_(steps + torch.log(-torch.expm1(-steps)))  # the inverse of softplus

    def forward(self, x: Hidden) -> Tensor:
        """Return `decay` (batch, heads, time)."""
        with no_autocast(x):
            rates = functional.softplus(_project(self.rate, x)) * upcast(self.log_factor).exp()
        return rates.transpose(1, 2)

    def cost(self, span: Span) -> Cost:
        """Return the cost of the projection, and the factor of each head."""
        factors = Cost(parameters={"log_factor": self.log_factor.numel()})
        return linear(self.rate, span.tokens).within("rate") + factors


class ChannelGate(Gate):
    """A decay rate per token, head and channel: -log sigmoid(U V x + b) / 16, where V x has `rank` channels."""

    gives = "channel_gate"

    def __init__(self, dim: int, heads: int, key_dim: int, *, rank: int = 16):
        super().__init__(dim, heads)
        self.key_dim = _positive("key_dim", key_dim)
        self.down = nn.Linear(dim, _positive("rank", rank), bias=False)
        self.up = nn.Linear(rank, heads * key_dim)

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes that must be those of the layer, by name."""
        return {**super().sizes, "key_dim": self.key_dim}

    def forward(self, x: Hidden) -> Tensor:
        """Return `decay` (batch, heads, time, key_dim)."""
        with no_autocast(x):
            rates = -functional.logsigmoid(_project(self.up, _project(self.down, x))) / CHANNEL_DIVISOR
        return rates.unflatten(-1, (self.heads, self.key_dim)).transpose(1, 2)

    def cost(self, span: Span) -> Cost:
        """Return the cost of the two projections."""
        return linear(self.down, span.tokens).within("down") + linear(self.up, span.tokens).within("up")


class WriteGate(Gate):
    """The write strength per token and head: largest * sigmoid(W x).

    With largest=2 a strength may exceed 1, and the state then changes its sign along a key (negative eigenvalues), so a
    layer can track a state such as parity: https://arxiv.org/abs/2411.12537.
    """

    gives = "beta"

    def __init__(self, dim: int, heads: int, *, largest: float = 1.0):
        super().__init__(dim, heads)
        if isinstance(largest, bool) or not isinstance(largest, int | float):
            raise TypeError(f"largest must be a number, got {largest!r}")
        if not 0 < largest <= 2:
            raise ValueError(f"largest must be above 0 and at most 2, got {largest}")
        self.largest = largest
        self.strength = nn.Linear(dim, heads, bias=False)

    def forward(self, x: Hidden) -> Tensor:
        """Return `beta` (batch, heads, time)."""
        with no_autocast(x):
            strengths = self.largest * _project(self.strength, x).sigmoid()
        return strengths.transpose(1, 2)

    def cost(self, span: Span) -> Cost:
        """Return the cost of the projection."""
        return linear(self.strength, span.tokens).within("strength")

    def extra_repr(self) -> str:
        """Return the largest strength."""
        return f"largest={self.largest:g}"


class OutputGate(Gate):
    """A factor per channel of each head's output, after its norm: silu(W x)."""

    gives = "output"

    def __init__(self, dim: int, heads: int, value_dim: int):
        super().__init__(dim, heads)
        self.value_dim = _positive("value_dim", value_dim)
        self.factor = nn.Linear(dim, heads * value_dim, bias=False)

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes that must be those of the layer, by name."""
        return {**super().sizes, "value_dim": self.value_dim}

    def forward(self, x: Hidden) -> Tensor:
        """Return the factors (batch, heads, time, value_dim)."""
        with no_autocast(x):
            factors = functional.silu(_project(self.factor, x))
        return factors.unflatten(-1, (self.heads, self.value_dim)).transpose(1, 2)

    def cost(self, span: Span) -> Cost:
        """Return the cost of the projection."""
        return linear(self.factor, span.tokens).within("factor")


class Gates(nn.Module):
    """The gates of one multi-head layer, each of which may be None.

    `forget` gives `decay`, `write` gives `beta`, and `output` the factors of the output. The heads of `forget` and
    `write` are those of the queries or, with grouped queries, those of the keys.
    """

    def __init__(self, *, forget: Gate | None = None, write: Gate | None = None, output: Gate | None = None):
        super().__init__()
        for name, gate in (("forget", forget), ("write", write), ("output", output)):
            if gate is not None and (not isinstance(gate, Gate) or gate.gives not in _ROLES[name]):
                raise TypeError(f"{name} must be a {_EXAMPLES[name]}, got {type(gate).__name__}")
        self.forget = forget
        self.write = write
        self.output = output

    @property
    def rate_heads(self) -> int:
        """Heads of the gates that act on the state; 0 if none does."""
        return max((gate.heads for gate in (self.forget, self.write) if gate is not None), default=0)

    @property
    def per_channel(self) -> bool:
        """Whether the forget gate has a rate per channel."""
        return self.forget is not None and self.forget.gives == "channel_gate"

    def modifiers(self, x: Hidden) -> dict[str, Tensor]:
        """Return `decay` and `beta` as an attention kind takes them, as far as there are gates for them."""
        gates = {"decay": self.forget, "beta": self.write}
        return {name: gate(x) for name, gate in gates.items() if gate is not None}

    def check(self, attention: Attention, sizes: Mapping[str, Collection[int]]) -> None:
        """Raise if the attention kind does not accept a gate, or if a size is none of those of the layer."""
        for gate in (self.forget, self.write, self.output):
            if gate is None:
                continue
            name = type(gate).__name__
            if gate.gives not in attention.accepts | {"output"}:
                raise ValueError(f"attention kind {attention.kind!r} does not accept {name}; {_ADVICE[gate.gives]}")
            for size, value in gate.sizes.items():
                allowed = sizes["query_heads" if gate.gives == "output" and size == "heads" else size]
                if value not in allowed:
                    fitting = " or ".join(map(str, dict.fromkeys(allowed)))
                    raise ValueError(f"{name} has {size}={value}, but its MultiHead has {size}={fitting}")

    def cost(self, span: Span) -> Cost:
        """Return the sum of the gates."""
        total = Cost()
        for name, gate in (("forget", self.forget), ("write", self.write), ("output", self.output)):
            if gate is not None:
                total += gate.cost(span).within(name)
        return total


_ROLES = {"forget": ("gate", "channel_gate"), "write": ("beta",), "output": ("output",)}
_EXAMPLES = {"forget": "ForgetGate or ChannelGate", "write": "WriteGate", "output": "OutputGate"}
_ADVICE = {
    "gate": "use a kind with gates per token, such as linear, taylor, delta or softmax",
    "channel_gate": "use ForgetGate, or the kinds linear and delta",
    "beta": "leave it out, or use the kind delta",
}
"""Capability -> what to use instead of a kind without it."""


def _positive(name: str, size: int) -> int:
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"{name} must be an integer, got {size!r}")
    if size < 1:
        raise ValueError(f"{name} must be at least 1, got {size}")
    return size


def _project(layer: nn.Module, x: Tensor) -> Tensor:
    """Return layer(x) in the precision of its weights, then at least float32."""
    weight = next((w for w in layer.parameters() if w.is_floating_point()), x)
    return upcast(layer(x.to(weight.dtype)))

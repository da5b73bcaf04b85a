"""Calls of every attention kind with everything it accepts, and the parts that they are split into."""

from dataclasses import dataclass, field

import torch

from qkv.attention import parse

BATCH, KEY_DIM, VALUE_DIM = 2, 6, 5


@dataclass(frozen=True)
class Call:
    """One attention call; `modifiers` names what is given besides q, k and v."""

    kind: str
    modifiers: frozenset = frozenset()
    causal: bool = True
    heads: int = 2
    key_heads: int = 2
    time: int = 37

    @property
    def name(self):
        direction = "" if self.causal else " bidirectional"
        sizes = f"{self.heads}:{self.key_heads} heads, {self.time} tokens"
        return f"{self.kind}{direction}, {sizes}, {' + '.join(sorted(self.modifiers)) or 'plain'}"


def _calls(kind, *modifiers, **options):
    return [Call(kind, frozenset(given.split()), **options) for given in modifiers]


FADING = ("", "decay", "weak_gate", "strong_gate", "starts", "mask", "strong_gate starts mask", "decay starts mask")
CHANNELS = ("weak_channels", "strong_channels starts mask")
CALLS = [
    *_calls("softmax", "", "weak_gate", "strong_gate starts mask", "starts", "mask", "bias", "bias mask starts"),
    *_calls("softmax(window=5)", "", "strong_gate starts mask", "bias mask"),
    *_calls("softmax(window=11)", "", "weak_gate"),
    *_calls("additive", "", "starts mask", "bias"),
    *_calls("linear(chunk=5)", *FADING, *CHANNELS),
    *_calls("elu(chunk=5)", *FADING),
    *_calls("taylor(chunk=5)", *FADING),
    *_calls("delta(chunk=5)", *FADING, *CHANNELS, "beta", "beta strong_gate starts mask", "beta strong_channels"),
    *(
        call
        for kind in ("softmax", "additive", "linear", "elu", "taylor")
        for call in _calls(kind, "", "mask", causal=False, heads=4)
    ),
    *_calls("softmax", "bias mask", causal=False),
    *_calls("softmax", "strong_gate starts", heads=4, key_heads=2),
    *_calls("linear", "decay", "key_gate mask", "strong_gate", heads=4, key_heads=2),
    *_calls("taylor", "", "decay mask", "key_gate starts", heads=4, key_heads=2),
    *_calls("delta", "beta decay", "key_beta key_gate starts", "beta strong_channels mask", heads=4, key_heads=2),
    *(call for kind in ("softmax(window=3)", "taylor", "delta") for call in _calls(kind, "starts mask", time=3)),
]


@dataclass
class Inputs:
    """Tensors of a call over the whole sequence, in float64."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    modifiers: dict = field(default_factory=dict)
    axes: dict = field(default_factory=dict)
    """Axis of the tokens of each modifier; none for a rate per head."""

    def part(self, start, end, causal):
        """Return the tensors of the tokens from `start` to `end`, as leaves that gradients arrive at."""
        q, k, v = (x[:, :, start:end].detach().clone().requires_grad_() for x in (self.q, self.k, self.v))
        given = {}
        for name, x in self.modifiers.items():
            piece = x if name not in self.axes else x.narrow(self.axes[name], start, end - start)
            if name == "bias" and causal:
                piece = piece[..., :end]
            given[name] = piece.detach().clone().requires_grad_(piece.is_floating_point())
        return Inputs(q, k, v, given, self.axes)

    @property
    def leaves(self):
        given = {name: x for name, x in self.modifiers.items() if x.is_floating_point()}
        return {"q": self.q, "k": self.k, "v": self.v, **given}


def build(call):
    """Return the attention kind of a call."""
    torch.manual_seed(3)
    return parse(call.kind, key_dim=KEY_DIM).double()


def make(call):
    """Return the inputs of a call; the same at every process."""
    draw = torch.Generator().manual_seed(sum(map(ord, call.name)))

    def normal(*sizes):
        return torch.randn(*sizes, dtype=torch.float64, generator=draw)

    def uniform(*sizes):
        return torch.rand(*sizes, dtype=torch.float64, generator=draw)

    heads, key_heads, time = call.heads, call.key_heads, call.time
    q = normal(BATCH, heads, time, KEY_DIM)
    k, v = normal(BATCH, key_heads, time, KEY_DIM), normal(BATCH, key_heads, time, VALUE_DIM)
    # strong gates are mostly closed (exp(-50)), but some tokens fade little
    strong = 50.0 * uniform(BATCH, heads, time, KEY_DIM) ** 6
    options = {
        "decay": ("decay", 0.3 * uniform(heads), None),
        "weak_gate": ("decay", 0.02 * uniform(BATCH, heads, time), 2),
        "key_gate": ("decay", uniform(BATCH, key_heads, time), 2),
        "strong_gate": ("decay", strong[..., 0], 2),
        "weak_channels": ("decay", 0.02 * uniform(BATCH, heads, time, KEY_DIM), 2),
        "strong_channels": ("decay", strong, 2),
        "beta": ("beta", 2 * uniform(BATCH, heads, time), 2),
        "key_beta": ("beta", 2 * uniform(BATCH, key_heads, time), 2),
        "starts": ("starts", uniform(BATCH, time) < 0.08, 1),
        "mask": ("mask", uniform(BATCH, time) < 0.8, 1),
        "bias": ("bias", normal(1, heads, time, time), 2),
    }
    chosen = [options[name] for name in sorted(call.modifiers)]
    modifiers = {name: x for name, x, _ in chosen}
    return Inputs(q, k, v, modifiers, {name: axis for name, _, axis in chosen if axis is not None})


def part_lengths(time, parts):
    """Return uneven lengths of the parts, which add up to `time`; one is empty where there are few tokens."""
    shares = [2, 3, 0.2, 1.5][:parts]
    lengths = [int(time * share / sum(shares)) for share in shares]
    return [*lengths[:-1], time - sum(lengths[:-1])]

"""One input and its attention matrices, from a model of this library or from given tensors."""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from qkv.attention import Attention
from qkv.attention.internal.precision import upcast
from qkv.cancellation import check_canceled
from qkv.explain import AttentionRecord


@dataclass(frozen=True)
class SiteDescription:
    """An attention site as the page shows it."""

    name: str
    rows: str
    """Sequence of the queries; a key of `ViewModel.tokens`."""
    columns: str
    """Sequence of the keys."""
    heads: int
    kind: str
    causal: bool
    normalizes: bool
    """Whether each row should sum to 1."""
    bias: bool = False
    """Whether positions add to the scores."""
    decay: bool = False
    """Whether a factor decays the weights: that of the positions, or that of a gate per token."""
    gate: str = ""
    """What else decays the weights than positions: "token" for a gate per token, "channel" for one per channel."""
    law: dict[str, Any] | None = field(default=None)
    """`Law` of the kind; None if only the matrix is known."""


@dataclass(frozen=True)
class WeightsCheck:
    """Comparison of displayed attention weights with the model's output."""

    fast_path_error: float | None
    """max |weights @ v - output of the model's fast form|; None if only the matrix is known."""
    scale: float | None
    """score = scale q.k; None if scores are not scaled dot products."""
    vectors: dict[str, Tensor]
    """q and k of this head, for the scores; empty if they are not known."""


class ViewModel(ABC):
    """Everything that can be shown about one input."""

    tokens: dict[str, list[str]]
    """Axis labels: one list per sequence."""
    sites: list[SiteDescription]
    records: list[AttentionRecord]
    """Recorded forward pass, one per site; empty if only matrices are known."""
    notes: list[str]
    """Remarks about the input, for the reader."""
    code: list[str]
    """Lines of Python after which `records` is the result of `observe`."""

    @abstractmethod
    def weights(self, site: int, head: int) -> Tensor:
        """Return the (queries, keys) matrix of one head."""

    @abstractmethod
    def check(self, site: int, head: int, weights: Tensor) -> WeightsCheck:
        """Verify these weights as far as possible."""

    def gates(self, site: int, head: int) -> dict[str, Tensor]:
        """Return the gates of one head by token, as far as it has some: `kept`, from 0 to 1, and `beta`."""
        return {}

    def mean(self, site: int) -> Tensor:
        """Return the mean over the heads of a site, holding only two matrices at a time."""
        heads = self.sites[site].heads
        total = self.weights(site, 0)
        for head in range(1, heads):
            total = total + self.weights(site, head)
        return total / heads


class ModelViewModel(ViewModel):
    """A recorded forward pass of a model."""

    def __init__(self, records: list[AttentionRecord], tokens: dict[str, list[str]], notes: list[str], code: list[str]):
        self.records = records
        self.tokens = tokens
        self.notes = notes
        self.code = code
        self.sites = [_describe(record) for record in records]

    def weights(self, site: int, head: int) -> Tensor:
        """Compute the definition from the q and k of the pass."""
        check_canceled()
        with torch.no_grad():
            return self.records[site].head(head).weights()[0, 0]

    def gates(self, site: int, head: int) -> dict[str, Tensor]:
        """Return `kept` = exp(-decay), (tokens,) or (tokens, channels), and `beta` (tokens,)."""
        options = self.records[site].head(head).options
        found = {}
        if _gate(options.get("decay")):
            found["kept"] = (-options["decay"].detach()[0, 0]).exp()
        if options.get("beta") is not None:
            found["beta"] = options["beta"].detach()[0, 0]
        return found

    def check(self, site: int, head: int, weights: Tensor) -> WeightsCheck:
        """Compare weights @ v with the fast form; return the vectors that the scores come from."""
        call = self.records[site].head(head)
        error = float((upcast(weights) @ upcast(call.v[0, 0]) - upcast(call.output[0, 0])).abs().max())
        scale = call.attention.score_scale(call.q.shape[-1])
        vectors = {} if scale is None else {"q": call.q[0, 0], "k": call.k[0, 0]}
        return WeightsCheck(error, scale, vectors)


def _gate(decay: Tensor | None) -> str:
    return "" if decay is None else {3: "token", 4: "channel"}.get(decay.dim(), "")


def law_record(attention: Attention) -> dict[str, Any]:
    """Return the kind's law as JSON data."""
    return asdict(attention.law)


def _describe(record: AttentionRecord) -> SiteDescription:
    attention = record.site.attention
    options = record.call.options
    gate = _gate(options.get("decay"))
    return SiteDescription(
        record.site.name,
        record.site.rows,
        record.site.columns,
        record.heads,
        attention.kind,
        causal=bool(options.get("causal", False)),
        normalizes=attention.normalizes,
        bias=options.get("bias") is not None,
        decay=options.get("decay") is not None and gate != "channel" and not attention.law.decay_note,
        gate=gate,
        law=law_record(attention),
    )

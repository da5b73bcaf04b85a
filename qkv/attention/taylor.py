"""Taylor attention: softmax attention with exp replaced by its Taylor polynomial.

    similarity(q, k) = sum_(n <= order) x^n / n!,    x = scale q.k,    scale = key_dim^-0.5

A polynomial of a dot product is itself a dot product of features, so keys and values sum into a
recurrent state of fixed size: linear in length, where softmax is quadratic. An even order is positive
everywhere (at least 1/2 for order 2), so the output is a true mean and no epsilon is needed.
Paper: https://arxiv.org/abs/2402.18668.
"""

from functools import lru_cache
from itertools import combinations_with_replacement
from math import comb, factorial

import torch
from torch import Tensor
from torch.nn import functional

from qkv.attention.base import check_backend, check_chunk, check_integer, register
from qkv.attention.feature_map import FeatureMap
from qkv.attention.law import Law
from qkv.attention.triton.kinds import TAYLOR
from qkv.shapes import Features, KernelMatrix, KeyRows, QueryRows, Vectors

MAX_ORDER = 32
"""Highest order: with key_dim=4 it already has 58,905 features."""


@register("taylor")
class Taylor(FeatureMap):
    """Attention weighted by an even Taylor polynomial of the scores."""

    accepts = frozenset({"decay", "gate", "rotation"})
    backends = (*FeatureMap.backends, "triton")
    triton = TAYLOR
    typical_key_dim = 16
    variants = ("taylor(order=4)",)

    def __init__(self, order: int = 2, *, scale: float | None = None, chunk: int | None = None, backend: str = "auto"):
        super().__init__()
        if check_integer("order", order) < 2 or order % 2:
            raise ValueError(f"order must be even and at least 2, so that weights are positive, got {order}")
        if order > MAX_ORDER:
            raise ValueError(f"order must be at most {MAX_ORDER}, got {order}")
        self.order = order
        # cancellation in phi(q).phi(k) grows with the order
        self.precision = 1e-12 if order == 2 else 1e-10
        self.scale = scale
        self.chunk = check_chunk(chunk)
        self.backend = check_backend("taylor", backend, self.backends)

    def similarity(self, q: QueryRows, k: KeyRows) -> KernelMatrix:
        """Return 1 + x (1 + x/2 (1 + x/3 (...))), x = q.k"""
        x = q @ k.transpose(-1, -2)
        one = x.new_ones(())
        total = torch.add(one, x, alpha=1 / self.order)
        for n in range(self.order - 1, 0, -1):
            total = torch.addcmul(one, x, total, value=1 / n)
        return total

    def features(self, x: Vectors) -> Features:
        """Return the packed symmetric features."""
        return taylor_features(x, self.order)

    def feature_dim(self, key_dim: int) -> int:
        """Return C(key_dim + order, order), the number of monomials of degree at most `order`."""
        return comb(key_dim + self.order, self.order)

    def default_scale(self, key_dim: int) -> float:
        """Return key_dim^-0.5."""
        return key_dim**-0.5

    def score_scale(self, key_dim: int) -> float:
        """Return `scale`; default: `default_scale`."""
        return self.default_scale(key_dim) if self.scale is None else float(self.scale)

    @property
    def law(self) -> Law:
        """The Taylor polynomial of exp."""
        powers = [rf"\frac{{s^{{{n}}}}}{{{factorial(n)}}}" for n in range(2, min(self.order, 4) + 1)]
        more = [r"\dots"] if self.order > 4 else []
        return Law(
            "polynomial",
            " + ".join(["1", "s", *powers, *more]),
            f"The Taylor polynomial of order {self.order} replaces exp. An even order is positive everywhere.",
            taylor_order=self.order,
        )

    def weigh_scores(self, scores: Tensor) -> Tensor:
        """Return sum_(n <= order) s^n / n!"""
        return torch.stack([scores**n / factorial(n) for n in range(self.order + 1)]).sum(0)

    @classmethod
    def example(cls, key_dim: int) -> "Taylor":
        """Build one of order 2 with short chunks, so that short sequences have several."""
        return cls(chunk=5)


def taylor_features(x: Vectors, order: int) -> Features:
    """Return phi(x), with phi(q).phi(k) = sum_(n <= order) (q.k)^n / n!, each monomial of x once.

    (q.k)^n / n! is the sum over multisets m of n indices of q^m k^m / prod(m_i!), m_i the multiplicities.
    The monomials of degree <= order in x are those of degree = order in (x, 1), so each degree is one
    product of two gathers from the degree below. The r-th factor of a variable is x / sqrt(r), which
    gives prod(m_i!)^-0.5. The constant comes last: it is the largest term of most sums, and rounding
    is smallest when small terms are added first. Odd orders work too.
    """
    if order < 0:
        raise ValueError(f"order must be at least 0, got {order}")
    if x.dim() == 1:
        return taylor_features(x[None], order)[0]
    repeated = torch.cat([x[..., :0], *(x * r**-0.5 for r in range(1, order + 1))], -1)
    # feature-major, so that a gather copies whole rows of tokens
    variables = functional.pad(repeated.transpose(-1, -2), (0, 0, 0, 1), value=1.0)
    monomials = variables
    # cached only for real tensors: tables made while torch traces with fake tensors would be fake, too
    cached = type(x) is Tensor and not torch.compiler.is_compiling()
    for parents, lasts in (_cached_tables if cached else _tables)(x.shape[-1], order, x.device):
        monomials = monomials.index_select(-2, parents) * variables.index_select(-2, lasts)
    return monomials.transpose(-1, -2)


def _tables(key_dim: int, order: int, device: torch.device) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return, for each degree from 2, the indices (monomial of the degree below, variable) to multiply.

    Variable (r - 1) key_dim + i is the r-th factor of x_i; the last variable is the constant 1.
    """
    constant = order * key_dim
    tables = []
    position: dict[tuple[int, ...], int] = {(i,): i for i in range(key_dim)}
    position[key_dim,] = constant
    for degree in range(2, order + 1):
        monomials = list(combinations_with_replacement(range(key_dim + 1), degree))
        lasts = [constant if m[-1] == key_dim else (m.count(m[-1]) - 1) * key_dim + m[-1] for m in monomials]
        parents = [position[m[:-1]] for m in monomials]
        with torch.inference_mode(False):  # cached for later calls, which may need gradients
            tables.append((torch.tensor(parents, device=device), torch.tensor(lasts, device=device)))
        position = {m: i for i, m in enumerate(monomials)}
    return tuple(tables)


_cached_tables = lru_cache(maxsize=32)(_tables)

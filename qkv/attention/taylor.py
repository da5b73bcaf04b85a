"""Taylor attention: softmax attention with exp replaced by its Taylor polynomial.

    similarity(q, k) = sum_(n <= order) x^n / n!,    x = scale q.k,    scale = key_dim^-0.5

A polynomial of a dot product is itself a dot product of features, so keys and values fold into a
memory of fixed size: linear in length, where softmax is quadratic. An even order is positive
everywhere (at least 1/2 for order 2), so the weights are a true mean and no epsilon is needed.
Paper: https://arxiv.org/abs/2402.18668.
"""

from functools import lru_cache
from itertools import combinations_with_replacement
from math import comb

import torch
from torch import Tensor
from torch.nn import functional

from qkv.attention.base import check_backend, check_chunk, check_whole, register
from qkv.attention.feature_map import FeatureMap
from qkv.shapes import Answering, Asking, Features, Similarities, Vectors


@register("taylor")
class Taylor(FeatureMap):
    """Attention weighted by an even Taylor polynomial of the scores."""

    accepts = frozenset({"decay", "rotation"})
    backends = (*FeatureMap.backends, "triton")
    typical_key_dim = 16

    def __init__(self, order: int = 2, *, scale: float | None = None, chunk: int | None = None, backend: str = "auto"):
        super().__init__()
        if check_whole("order", order) < 2 or order % 2:
            raise ValueError(f"order must be even and at least 2, or weights could be negative; got {order}")
        self.order = order
        # phi(q).phi(k) cancels more the higher the powers in it
        self.precision = 1e-12 if order == 2 else 1e-10
        self.scale = scale
        self.chunk = check_chunk(chunk)
        self.backend = check_backend("taylor", backend, self.backends)

    def similarity(self, q: Asking, k: Answering) -> Similarities:
        """1 + x (1 + x/2 (1 + x/3 (...))), x = q.k"""
        x = q @ k.transpose(-1, -2)
        one = x.new_ones(())
        total = torch.add(one, x, alpha=1 / self.order)
        for n in range(self.order - 1, 0, -1):
            total = torch.addcmul(one, x, total, value=1 / n)
        return total

    def features(self, x: Vectors) -> Features:
        """The packed symmetric features."""
        return taylor_features(x, self.order)

    def feature_dim(self, key_dim: int) -> int:
        """C(key_dim + order, order): monomials of degree at most `order`."""
        return comb(key_dim + self.order, self.order)

    def default_scale(self, key_dim: int) -> float:
        """key_dim^-0.5"""
        return key_dim**-0.5

    @classmethod
    def example(cls, key_dim: int) -> "Taylor":
        """Order 2 in short chunks, so that short sequences have several."""
        return cls(chunk=5)


def taylor_features(x: Vectors, order: int) -> Features:
    """phi with phi(q).phi(k) = sum_(n <= order) (q.k)^n / n!, each monomial of x once.

    (q.k)^n / n! is the sum over multisets m of n indices of q^m k^m / prod(m_i!), m_i the multiplicities.
    The monomials of degree <= order in x are those of degree = order in (x, 1), so each degree is one
    product of two gathers from the degree below. The r-th time a variable enters, it enters as
    x / sqrt(r): that makes prod(m_i!)^-0.5. The constant comes last: it is the largest term of most
    sums, and rounding is smallest when small terms are added first. Any order, odd ones too.
    """
    if order < 0:
        raise ValueError(f"order must be at least 0, got {order}")
    if x.dim() == 1:
        return taylor_features(x[None], order)[0]
    repeated = torch.cat([x[..., :0], *(x * r**-0.5 for r in range(1, order + 1))], -1)
    # feature-major inside: a gather then copies whole rows of tokens
    variables = functional.pad(repeated.transpose(-1, -2), (0, 0, 0, 1), value=1.0)
    monomials = variables
    # kept only for real tensors: tables made while torch rehearses with fake ones would be fake, too
    tables = _tables if type(x) is Tensor else _tables.__wrapped__
    for parents, lasts in tables(x.shape[-1], order, x.device):
        monomials = monomials.index_select(-2, parents) * variables.index_select(-2, lasts)
    return monomials.transpose(-1, -2)


@lru_cache(maxsize=32)
def _tables(key_dim: int, order: int, device: torch.device) -> tuple[tuple[Tensor, Tensor], ...]:
    """For each degree from 2: which monomial of the degree below, times which variable.

    Variable (r - 1) key_dim + i is x_i entering for the r-th time, the last one is the constant 1.
    """
    constant = order * key_dim
    tables = []
    position: dict[tuple[int, ...], int] = {(i,): i for i in range(key_dim)}
    position[key_dim,] = constant
    for degree in range(2, order + 1):
        monomials = list(combinations_with_replacement(range(key_dim + 1), degree))
        lasts = [constant if m[-1] == key_dim else (m.count(m[-1]) - 1) * key_dim + m[-1] for m in monomials]
        parents = [position[m[:-1]] for m in monomials]
        with torch.inference_mode(False):  # kept for later calls, which may need gradients
            tables.append((torch.tensor(parents, device=device), torch.tensor(lasts, device=device)))
        position = {m: i for i, m in enumerate(monomials)}
    return tuple(tables)

"""Taylor attention of order 2 on a GPU: what its kernels compute of a score, and of a key.

    weight(s) = 1 + s + s^2 / 2,    slope(s) = 1 + s
    feature_f(x) = (x_i + b_f) (x_j + c_f)

A tensor core picks x_i and x_j for all features at once, as products with matrices of zeros and ones: exact, and
the result is where the next product wants it. b and c are 1 in place of a missing x and else 0. Products of two numbers
come first, then the numbers themselves and 1: most tiles are `PURE` and add nothing. The weights of
`taylor_features` and the scale are the same for all tokens, so a memory is multiplied by them once, when it is made.
"""

from functools import lru_cache
from itertools import combinations_with_replacement

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional


@triton.jit
def weight(product, scale):
    """1 + s + s^2 / 2 of s = scale * product."""
    return 1.0 + product * (scale + product * (0.5 * scale * scale))


@triton.jit
def slope(product, scale):
    """Its derivative by the product."""
    return scale + product * (scale * scale)


@triton.jit
def chosen(places, first, second, biases, KEY_SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """What picks the two numbers of a tile of features, a row for each, and what is added to them."""
    at = tl.arange(0, KEY_SIZE)[None, :] * WIDTH + places[:, None]
    return tl.load(first + at), tl.load(second + at), tl.load(biases + places), tl.load(biases + WIDTH + places)


@triton.jit
def turned(
    x, one, two, b, c, places, scale,
    KEY_DIM: tl.constexpr, KEY_SIZE: tl.constexpr, TYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of features by what was `chosen`, turned round (features, tokens), float32."""
    x = tl.trans(x.to(TYPE))
    picked = tl.dot(one, x, input_precision=PRECISION) + b[:, None]
    return picked * (tl.dot(two, x, input_precision=PRECISION) + c[:, None])


@triton.jit
def _picked(x, table, features, KEY_SIZE: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr):
    """x_i for each feature: (tokens, features)."""
    at = tl.arange(0, KEY_SIZE)[:, None] * WIDTH + features[None, :]
    return tl.dot(x, tl.load(table + at), input_precision=PRECISION)


@triton.jit
def _pair(
    x, places, first, second, biases, PURE: tl.constexpr,
    KEY_SIZE: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The two factors of a tile of features, float32."""
    one = _picked(x, first, places, KEY_SIZE, WIDTH, PRECISION)
    two = _picked(x, second, places, KEY_SIZE, WIDTH, PRECISION)
    if not PURE:
        one, two = one + tl.load(biases + places)[None, :], two + tl.load(biases + WIDTH + places)[None, :]
    return one, two


@triton.jit
def features(
    x, places, first, second, biases, scale, PURE: tl.constexpr,
    KEY_DIM: tl.constexpr, KEY_SIZE: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of features, float32."""
    one, two = _pair(x, places, first, second, biases, PURE, KEY_SIZE, WIDTH, PRECISION)
    return one * two


@triton.jit
def pull(
    total, x, wanted, places, first, second, biases, PURE: tl.constexpr,
    KEY_SIZE: tl.constexpr, WIDTH: tl.constexpr, TYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of x from that of a tile of its features, added to `total`."""
    one, two = _pair(x, places, first, second, biases, PURE, KEY_SIZE, WIDTH, PRECISION)
    back = tl.arange(0, KEY_SIZE)[None, :] * WIDTH + places[:, None]
    total = tl.dot((wanted * two).to(TYPE), tl.load(first + back), total, input_precision=PRECISION)
    return tl.dot((wanted * one).to(TYPE), tl.load(second + back), total, input_precision=PRECISION)


@lru_cache(maxsize=32)
def pairs(key_dim: int) -> list[tuple[int, int, int]]:
    """The two numbers of each feature, `key_dim` for a missing one, and its place in `taylor_features`."""
    found = [(one, two, place) for place, (one, two) in enumerate(combinations_with_replacement(range(key_dim + 1), 2))]
    return sorted(found, key=lambda feature: (feature[0] == key_dim) + (feature[1] == key_dim))


@lru_cache(maxsize=32)
def tables(
    key_dim: int, key_size: int, width: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """The two choices (key_size, width), and what is added to each (2, width)."""
    picks, biases = torch.zeros(2, key_size, width), torch.zeros(2, width)
    for place, (one, two, _) in enumerate(pairs(key_dim)):
        for side, index in enumerate((one, two)):
            if index == key_dim:
                biases[side, place] = 1.0
            else:
                picks[side, index, place] = 1.0
    first, second = picks.to(device, dtype)
    return first, second, biases.to(device)


@lru_cache(maxsize=64)
def weights(key_dim: int, scale: float, device: torch.device) -> Tensor:
    """What `taylor_features` of tokens with this scale have in front of each feature, in our order."""
    degrees = [2 - (one == key_dim) - (two == key_dim) for one, two, _ in pairs(key_dim)]
    halves = [0.5**0.5 if one == two < key_dim else 1.0 for one, two, _ in pairs(key_dim)]
    exact = torch.tensor(halves, dtype=torch.float64) * torch.tensor([scale**d for d in degrees], dtype=torch.float64)
    return exact.to(device, torch.float32)


@lru_cache(maxsize=64)
def memory_weights(key_dim: int, scale: float, width: int, device: torch.device) -> Tensor:
    """Those of a key and a query together, and nothing beyond the last feature."""
    both = weights(key_dim, 1.0, device) * weights(key_dim, scale, device)
    return functional.pad(both, (0, width - len(both)))


@lru_cache(maxsize=32)
def order(key_dim: int, device: torch.device) -> Tensor:
    """The place in `taylor_features` of each of our features."""
    return torch.tensor([place for _, _, place in pairs(key_dim)], device=device)

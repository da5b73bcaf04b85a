"""Taylor attention of order 2 on a GPU: what its kernels compute of a score, and of a key.

    weight(s) = 1 + s + s^2 / 2,    slope(s) = 1 + s
    feature_f(x) = (u_f x_i + v_f) (x_j + w_f)

A tensor core picks x_i and x_j for all features at once, as products with matrices of zeros and ones: exact, and
the result is where the next product wants it. The constants hold the weights of `taylor_features` and the scale:
u = c scale^2, v = u b_i / scale, w = b_j / scale, where b is 1 in place of a missing x and c is 2^-1/2 for a square.
"""

from functools import lru_cache
from itertools import combinations_with_replacement

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def weight(score):
    """1 + s + s^2 / 2."""
    return 1.0 + score * (1.0 + 0.5 * score)


@triton.jit
def slope(score):
    """Its derivative."""
    return 1.0 + score


@triton.jit
def _picked(
    x, table, features, TURNED: tl.constexpr, KEY_SIZE: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr
):
    """x_i for each feature: (tokens, features), or turned round (features, tokens)."""
    dims = tl.arange(0, KEY_SIZE)
    if TURNED:
        chosen = tl.load(table + dims[None, :] * WIDTH + features[:, None])
        picked = tl.dot(chosen, tl.trans(x), input_precision=PRECISION)
    else:
        chosen = tl.load(table + dims[:, None] * WIDTH + features[None, :])
        picked = tl.dot(x, chosen, input_precision=PRECISION)
    return picked


@triton.jit
def features(
    x, places, first, second, terms, scale, TURNED: tl.constexpr,
    KEY_DIM: tl.constexpr, KEY_SIZE: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of features, float32."""
    u, v, w = tl.load(terms + places), tl.load(terms + WIDTH + places), tl.load(terms + 2 * WIDTH + places)
    one = _picked(x, first, places, TURNED, KEY_SIZE, WIDTH, PRECISION)
    two = _picked(x, second, places, TURNED, KEY_SIZE, WIDTH, PRECISION)
    if TURNED:
        product = (one * u[:, None] + v[:, None]) * (two + w[:, None])
    else:
        product = (one * u[None, :] + v[None, :]) * (two + w[None, :])
    return product


@triton.jit
def pull(
    total, x, wanted, places, first, second, terms, scale,
    KEY_SIZE: tl.constexpr, WIDTH: tl.constexpr, TYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of x from that of a tile of its features, added to `total`."""
    u, v, w = tl.load(terms + places), tl.load(terms + WIDTH + places), tl.load(terms + 2 * WIDTH + places)
    dims = tl.arange(0, KEY_SIZE)
    one = _picked(x, first, places, False, KEY_SIZE, WIDTH, PRECISION)
    two = _picked(x, second, places, False, KEY_SIZE, WIDTH, PRECISION)
    back = dims[None, :] * WIDTH + places[:, None]
    of_one = (wanted * (u[None, :] * (two + w[None, :]))).to(TYPE)
    total = tl.dot(of_one, tl.load(first + back), total, input_precision=PRECISION)
    of_two = (wanted * (one * u[None, :] + v[None, :])).to(TYPE)
    return tl.dot(of_two, tl.load(second + back), total, input_precision=PRECISION)


@lru_cache(maxsize=32)
def tables(
    key_dim: int, key_size: int, width: int, scale: float, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """The two choices (key_size, width), and u, v, w (3, width); features in the order of `taylor_features`."""
    pairs = list(combinations_with_replacement(range(key_dim + 1), 2))
    picks = torch.zeros(2, key_size, width, dtype=torch.float64)
    terms = torch.zeros(3, width, dtype=torch.float64)
    for place, (one, two) in enumerate(pairs):
        absent = [0.0, 0.0]
        for side, index in enumerate((one, two)):
            if index == key_dim:
                absent[side] = 1.0
            else:
                picks[side, index, place] = 1.0
        u = scale**2 * (2**-0.5 if one == two < key_dim else 1.0)
        terms[:, place] = torch.tensor([u, u * absent[0] / scale, absent[1] / scale])
    first, second = picks.to(device, dtype)
    return first, second, terms.to(device, torch.float32)

"""Randomness by name: every random number is a pure function of a seed, a purpose and a few ids.

    derive(seed, "dropout", step, rank)

There is no global random state, so nothing has to be saved to continue a run, and two purposes never share a stream.
"""

import json
from hashlib import blake2b
from operator import index

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST_FACTOR = 0xBF58476D1CE4E5B9
_SECOND_FACTOR = 0x94D049BB133111EB


def derive_seed(seed: int, purpose: str, *ids: int) -> int:
    """A number of 63 bits: the 8-byte blake2b of the JSON list [seed,purpose,ids...], big-endian, less its lowest bit.

    JSON keeps (1, 23) and (12, 3) apart, and the number is the same on every machine and in every version.
    """
    if not isinstance(purpose, str):
        raise TypeError(f"purpose must be a text such as 'dropout', got {purpose!r}")
    try:
        numbers = [int(index(number)) for number in (seed, *ids)]
    except TypeError:
        raise TypeError(f"seed and ids must be whole numbers, got {(seed, *ids)}") from None
    named = json.dumps([numbers[0], purpose, *numbers[1:]], separators=(",", ":"))
    return int.from_bytes(blake2b(named.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, purpose: str, *ids: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch generator started at `derive(seed, purpose, *ids)`.

    On a CPU torch reads only the lowest 32 bits of a seed: among 77,000 generators two are likely to be the same.
    Where that many are wanted, take `uniforms`.
    """
    return torch.Generator(device).manual_seed(derive_seed(seed, purpose, *ids))


def uniforms(key: int, numbers: Int64[Tensor, "*axes"]) -> Float64[Tensor, "*axes"]:
    """For each of `numbers` that output of SplitMix64 started at `key`, counted from 0: 53 bits, as a number of [0, 1).

        x = key + (number + 1) golden;   x = (x ^ x >> 30) a;   x = (x ^ x >> 27) b;   x ^ x >> 31     (mod 2^64)

    Each depends on its own number alone, so any slice of a stream can be drawn by itself, on any device and version
    of torch. Paper: https://doi.org/10.1145/2660193.2660195.
    """
    x = (numbers + 1) * _signed(_GOLDEN) + _signed(key)
    x = (x ^ _shift(x, 30)) * _signed(_FIRST_FACTOR)
    x = (x ^ _shift(x, 27)) * _signed(_SECOND_FACTOR)
    return _shift(x ^ _shift(x, 31), 11).double() * 2.0**-53


def _signed(number: int) -> int:
    number %= 2**64
    return number - 2**64 if number >= 2**63 else number


def _shift(x: Tensor, places: int) -> Tensor:
    # torch's >> copies the sign bit; here 64 bits are just bits
    return (x >> places) & ((1 << (64 - places)) - 1)

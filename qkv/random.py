"""Random numbers as a pure function of a seed, a purpose and a few ids.

    derive_seed(seed, "dropout", step, rank)

No global random state is used, so a run resumes without saving one, and two purposes never share a stream.
"""

import json
from hashlib import blake2b
from operator import index

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

_to_json = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps builds an encoder in every call
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST_FACTOR = 0xBF58476D1CE4E5B9
_SECOND_FACTOR = 0x94D049BB133111EB
_ROUNDS = 10
"""Rounds of the network of `permute`; with fewer, the orders of a handful of numbers are visibly uneven."""


def derive_seed(seed: int, purpose: str, *ids: int) -> int:
    """Return a 63-bit seed: the 8-byte blake2b of the JSON list [seed,purpose,ids...], big-endian, less its lowest bit.

    JSON keeps (1, 23) and (12, 3) apart. The seed is the same on every machine and in every version.
    """
    if not isinstance(purpose, str):
        raise TypeError(f"purpose must be a string such as 'dropout', got {purpose!r}")
    try:
        seed, *ids_as_int = (int(index(number)) for number in (seed, *ids))
    except TypeError:
        raise TypeError(f"seed and ids must be whole numbers, got {(seed, *ids)}") from None
    key = _to_json([seed, purpose, *ids_as_int])
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, purpose: str, *ids: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a torch generator seeded with `derive_seed(seed, purpose, *ids)`.

    On a CPU torch uses only the lowest 32 bits of a seed: among 77,000 generators two are likely to be equal.
    Use `uniforms` where that many streams are needed.
    """
    return torch.Generator(device).manual_seed(derive_seed(seed, purpose, *ids))


def uniforms(key: int | Int64[Tensor, "*axes"], indices: Int64[Tensor, "*axes"]) -> Float64[Tensor, "*axes"]:
    """Return the outputs number `indices`, from 0, of SplitMix64 seeded with `key`: 53 bits each, as floats in [0, 1).

    A tensor of keys, each at least 0, gives every output its own stream.

        x = key + (index + 1) golden;   x = (x ^ x >> 30) a;   x = (x ^ x >> 27) b;   x ^ x >> 31     (mod 2^64)

    Each output depends on its index alone, so any slice of a stream can be computed, with the same result on every
    device and version of torch. Paper: https://doi.org/10.1145/2660193.2660195.
    """
    x = (indices + 1) * _signed(_GOLDEN) + (key if isinstance(key, Tensor) else _signed(key))
    x = (x ^ _shift(x, 30)) * _signed(_FIRST_FACTOR)
    x = (x ^ _shift(x, 27)) * _signed(_SECOND_FACTOR)
    return _shift(x ^ _shift(x, 31), 11).double() * 2.0**-53


def permute(key: int, indices: Int64[Tensor, " some"], count: int) -> Int64[Tensor, " some"]:
    """Return what stands at these indices in a random order of 0 to count - 1; the order itself is never made.

    The bits of a number are cut into halves a, b, and rounds replace one half in turn (a Feistel network):

        a = a ^ f(b);   b = b ^ f(a);   ...

    Each round undoes itself, so no two numbers become equal, below 2^bits. A result of `count` or more goes through
    the rounds again until it is below, which keeps that. A number takes less than two passes on average.
    """
    if count < 1 or (len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < count):
        raise ValueError(f"indices must be 0 to count - 1 = {count - 1}, got {indices}")
    bits = max((count - 1).bit_length(), 2)
    keys = [derive_seed(key, "round of a permutation", number) for number in range(_ROUNDS)]
    found = _run_rounds(indices, keys, bits)
    while len(outside := (found >= count).nonzero()[:, 0]):
        found[outside] = _run_rounds(found[outside], keys, bits)
    return found


def _run_rounds(numbers: Tensor, keys: list[int], bits: int) -> Tensor:
    low_bits = bits // 2
    high, low = numbers >> low_bits, numbers & ((1 << low_bits) - 1)
    for number, key in enumerate(keys):
        if number % 2:
            low = low ^ (uniforms(key, high) * 2**low_bits).long()
        else:
            high = high ^ (uniforms(key, low) * 2 ** (bits - low_bits)).long()
    return high << low_bits | low


def _signed(number: int) -> int:
    number %= 2**64
    return number - 2**64 if number >= 2**63 else number


def _shift(x: Tensor, bits: int) -> Tensor:
    # torch's >> copies the sign bit; this is the shift of an unsigned integer
    return (x >> bits) & ((1 << (64 - bits)) - 1)

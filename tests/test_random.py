import ast
from hashlib import blake2b
from itertools import product
from pathlib import Path

import numpy
import pytest
import torch

import qkv
from qkv.random import derive_seed, generator, permute, uniforms

# the published first outputs of SplitMix64 started at 1234567
SPLITMIX = (
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
)


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ((3, "dropout"), b'[3,"dropout"]'),
        ((3, "dropout", 5, 7), b'[3,"dropout",5,7]'),
        ((-11, 'a"b', 2**70), b'[-11,"a\\"b",1180591620717411303424]'),
    ],
)
def test_derive_is_the_hash_of_its_arguments(arguments, written):
    assert derive_seed(*arguments) == int.from_bytes(blake2b(written, digest_size=8).digest(), "big") // 2


def test_every_argument_counts():
    names = ["order", "orders", "order,1", "", "1"]
    ids = [(), (0,), (1,), (23,), (1, 23), (12, 3), (123,), (3, 12), (0, 0)]
    drawn = [derive_seed(seed, name, *more) for seed, name, more in product((0, 1, 12, -1), names, ids)]
    assert len(set(drawn)) == len(drawn) == 4 * 5 * 9
    assert 0 <= min(drawn) < 2**58 < 2**62 < max(drawn) < 2**63


def test_whole_numbers_of_other_libraries_are_the_same_numbers():
    assert derive_seed(numpy.int64(5), "order", torch.tensor(7)) == derive_seed(5, "order", 7)


def test_wrong_arguments_are_named():
    with pytest.raises(TypeError, match=r"seed and ids must be whole numbers, got \(1, 2\.5\)"):
        derive_seed(1, "order", 2.5)
    with pytest.raises(TypeError, match="purpose must be a string such as 'dropout', got 3"):
        derive_seed(1, 3)


def test_a_generator_starts_at_the_derived_number_and_touches_no_other():
    before = torch.get_rng_state()
    drawn = torch.rand(5, generator=generator(3, "dropout", 7))
    assert torch.equal(drawn, torch.rand(5, generator=torch.Generator().manual_seed(derive_seed(3, "dropout", 7))))
    assert not torch.equal(drawn, torch.rand(5, generator=generator(3, "dropout", 8)))
    assert torch.equal(before, torch.get_rng_state())
    assert generator(3, "dropout", 7, device=torch.device("cpu")).device.type == "cpu"


def test_uniforms_are_the_published_outputs_of_splitmix():
    drawn = uniforms(1234567, torch.arange(5))
    assert drawn.dtype == torch.float64
    assert drawn.tolist() == [(output >> 11) / 2**53 for output in SPLITMIX]


def test_each_uniform_depends_on_its_own_number_alone():
    numbers = torch.tensor([[10**12, 3, 0], [3, 17, 2**40]])
    drawn = uniforms(derive_seed(5, "x"), numbers)
    assert drawn.shape == (2, 3)
    assert drawn[0, 1] == drawn[1, 0] == uniforms(derive_seed(5, "x"), torch.arange(4))[3]
    assert drawn.unique().numel() == 5


def test_a_tensor_of_keys_gives_each_number_its_own_stream():
    keys, indices = [0, 5, 2**63 - 1], [7, 0, 2**40]
    alone = [uniforms(key, torch.tensor([index])).item() for key, index in zip(keys, indices, strict=True)]
    assert uniforms(torch.tensor(keys), torch.tensor(indices)).tolist() == alone


def test_uniforms_are_uniform_and_independent():
    count = 200_000
    first, second = (uniforms(derive_seed(5, "x", number), torch.arange(count)) for number in (0, 1))
    cells = torch.bincount((first * 10).long() * 10 + (second * 10).long(), minlength=100)
    # chi-squared of 99 degrees of freedom: mean 99, deviation 14
    assert 57 < ((cells - count / 100) ** 2 / (count / 100)).sum() < 141
    assert first.min() >= 0
    assert first.max() < 1
    assert abs((first[1:] - 0.5) @ (first[:-1] - 0.5) / count * 12) < 5 * count**-0.5


@pytest.mark.parametrize("count", [1, 2, 3, 5, 64, 1009, 65_537])
def test_permute_gives_each_number_once(count):
    found = permute(derive_seed(5, "x"), torch.arange(count), count)
    assert found.sort().values.tolist() == list(range(count))
    some = torch.arange(count).flip(0)[: count // 2 + 1]
    assert torch.equal(permute(derive_seed(5, "x"), some, count), found[some])


def test_the_orders_of_permute_are_equally_frequent():
    orders = torch.stack([permute(key, torch.arange(4), 4) for key in range(1200)])
    counts = torch.bincount((orders * torch.tensor([64, 16, 4, 1])).sum(1)).double()
    counts = counts[counts > 0]
    assert len(counts) == 24
    # chi-squared of 23 degrees of freedom: mean 23, deviation 7
    assert ((counts - 50) ** 2 / 50).sum() < 50


def test_permute_leaves_no_pattern_in_a_long_order():
    """Neighbors, and a number and its place, are as far apart as in a random order."""
    count = 100_003
    found = permute(derive_seed(7, "x"), torch.arange(count), count).double() / count
    shift = torch.arange(count).double() / count
    for one, other in ((found[1:], found[:-1]), (found, shift), (found[2:], found[:-2])):
        assert abs((one - 0.5) @ (other - 0.5) / count * 12) < 5 * count**-0.5


def test_permute_of_numbers_that_fit_no_memory():
    found = permute(3, torch.arange(5), 10**15)
    assert found.unique().numel() == 5
    assert 0 <= found.min() <= found.max() < 10**15
    with pytest.raises(ValueError, match="indices must be 0 to count - 1 = 4, got "):
        permute(3, torch.tensor([5]), 5)
    assert permute(3, torch.tensor([], dtype=torch.int64), 5).tolist() == []


PURPOSE_INDEX = {"derive_seed": 1, "generator": 1, "_seed": 0, "_shuffle": 0, "draw": 0}
"""Functions that take a purpose, and the index of that argument."""


def purposes():
    """Return every purpose in the package; a part of one that is not a literal is in braces."""
    found = set()
    for path in sorted(Path(qkv.__file__).parent.rglob("*.py")):
        calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
        for call in calls:
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            index = PURPOSE_INDEX.get(name, -1)
            if 0 <= index < len(call.args):
                found.add(text_of(call.args[index]))
    return found - {""}


def text_of(node):
    """Return the text of a literal or of an f-string, and nothing for other expressions."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text_of, node.values))
    if isinstance(node, ast.FormattedValue):
        return "{" + ast.unparse(node.value) + "}"
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_purposes_are_never_renamed():
    """They seed the generators: another text is another order of examples, another dropout, another split."""
    assert purposes() == {
        "dropout",
        "fillers",
        "first row of an epoch",
        "held-out examples",
        "held-out pictures {split}",
        "initial weights",
        "inputs of the sine",
        "keys",
        "noise",
        "noise of the sine",
        "order",
        "order in a window",
        "order of the batches",
        "order of the blocks",
        "order of the examples",
        "order of the rows",
        "pairs to show",
        "recall {split} {what}",
        "scenes {split}",
        "round of a permutation",
        "sample",
        "slots",
        "subsampling",
        "table",
        "validation",
        "values",
        "windows",
        "{self.purpose} {what}",
        "{split} {purpose}",
    }


def test_purposes_that_a_loop_gives():
    source = (Path(qkv.__file__).parent / "tasks" / "masked.py").read_text("utf-8")
    assert source.count('for purpose in ("pairs of sentences", "hidden tokens")') == 2

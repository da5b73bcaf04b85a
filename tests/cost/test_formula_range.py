"""Formulas are stated only for sizes at which they equal the count."""

import pytest
import torch
from torch import nn

from qkv.attention import parse
from qkv.cost import Input, analyze, evaluate
from qkv.cost.formula_range import find_formula, is_within, sample_sizes
from qkv.cost.memory import inference_bytes, saved_bytes
from qkv.cost.meta_run import ModuleCall, count_forward, module_mode
from qkv.cost.to_json import to_record
from qkv.layers import MultiHead

LENGTHS = (1, 2, 7, 16, 65, 128, 129, 157, 158, 256, 278, 384, 511, 1025)


class Own(nn.Module):
    """A module of a user around multi-head attention; it declares no cost."""

    def __init__(self, kind, *, causal):
        super().__init__()
        self.attention, self.causal = MultiHead(64, 4, parse(kind, key_dim=16)), causal

    def forward(self, x):
        return self.attention(x, causal=self.causal)


class Bare(Own):
    """The same around the mechanism alone."""

    def __init__(self, kind, *, causal):
        super().__init__(kind, causal=causal)
        self.attention = parse(kind, key_dim=16)

    def forward(self, x):
        heads = x.unflatten(2, (4, 16)).transpose(1, 2)
        return self.attention(heads, heads, heads, causal=self.causal)


def counts_at(module, n):
    """What really runs at this length, by quantity."""
    call = ModuleCall(module, (Input.parse("float[1,n,64]"),))
    with module_mode(module, training=False):
        counted = count_forward(call, {"n": n})
        return {
            "executed": counted.total,
            "needed": counted.needed,
            "saved": saved_bytes(call, {"n": n}),
            "peak": inference_bytes(call, {"n": n})[0],
        }


def quantities(report):
    return {"executed": report.executed, "needed": report.needed, **report.memory}


def wrong(module, report, lengths):
    """(quantity, length) at which a stated formula is not the count."""
    found = {name: one for name, one in quantities(report).items() if one.holds is not None}
    return [
        (name, n)
        for n in lengths
        for name, count in counts_at(module, n).items()
        if name in found and is_within({"n": n}, found[name].holds) and evaluate(found[name].formula, {"n": n}) != count
    ]


KINDS = [(kind, causal) for kind in ("softmax", "additive", "linear", "elu", "taylor") for causal in (False, True)]
KINDS += [("softmax(window=8)", True), ("taylor(order=4)", False), ("taylor(order=4)", True)]
QUICK = {("softmax(window=8)", True), ("taylor", True)}


@pytest.mark.parametrize(
    ("kind", "causal"), [pytest.param(*one, marks=[] if one in QUICK else pytest.mark.slow) for one in KINDS]
)
def test_a_formula_in_a_module_of_ones_own_equals_the_count_where_it_holds(kind, causal):
    module = Own(kind, causal=causal)
    report = analyze(module, ["float[1,n,64]"], {"n": 300})
    assert report.executed.holds is not None
    assert is_within({"n": 300}, report.executed.holds)
    assert wrong(module, report, LENGTHS) == []


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "causal"), KINDS)
def test_so_does_that_of_a_bare_mechanism(kind, causal):
    module = Bare(kind, causal=causal)
    report = analyze(module, ["float[1,n,64]"], {"n": 20})
    assert report.executed.holds is not None
    assert wrong(module, report, LENGTHS) == []


def test_taylor_is_quadratic_up_to_its_switch_and_linear_beyond():
    """64 n^2 (2 dims) against n (136 + 16 + 1) features times 33 columns, 4 heads: 128 n^2 = 20,196 n."""
    module = Own("taylor", causal=False)
    short, long = (analyze(module, ["float[1,n,64]"], {"n": n}).executed for n in (128, 1000))
    assert (str(short.formula), short.holds) == ("128*n**2 + 16384*n", {"n": (1, 157)})
    assert (str(long.formula), long.holds["n"][0]) == ("36580*n", 158)
    assert long.holds["n"][1] >= 1025


def test_json_has_a_range_or_null():
    record = to_record(analyze(Own("elu", causal=True), ["float[1,n,64]"], {"n": 20}))
    assert record["multiplications"]["executed"]["holds"] == {"n": [1, 136]}
    assert record["parameters"]["holds"] == {}
    assert record["memory"]["cache"]["holds"] is None
    assert record["methods"]["derived"] | {"note": ""} == {"formula": None, "value": None, "holds": None, "note": ""}


def found_at(function, n):
    found = find_formula(lambda sizes: function(sizes["n"]), {"n": 2}, {"n": n}, samples=sample_sizes())
    return None if found is None else (str(found.expression), found.holds["n"])


@pytest.mark.parametrize(
    ("function", "n", "expected"),
    [
        (lambda n: 3 * n * n, 100, ("3*n**2", (1, 16_384))),
        (lambda n: 3 * n * n, 20_000, ("3*n**2", (1, 20_000))),
        (lambda n: min(n, 64), 30, ("n", (1, 64))),
        (lambda n: min(n, 64), 100, ("64", (64, 16_384))),
        (lambda n: n if n < 500 else 7 * n, 499, ("n", (1, 499))),
        (lambda n: n if n < 500 else 7 * n, 500, ("7*n", (500, 16_384))),
        (lambda n: 5 * -(-n // 64), 1000, ("5*ceiling(n/64)", (1, 16_384))),
        (lambda n: n + 3 * (n // 64), 1000, ("n + 3*floor(n/64)", (1, 16_384))),
        (lambda n: 2**n % 1009, 100, None),
        (lambda n: n + (n % 2), 100, None),
    ],
)
def test_ranges_and_chunks_by_hand(function, n, expected):
    assert found_at(function, n) == expected


def test_a_length_that_the_module_rejects_is_outside():
    def limited(n):
        if n > 300:
            raise ValueError("too long")
        return 2 * n

    assert found_at(limited, 10) == ("2*n", (1, 300))


def test_ranges_of_two_sizes_hold_together_or_only_one_of_them_may_change():
    def product_limited(sizes):
        return sizes["n"] * sizes["m"] if sizes["n"] * sizes["m"] <= 1000 else 0

    found = find_formula(product_limited, {"n": 2, "m": 2}, {"n": 10, "m": 20}, samples=sample_sizes())
    assert found.holds == {"n": (1, 50), "m": (20, 20)}
    found = find_formula(lambda s: s["n"] * s["m"], {"n": 2, "m": 2}, {"n": 10, "m": 20}, samples=sample_sizes())
    assert found.holds == {"n": (1, 16_384), "m": (1, 16_384)}


def test_a_module_with_a_loop_over_tokens_is_not_run_at_the_longest():
    report = analyze(nn.LSTM(8, 8, batch_first=True), ["float[1,n,8]"], {"n": 20})
    assert str(report.executed.formula) == "512*n"
    assert 20 <= report.executed.holds["n"][1] < 16_384


def test_reasons_are_words_and_not_texts_of_torch():
    class Reads(nn.Linear):
        def forward(self, x):
            return super().forward(x) * float(torch.zeros(x.shape[1]).numel())

    notes = [one.note for one in analyze(Own("taylor", causal=False), ["float[1,n,64]"], {"n": 20}).methods.values()]
    notes.append(analyze(Reads(8, 8), ["float[1,n,8]"], {"n": 20}).methods["derived"].note)
    assert not [note for note in notes if "Error" in note or "/" in note or "Eq(" in note]
    assert notes[-1] == "the code reads n as a plain number, so it cannot be a symbol"

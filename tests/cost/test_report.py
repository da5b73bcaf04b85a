"""`analyze`: formulas, methods, memory, unknown operations."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from benchmarks.cost_cases import CASES, SelfAttention
from qkv.attention import Elu, Linear, Softmax, Taylor
from qkv.cost import UncountedError, analyze, count_multiplications, evaluate, format_formula, measure, verify
from qkv.cost.aten import FORMULAS, FREE, POINTWISE, REDUCING
from qkv.cost.to_json import to_record
from qkv.layers import Heads, MultiHead
from qkv.models import Decoder, DecoderConfig, Recurrent, RecurrentConfig


def attention():
    return analyze(SelfAttention(100, 36, 25), ["float[1,n,100]"], {"n": 75})


def test_the_record_has_the_promised_keys():
    record = to_record(attention())
    assert {"convention", "symbols", "parameters", "multiplications", "memory", "unknown"} <= set(record)
    for name in ("parameters", "multiplications"):
        assert {"formula", "value", "holds", "terms"} <= set(record[name])
    assert record["multiplications"]["formula"] == "61*n**2 + 9700*n"
    assert record["symbols"] == {"n": 75}
    assert record["elementwise"]["exponentials"] == 75**2
    assert record["unknown"] == {}


def test_saved_for_backward_by_hand():
    """x, q, k, v, and the weights: 4 bytes of n (100 + 97) + n^2; the parameters are not among them."""
    saved = attention().memory["saved"]
    assert (saved.value, format_formula(saved.formula)) == (81_600, "4*n**2 + 788*n")


def test_the_peak_of_inference_by_hand_and_by_the_allocator():
    """q, k, v and two squares: the scores and the scaled ones, then those and their softmax."""
    peak = attention().memory["peak"]
    assert (peak.value, format_formula(peak.formula)) == (74_100, "8*n**2 + 388*n")
    module, x = SelfAttention(100, 36, 25), torch.randn(1, 75, 100)
    with torch.no_grad():
        assert 74_100 <= measure(lambda: module(x)).peak_bytes <= 74_100 + 64


def test_fused_attention_keeps_no_square():
    """For backward: x, q, k, v, the output and a logarithm for each row and head."""
    report = analyze(MultiHead(64, 4, Softmax(), bias=False), ["float[1,n,64]"], {"n": 33})
    assert format_formula(report.memory["saved"].formula) == str((5 * 64 + 4) * 4) + "*n"


def test_weights_gradients_and_optimizer():
    weights = analyze(nn.Linear(3, 5), ["float[7,3]"], optimizer="adam").weights
    assert (weights.parameters, weights.gradients, weights.optimizer) == (80, 80, 160)
    assert analyze(nn.Linear(3, 5), ["float[7,3]"], optimizer="sgd").weights.optimizer == 0
    with pytest.raises(ValueError, match="optimizer 'adm' must be one of sgd, momentum"):
        analyze(nn.Linear(3, 5), ["float[7,3]"], optimizer="adm")


@pytest.mark.parametrize(
    ("mechanism", "formula"),
    [
        (Softmax(), "256*n"),  # keys and values of 2 key heads, 16 wide, in float32
        (Softmax(window=8), "2048"),
        (Linear(), "2048"),
        (Elu(), str(2 * 16 * 17 * 4)),
        (Taylor(), str(2 * 153 * 17 * 4)),
    ],
)
def test_caches_as_formulas(mechanism, formula):
    report = analyze(MultiHead(64, Heads(4, 2), mechanism), ["float[1,n,64]"], {"n": 100}, options={"causal": True})
    assert format_formula(report.memory["cache"].formula) == formula
    assert report.cache_by_dtype["float64"].value == 2 * report.cache_by_dtype["float32"].value


def test_the_cache_formula_is_what_a_decoder_really_holds():
    model = Decoder(DecoderConfig(dim=24, heads=3, hidden_dim=5, layers=2, convolution=3), 11).eval()
    report = analyze(model, ["int[1,n]"], {"n": 19})
    with torch.inference_mode():
        state = model.start(torch.zeros(1, 19, dtype=torch.int64), None)
    assert report.memory["cache"].value == state.bytes


def test_a_recurrent_state_does_not_grow_with_the_target():
    report = analyze(
        Recurrent(RecurrentConfig(dim=6, attention="none"), 5, 7), ["int[1,n]", "int[1,m]"], {"n": 9, "m": 8}
    )
    assert format_formula(report.memory["cache"].formula) == str(2 * 6 * 4)
    assert report.agree
    assert report.methods["counted"].note.startswith("run for real")


def test_all_methods_and_torch_agree_per_module():
    model = Decoder(DecoderConfig(dim=24, heads=3, hidden_dim=5, layers=2, positions="shaw"), 11)
    checks = verify(analyze(model, ["int[b,n]"], {"b": 3, "n": 19}))
    assert all(check.ok for check in checks)
    assert {check.part for check in checks} >= {
        "the whole",
        "blocks.attention.query",
        "blocks.attention.attention",
        "lm_head",
    }
    assert all(check.declared == check.counted == check.torch for check in checks)


def test_what_torchs_counter_ignores_is_reported():
    case = next(case for case in CASES if case.name == "einsum3")
    (whole, *_) = verify(analyze(case.build(), case.inputs()))
    assert (whole.counted, whole.torch, whole.unseen, whole.ok) == (6_389_760, 6_291_456, 98_304, True)


def test_a_module_that_lies_about_its_cost_is_caught():
    class Liar(MultiHead):
        def cost(self, span):
            return super().cost(span) + super().cost(span)

    report = analyze(Liar(8, 2, Softmax()), ["float[1,n,8]"], {"n": 5})
    assert not report.agree
    assert not verify(report)[0].ok


def test_an_unknown_operation_is_listed_and_never_a_zero():
    report = analyze(nn.Bilinear(3, 5, 7), ["float[b,3]", "float[b,5]"], {"b": 11})
    assert list(report.unknown) == ["_trilinear"]
    with pytest.raises(UncountedError, match="_trilinear"), count_multiplications():
        nn.Bilinear(3, 5, 7)(torch.randn(2, 3), torch.randn(2, 5))


USES = {
    "mm": lambda x: x @ x,
    "addmm": lambda x: torch.addmm(x, x, x),
    "bmm": lambda x: x[None] @ x[None],
    "baddbmm": lambda x: torch.baddbmm(x[None], x[None], x[None]),
    "addbmm": lambda x: torch.addbmm(x, x[None], x[None]),
    "mv": lambda x: x @ x[0],
    "addmv": lambda x: torch.addmv(x[0], x, x[0]),
    "dot": lambda x: x[0].dot(x[0]),
    "vdot": lambda x: torch.vdot(x[0], x[0]),
    "addr": lambda x: torch.addr(x, x[0], x[0]),
    "convolution": lambda x: nn.functional.conv1d(x[None], x[:, :, None]),
    "mul": lambda x: x * x,
    "exp": lambda x: x.exp(),
    "_softmax": lambda x: x.softmax(0),
    "native_layer_norm": lambda x: nn.functional.layer_norm(x, (5,)),
    "sum": lambda x: x.sum(),
}


@pytest.mark.parametrize("name", USES)
def test_removing_any_formula_makes_a_strict_run_fail(name, monkeypatch):
    table = next(table for table in (FORMULAS, POINTWISE, REDUCING) if name in table)
    x = torch.randn(5, 5)
    with count_multiplications():
        USES[name](x)
    monkeypatch.delitem(table, name)
    with pytest.raises(UncountedError, match=name), count_multiplications():
        USES[name](x)


def test_a_module_that_reads_values_runs_on_real_data():
    """Every LSTM weight multiplies a token once forward and twice backward; gradients go to copies of the weights."""
    model = Recurrent(RecurrentConfig(dim=6, attention="none", max_length=32), 11, 13)
    report = analyze(model, ["int[1,n]", "int[1,m]"], {"n": 7, "m": 5})
    assert report.methods["counted"].note.startswith("run for real")
    assert set(report.backward.values()) == {2 * report.executed.value}
    assert report.memory["saved"].value > report.memory["peak"].value > 0
    assert all(weight.grad is None for weight in model.parameters())


class Ran:
    """A fake operation that reports to have run, so that those of a GPU can be tested without one."""

    def __init__(self, name):
        library, _, own = name.rpartition(".")
        packet = getattr(getattr(torch.ops, library or "aten"), own)
        self.operation = getattr(packet, packet.overloads()[0])

    def __call__(self):
        return torch.empty(3, device="meta")

    def __getattr__(self, name):
        return getattr(self.operation, name)

    def __str__(self):
        return str(self.operation)


@pytest.mark.parametrize("table", [FORMULAS, POINTWISE, REDUCING], ids=["formulas", "pointwise", "reducing"])
def test_without_its_entry_no_operation_passes(table, monkeypatch):
    """Every name is one that torch has, and none is free as well."""
    for name in list(table):
        with monkeypatch.context() as one:
            one.delitem(table, name)
            with pytest.raises(UncountedError, match=name):
                count_multiplications().__torch_dispatch__(Ran(name), ())


def test_no_operation_stands_in_two_tables():
    tables = [set(FORMULAS), set(POINTWISE), set(REDUCING), FREE]
    assert sum(map(len, tables)) == len(set.union(*tables))


def test_a_forward_that_raises_leaves_nothing_behind():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x):
            self.inner(x)
            raise KeyError("not today")

    broken = Broken().train()
    fast = torch.backends.mha.get_fastpath_enabled()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"Broken cannot be called with float\[b,3\] at b=4: 'not today'"):
            analyze(broken, ["float[b,3]"], {"b": 4})
    assert broken.training
    assert not broken._forward_hooks
    assert not broken.inner._forward_pre_hooks
    assert torch.backends.mha.get_fastpath_enabled() == fast
    with count_multiplications() as counted:
        broken.inner(torch.randn(2, 3))
    assert counted.total == 18


def test_counting_does_not_change_what_a_mechanism_gives_later():
    """Tables that a kind caches must not be left over from a meta run."""
    mechanism = Taylor(backend="chunked")
    analyze(MultiHead(12, 3, mechanism), ["float[1,n,12]"], {"n": 5}, options={"causal": True})
    q = torch.randn(1, 3, 5, 4)
    assert type(mechanism(q, q, q, causal=True)) is torch.Tensor


def test_tied_weights_count_once():
    case = next(case for case in CASES if case.name == "tied")
    report = analyze(case.build(), ["int[1,n]"], {"n": 50})
    assert (report.parameters.value, report.needed.value) == (64_000, 3_200_000)


def test_a_module_that_takes_few_tokens_is_derived_with_fewer():
    class Short(nn.Linear):
        def forward(self, x):
            if x.shape[1] > 64:
                raise ValueError("at most 64 tokens")
            return super().forward(x)

    report = analyze(Short(8, 8), ["float[1,n,8]"], {"n": 64})
    assert str(report.methods["derived"].formula) == "64*n"
    rejected = analyze(Short(8, 8), ["float[1,n,8]"], {"n": 6}).methods["derived"]
    assert (rejected.formula, rejected.note) == (None, "no symbolic run at n = 101: at most 64 tokens")


@pytest.mark.parametrize(("kind", "tokens"), [(Linear, 64), (Elu, 300)])
def test_a_formula_of_one_branch_is_not_derived(kind, tokens):
    """A causal feature map compares the costs of its two forms; at 300 tokens it runs another one than at 101."""
    report = analyze(MultiHead(64, 2, kind()), ["float[1,n,64]"], {"n": tokens}, options={"causal": True})
    assert report.agree
    assert report.methods["derived"].formula is None
    assert "branches on the length: 128*n**2 <= " in report.methods["derived"].note


def test_a_limit_is_derived_where_it_changes_nothing():
    class Twice(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            return y if x.shape[1] <= 128 else super().forward(y)

    assert str(analyze(Twice(8, 8), ["float[1,n,8]"], {"n": 64}).methods["derived"].formula) == "64*n"
    rejected = analyze(Twice(8, 8), ["float[1,n,8]"], {"n": 300})
    assert rejected.agree
    assert rejected.methods["derived"].note == "the formula would hold only where n <= 128"
    # torch asks whether a batch has 16 pictures, then multiplies as much as in a smaller one; and pools what is there
    pictures = nn.Sequential(nn.Conv2d(1, 3, 5, padding=2), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1))
    derived = analyze(pictures, ["float[b,1,n,m]"], {"b": 3, "n": 28, "m": 28}).methods["derived"]
    assert str(derived.formula) == "75*b*m*n"


def test_a_floor_is_derived_but_is_no_polynomial():
    report = analyze(nn.Conv1d(8, 16, 3, stride=2, bias=False), ["float[1,8,n]"], {"n": 28})
    assert report.executed.value == 13 * 384
    assert evaluate(report.methods["derived"].formula, {"n": 28}) == 13 * 384
    assert report.methods["counted"].formula is None


@pytest.mark.parametrize(
    ("inputs", "sizes", "message"),
    [
        (["float[1,n"], {"n": 3}, "expected a type and sizes"),
        (["flot[1,n]"], {"n": 3}, "there is no type 'flot'"),
        (["float[1,n-1]"], {"n": 3}, "neither a size nor a name"),
        (["float[1,n,4]"], {}, "size 'n' of the input needs a value of at least 1, but has none"),
        (["float[1,n,4]"], {"n": 0}, "size 'n' of the input needs a value of at least 1, got 0"),
        (["float[1,n,5]"], {"n": 3}, r"Linear cannot be called with float\[1,n,5\] at n=3"),
    ],
)
def test_bad_input(inputs, sizes, message):
    with pytest.raises(ValueError, match=message):
        analyze(nn.Linear(4, 4), inputs, sizes)


def test_deriving_does_not_load_the_exporter_of_torch():
    code = (
        "import sys; from torch import nn; import qkv.cost\n"
        "found = qkv.cost.analyze(nn.Linear(5, 3), ['float[1,n,5]'], {'n': 7}).methods['derived']\n"
        "assert (found.value, 'torch.export._trace' in sys.modules) == (105, False)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

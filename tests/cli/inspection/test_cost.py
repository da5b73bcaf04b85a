"""`qkv cost` as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.run import ROOT, qkv, run

CONFIGS = Path(__file__).parents[2] / "cost" / "configs"
C1 = ("cost", "attention", "--d-in", "100", "--d-k", "36", "--d-v", "25", "--n", "75")


def record(*arguments):
    return json.loads(qkv(*arguments, "--json"))


def test_the_arithmetic_line_by_line():
    text = qkv(*C1, "--explain", "--verify")
    assert "attention.scores = d_k*n**2 = 36*75**2 = 202,500" in text
    assert "query.product = d_in*d_k*n = 100*36*75 = 270,000" in text
    assert "together 1,070,625" in text
    assert "61*n**2 + 9700*n" in text
    assert "torch's counter" in text


def test_json():
    found = record(*C1)
    assert found["multiplications"]["formula"] == "61*n**2 + 9700*n"
    assert found["multiplications"]["value"] == 1_070_625
    assert found["parameters"]["formula"] == "2*d_in*d_k + d_in*d_v"
    assert found["parameters"]["value"] == 9_700
    assert found["unknown"] == {}
    assert found["note"] is None


@pytest.mark.slow
def test_documents_and_blocks():
    assert "| multiplications needed | `61*n**2 + 9700*n` | n = 1 to 16,384 | 1,070,625 |" in qkv(*C1, "--markdown")
    assert r"$61 n^{2} + 9700 n$ & n = 1 to 16,384 & 1,070,625 \\" in qkv(*C1, "--latex")
    found = record("cost", "attention", "--d-model", "768", "--heads", "12", "--n", "128")
    assert found["multiplications"]["formula"] == "1536*n**2 + 2359296*n"
    assert found["parameters"]["formula"] == "4*d_model**2"


def test_comparison_of_kinds(tmp_path):
    plot = tmp_path / "kinds.svg"
    sizes = ("--d-k", "16", "--d-v", "16", "--n", "1000", "--plot", str(plot))
    found = record("cost", "attention", "--compare", "softmax,elu,taylor(order=2)", *sizes)
    crossed = {(c["first"], c["second"], c["of"]): c["exact"] for c in found["crossovers"]}
    assert crossed["softmax", "elu", "multiplications"] == ["33/2"]
    assert crossed["softmax", "taylor(order=2)", "cache bytes"] == ["2601/32"]
    assert plot.read_text().startswith("<svg")
    assert "value_dim 16, 1 head<" in plot.read_text()


def test_kinds_that_cost_the_same(tmp_path):
    sizes = ("--d-k", "16", "--d-v", "16", "--n", "4096", "--causal", "--plot", str(tmp_path / "kinds.svg"))
    text = qkv("cost", "attention", "--compare", "softmax,softmax,softmax(window=512)", *sizes)
    rows = [line for line in text.splitlines() if "softmax = softmax" in line]
    assert [("always" in row, "1 to 512" in row) for row in rows] == [(True, False)] * 2 + [(False, True)] * 4
    assert "never" not in text
    plain, _, window = record("cost", "attention", "--compare", "softmax,softmax,softmax(window=512)", *sizes)["kinds"]
    assert plain["multiplications"]["holds"] == {"n": [1, 2**20]}
    assert window["multiplications"]["holds"] == {"n": [511, 2**20]}


def test_a_factory():
    found = record("cost", "tests.cost.factories:network", "--input", "float[b,10]", "--size", "b=8")
    assert (found["parameters"]["value"], found["multiplications"]["value"]) == (240, 1600)


def test_an_unknown_operation_is_exit_code_3_with_the_list_and_no_number():
    arguments = (
        "cost",
        "tests.cost.factories:bilinear",
        "--input",
        "float[b,3]",
        "--input",
        "float[b,5]",
        "--size",
        "b=2",
    )
    found = json.loads(qkv(*arguments, "--json", code=3))
    assert found["unknown"] == {"_trilinear": 1}
    assert found["multiplications"]["value"] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "n", "parameters", "token_bytes", "executed"),
    [
        ("gpt2", 1024, 124_439_808, 4 * 2 * 12 * 768, 145_824_153_600),
        (
            "llama2_7b",
            4096,
            6_738_415_616,
            2 * 2 * 32 * 4096,
            (6_738_415_616 - 32000 * 4096 - 65 * 4096) * 4096 + 2 * 32 * 4096**3,
        ),
        (
            "llama3_8b",
            8192,
            8_030_261_248,
            131_072,
            (8_030_261_248 - 128256 * 4096 - 65 * 4096) * 8192 + 2 * 32 * 4096 * 8192**2,
        ),
    ],
)
def test_models_of_hugging_face_from_their_configs(name, n, parameters, token_bytes, executed):
    pytest.importorskip("transformers")
    found = record("cost", str(CONFIGS / f"{name}.json"), "--n", str(n))
    assert found["parameters"]["value"] == parameters
    assert found["memory"]["cache"] == {
        "formula": f"{token_bytes}*n",
        "value": token_bytes * n,
        "holds": {"n": [1, 16_384]},
    }
    # every weight but the embedding and the norms meets every token; two products over all pairs
    assert found["multiplications"]["executed"]["value"] == executed
    assert found["agree"]


@pytest.mark.slow
def test_a_preset():
    found = record("cost", "recall", "--n", "32")
    assert found["agree"]
    assert found["memory"]["cache"]["value"] > 0


NOTE = "the vocabulary has the requested size, data.size = 16,000; no text was read"


@pytest.mark.slow
def test_a_preset_whose_text_is_not_here(monkeypatch, tmp_path):
    """With an empty cache and no package index."""
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/")
    monkeypatch.setenv("PIP_RETRIES", "0")
    found = record("cost", "text:wikitext")
    assert found["parameters"]["value"] == 17_024 * 384 + 6 * (12 * 384**2 + 13 * 384) + 2 * 384
    assert (found["spec"], found["note"]) == ("text:wikitext", NOTE)
    assert NOTE in qkv("cost", "text:wikitext").splitlines()
    assert f"- {NOTE}" in qkv("cost", "text:wikitext", "--markdown").splitlines()
    assert NOTE in qkv("cost", "text:wikitext", "--latex").splitlines()
    assert not (tmp_path / "cache").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "parameters", "multiplications"),
    [("xor", 9, 6), ("digits:quick", 169_298, 355_664), ("digits:stride", 225_618, 277_560)],
)
def test_presets_that_know_the_shape_of_an_example(spec, parameters, multiplications):
    found = record("cost", spec)
    assert (found["parameters"]["value"], found["multiplications"]["value"]) == (parameters, multiplications)


@pytest.mark.slow
def test_a_model_with_fewer_tokens_than_the_default():
    """As docs/cost.md has it: no length is given, and 64 is the most that the preset takes."""
    assert record("cost", "pronounce:quick")["symbols"] == {"n": 64, "m": 64}
    assert record("cost", "pronounce:recurrent", "--n", "11")["symbols"] == {"n": 11, "m": 11}
    assert "a sequence of 65 exceeds max_length=64" in qkv("cost", "pronounce:quick", "--n", "65", code=2)


BAD = [
    (("cost", "pairs"), "the sizes of pairs come from its data; train a run and name its folder"),
    (("cost", "tests.cost.nowhere:network"), "no module named 'tests.cost.nowhere'"),
    (("cost", "tests.cost.factories:netwok"), "has no 'netwok'"),
    (("cost", "tests.cost.factories:number"), "returns a int, but an nn.Module is needed"),
    (("cost", "tests.cost.factories:network"), "describe them with --input"),
    (
        ("cost", "tests.cost.factories:network", "--input", "float[3,11]"),
        "Sequential cannot be called with float[3,11]",
    ),
    (
        ("cost", "tests.cost.factories:raising", "--input", "float[3]"),
        "Raising cannot be called with float[3]: not today",
    ),
    (
        ("cost", "attention", "--d-model", "100", "--heads", "12"),
        "heads=12 must divide dim=100, unless key_dim and value_dim are given",
    ),
    (("cost", "attention", "--d-in", "100"), "attention needs --d-k of at least 1"),
    (("cost", "atention"), "atention"),
    (("cost", "attention", "--compare", "softmax"), "expected at least two kinds"),
    (("cost", "nonsense", "--compare", "softmax,elu"), "SPEC must be attention, got 'nonsense'"),
    (("cost", "attention", "--compare", "softmax,elu", "--latex"), "cannot be combined with --latex"),
    (("cost", "attention", "--compare", "softmax,elu", "--d-k", "-5"), "key_dim must be at least 1, got -5"),
    (("cost", "attention", "--compare", "softmax,elu", "--plot", "nowhere/x.svg"), "cannot save x.svg"),
    (
        ("cost", "attention", "--d-model", "8", "--kind", "taylor(order=x)"),
        "order must be a number, a string in quotes",
    ),
    (("check", "--kind", "taylor", "--set", "chunk=0"), "chunk must be at least 1, got 0"),
    (("cost", "attention", "--compare", "softmax,taylr"), "did you mean 'taylor'?"),
    (("cost", "runs/nowhere/config.json"), "there is no"),
    ((*C1[:-1], "0"), "--n 0 must be at least 1"),
    (
        ("cost", "tests.cost.factories:network", "--input", "float[k,10]"),
        "--input names the size 'k': give it a value, such as --size k=64",
    ),
    (("cost", "attention", "--d-model", "8", "--recalibrate"), "--recalibrate measures the speed of this CPU"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_input_is_one_sentence_and_no_number(arguments, message):
    text = qkv(*arguments, code=2)
    assert message in text
    assert len(text.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "lama"}, " has no model_type 'lama'; did you mean 'llama'?, in "),
        ({"hidden_size": 8}, 'config.json has no "model_type"'),
        (
            {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 33, "num_key_value_heads": 33},
            "The hidden size (64) is not a multiple of the number of attention heads (33)",
        ),
    ],
)
def test_bad_input_of_a_config_keeps_its_reason(config, message, tmp_path):
    pytest.importorskip("transformers")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    text = qkv("cost", str(path), code=2)
    assert message in text
    assert len(text.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("settings", "architecture"), [({}, "BertForMaskedLM"), ({"is_decoder": True}, "BertLMHeadModel")]
)
def test_a_bert_without_an_architecture_is_a_masked_model_unless_it_is_a_decoder(settings, architecture, tmp_path):
    pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 11}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "bert", "intermediate_size": 5, **sizes, **settings}))
    done = run("cost", str(path), "--json")
    assert (done.code, done.stderr) == (0, "")
    assert json.loads(done.stdout)["name"] == architecture


def test_a_module_itself_instead_of_a_function():
    found = record("cost", "tests.cost.factories:instance", "--input", "float[b,3]", "--size", "b=8")
    assert found["multiplications"]["formula"] == "12*b"


def test_tables_fit_80_columns_and_are_lists_on_50():
    wide = run(*C1, "--verbose", columns=80).stdout
    assert max(map(len, wide.splitlines())) <= 80
    assert "…" not in wide
    assert "elementwise operations (not in the totals)" in wide
    narrow = run(*C1, columns=50).stdout
    assert "elementwise" not in narrow
    assert "multiplications needed\n  exact: 1,070,625\n  about: 1.07 M\n  formula: 61*n**2 + 9700*n" in narrow


def test_less_executed_than_needed_is_explained(tmp_path):
    sizes = ("--d-k", "16", "--d-v", "16", "--n", "128", "--plot", str(tmp_path / "kinds.svg"))
    assert "executed < needed: " in qkv("cost", "attention", "--compare", "softmax,taylor", *sizes)
    assert "executed < needed: " not in qkv("cost", "attention", "--compare", "softmax,additive", *sizes)


@pytest.mark.process
@pytest.mark.parametrize(("module", "freed"), [("nanobind", "freed"), ("pybind11_builtins", "")])
def test_objects_are_freed_at_exit_if_nanobind_would_report_them(module, freed):
    code = f"""
import os, sys
from types import ModuleType
from qkv.cli.inspection.cost import _rare_garbage_collection
class Function:
    def __del__(self, write=os.write):
        write(1, b"freed")
Function.__module__ = {module!r}
library = sys.modules["triton._C.libtriton"] = ModuleType("libtriton")
library.cycle = Function()
library.cycle.itself = library.cycle
with _rare_garbage_collection():
    pass
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert (done.stdout, done.stderr) == (freed, "")

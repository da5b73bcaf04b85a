"""The counter against 31 modules whose multiplications were worked out by hand."""

import inspect

import pytest
import torch

from benchmarks.cost_cases import CASES
from qkv.cost import count_multiplications

# as they stand in the published tables, so that a slip in the arithmetic of a case is noticed
PUBLISHED = {
    "mha_w": (2_359_296, 327_155_712),
    "mha_nw": (2_359_296, 327_155_712),
    "mhab_eval": (2_362_368, 327_155_712),
    "enc_train": (7_087_872, 931_135_488),
    "enc_fast": (7_087_872, 931_135_488),
    "lstm": (99_328, 4_915_200),
    "cnn_pool": (168_572, 354_944),
    "cnn_stride": (224_892, 276_840),
    "sdpa": (0, 25_165_824),
    "sdpa_causal": (0, 25_165_824),
    "sdpa_gqa": (0, 25_165_824),
    "linatt": (0, 12_681_216),
    "selfatt": (9_700, 1_070_625),
    "param_matmul": (2_048, 102_400),
    "embedding": (64_000, 0),
    "tied": (64_000, 3_200_000),
    "reuse3": (4_096, 614_400),
    "layernorm": (1_536, 0),
    "batchnorm": (16, 0),
    "einsum3": (0, 6_389_760),
    "addmm": (2_080, 102_400),
    "fconv": (72, 48_672),
    "tensordot": (2_048, 102_400),
    "gru": (74_496, 3_686_400),
    "bilstm2": (593_920, 29_491_200),
    "grouped": (288, 194_688),
    "convT": (1_152, 194_688),
    "taylor16": (0, 4_874_752),
    "gpt2tiny": (557_568, 35_454_976),
    "llamatiny": (551_552, 29_163_520),
    "enc_b2": (7_087_872, 1_862_270_976),
}
DEVICES = ["cpu", "meta", pytest.param("cuda", marks=pytest.mark.gpu)]


def count(case, device, *, training):
    torch.manual_seed(0)
    model = case.build().to(device).train(training)
    inputs = [x.to(device) for x in case.inputs()]
    with count_multiplications(strict=False) as counted, torch.set_grad_enabled(training):
        model(*inputs)
    return counted


def test_there_are_31():
    assert [case.name for case in CASES] == list(PUBLISHED)
    assert len(CASES) == 31


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("training", [True, False])
def test_every_module_equals_the_hand_count(case, device, training):
    with torch.backends.opt_einsum.flags(enabled=False):  # where it is installed, it changes the order of products
        counted = count(case, device, training=training)
    assert (counted.total, dict(counted.unknown)) == (PUBLISHED[case.name][1] + angles(case), {})


def angles(case):
    """Older versions of transformers make the angles of Llama's 64 positions by a product with 16 frequencies."""
    if case.name != "llamatiny":
        return 0
    made = pytest.importorskip("transformers.models.llama.modeling_llama").LlamaRotaryEmbedding.forward
    return 64 * 16 if " @ " in inspect.getsource(made) else 0


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_module_has_the_parameters_worked_out(case):
    assert (case.parameters, case.multiplications) == PUBLISHED[case.name]
    assert sum(p.numel() for p in case.build().parameters()) == case.parameters


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_causal_attention_needs_half_of_what_runs(device):
    """12 heads, 128 wide in all, n (n + 1) / 2 pairs."""
    case = next(case for case in CASES if case.name == "sdpa_causal")
    assert count(case, device, training=True).needed == 12 * 128 * (128 * 129 // 2) == 12_681_216

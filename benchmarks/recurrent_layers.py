"""Recurrent layers of `transformers` without kernel packages: their fallbacks against ours, on one machine.

    python -m benchmarks.recurrent_layers --result benchmarks/results/recurrent_layers_cpu.json

A row is one layer in float32: a prefill of 2,048 tokens, the same with backward, and 512 further tokens after a cache.
Both run in this process, in alternation; the ratio is their time / ours, above 1 where we are faster. Equality is that
of the layers' outputs, and of the logits of a model with three gated delta layers and one of softmax.
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
from transformers.models.minimax.modeling_minimax import MiniMaxCache, MiniMaxLightningAttention
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from benchmarks.machine import about
from qkv.interop import replace_fallbacks, restore_fallbacks

TOKENS, PIECE, RUNS = 2048, 512, 5
HIDDEN, HEADS, DIM = 512, 4, 128
RESULTS = Path(__file__).parent / "results" / "recurrent_layers_cpu.json"
LINEAR = ["linear_attention"]
Sizes = dict[str, Any]
PARTS = ("prefill", "with_backward", "further_tokens")


def gated_delta() -> tuple[nn.Module, Any]:
    """Qwen3-Next: 4 key heads, 8 value heads of 128."""
    config = _qwen(hidden_size=HIDDEN, num_hidden_layers=1, layer_types=LINEAR)
    return Qwen3NextGatedDeltaNet(config, 0), transformers.DynamicCache(config=config)


def kda() -> tuple[nn.Module, Any]:
    """Kimi Linear: 4 heads of 128, a gate per channel."""
    sizes: Sizes = {"hidden_size": HIDDEN, "linear_num_heads": HEADS, "linear_head_dim": DIM, "num_hidden_layers": 1}
    config = transformers.KimiLinearConfig(**sizes, layer_types=LINEAR, mlp_layer_types=["dense"])
    layer = KimiLinearDeltaAttention(config, 0)
    nn.init.uniform_(layer.forget_gate.A_log, 0.0, 2.0)
    nn.init.uniform_(layer.forget_gate.dt_bias, -7.0, -2.0)
    return layer, transformers.DynamicCache(config=config)


def mamba2() -> tuple[nn.Module, Any]:
    """Mamba-2: 16 heads of 64, states of 128."""
    sizes: Sizes = {"hidden_size": HIDDEN, "num_heads": 16, "head_dim": 64, "state_size": DIM, "n_groups": 1}
    config = transformers.Mamba2Config(**sizes, num_hidden_layers=1)
    return Mamba2Mixer(config, 0), transformers.DynamicCache(config=config)


def lightning() -> tuple[nn.Module, Any]:
    """MiniMax: 4 heads of 128."""
    sizes: Sizes = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "head_dim": DIM, "num_hidden_layers": 2}
    layer = MiniMaxLightningAttention(transformers.MiniMaxConfig(**sizes, layer_types=LINEAR * 2), 0)
    return layer, MiniMaxCache()


LAYERS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "gated delta (Qwen3-Next)": gated_delta,
    "KDA (Kimi Linear)": kda,
    "Mamba-2": mamba2,
    "lightning (MiniMax)": lightning,
}


def _qwen(**changes: Any) -> Any:
    heads: Sizes = {"linear_num_key_heads": HEADS, "linear_num_value_heads": 2 * HEADS}
    dims: Sizes = {"linear_key_head_dim": DIM, "linear_value_head_dim": DIM}
    return transformers.Qwen3NextConfig(**heads, **dims, **changes)


def _call(layer: nn.Module, x: Tensor, cache: Any = None) -> Tensor:
    if isinstance(layer, MiniMaxLightningAttention):
        return layer(x, position_embeddings=None, attention_mask=None, past_key_values=cache)[0]
    return layer(x, cache_params=cache)


def compare_layer(name: str) -> dict[str, Any]:
    """Measure one row."""
    torch.manual_seed(0)
    layer, cache = LAYERS[name]()
    x = torch.randn(1, TOKENS, HIDDEN)

    def prefill() -> Tensor:
        with torch.no_grad():
            return _call(layer, x)

    def training() -> Tensor:
        layer.zero_grad()
        given = x.clone().requires_grad_()
        _call(layer, given).square().mean().backward()
        assert given.grad is not None
        return given.grad

    with torch.no_grad():
        _call(layer, x[:, :PIECE], cache)

    def further() -> Tensor:
        with torch.no_grad():
            return _call(layer, x[:, :PIECE], copy.deepcopy(cache))

    calls = {"prefill": prefill, "with_backward": training, "further_tokens": further}
    return {"layer": name, **{part: _alternate(layer, call) for part, call in calls.items()}}


def _alternate(layer: nn.Module, call: Callable[[], Tensor]) -> dict[str, Any]:
    """Time theirs and ours in turn; the difference is relative to the largest value."""
    seconds: dict[str, list[float]] = {"transformers": [], "qkv": []}
    results = {}
    for run in range(RUNS + 1):
        for name in sorted(seconds, reverse=bool(run % 2)):
            if name == "qkv":
                replace_fallbacks(layer)
            began = time.perf_counter()
            results[name] = call()
            if run > 0:  # the first one warms up
                seconds[name].append(time.perf_counter() - began)
            restore_fallbacks(layer)
    ratios = [a / b for a, b in zip(seconds["transformers"], seconds["qkv"], strict=True)]
    difference = _difference(results["qkv"], results["transformers"])
    return {"ratio": statistics.median(ratios), "ratios": ratios, "difference": difference, "seconds": seconds}


def _difference(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


@torch.no_grad()
def compare_logits() -> dict[str, float]:
    """Measure the largest difference of the logits of a model with four layers, and that of their states."""
    torch.manual_seed(0)
    sizes: Sizes = {"hidden_size": HIDDEN, "intermediate_size": HIDDEN, "vocab_size": 1000, "num_hidden_layers": 4}
    heads: Sizes = {"num_attention_heads": HEADS, "num_key_value_heads": HEADS, "mlp_only_layers": [0, 1, 2, 3]}
    model = transformers.Qwen3NextForCausalLM(_qwen(**sizes, **heads, layer_types=LINEAR * 3 + ["full_attention"]))
    tokens = torch.randint(1000, (1, TOKENS))
    theirs = model.eval()(tokens, use_cache=True)
    replace_fallbacks(model)
    ours = model(tokens, use_cache=True)
    restore_fallbacks(model)
    states = [[x.past_key_values.layers[i].recurrent_states[0] for i in range(3)] for x in (ours, theirs)]
    return {
        "logits": float((ours.logits - theirs.logits).abs().max()),
        "states": max(_difference(a, b) for a, b in zip(*states, strict=True)),
    }


def table(record: dict[str, Any]) -> str:
    """As it stands in docs/huggingface.md."""
    lines = ["| layer | prefill | with backward | further tokens |", "|---|---|---|---|"]
    for row in record["layers"]:
        ratios = " | ".join(f"{row[part]['ratio']:.1f}x" for part in PARTS)
        lines.append(f"| {row['layer']} | {ratios} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recurrent_layers")
    parser.add_argument("--result", type=Path, default=RESULTS)
    given = parser.parse_args()
    record = {
        **about(),
        "command": "python -m benchmarks.recurrent_layers",
        "transformers": transformers.__version__,
        "tokens": TOKENS,
        "differences": compare_logits(),
        "layers": [compare_layer(name) for name in LAYERS],
    }
    print(table(record))
    print(json.dumps(record["differences"]))
    given.result.parent.mkdir(parents=True, exist_ok=True)
    given.result.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()

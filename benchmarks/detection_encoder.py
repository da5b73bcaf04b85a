"""The encoder of DETR alone, from 256 to 16,384 tokens, with softmax and linear kinds of attention.

    python -m benchmarks.detection_encoder --device cuda --result benchmarks/results/detection_encoder_h200.json
    python -m benchmarks.detection_encoder --result FILE --draw docs/images/detection_encoder.svg

A token is 8 x 8 pixels, so 256 tokens are a picture of 128 x 128 and 16,384 one of 1024 x 1024. Input is the feature
map, output the tokens for the decoder. Every point is written when it is measured; `--draw` draws them.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.machine import about
from qkv.cost import measure
from qkv.draw import Axis, Series, line_chart
from qkv.models.detectors.detr import DETRConfig, TokenEncoder

KINDS = ("softmax", "elu", "linear", "taylor")
CANVASES = (128, 256, 384, 512, 768, 1024)
CHANNELS, STRIDE = 64, 8
CONFIG = {"dim": 256, "heads": 8, "hidden_dim": 1024, "layers": 3}
SETTINGS = {
    "cuda": "on cuda, in bfloat16 by autocast; medians of 5 calls",
    "cpu": "on the CPU, in float32; medians of 5 calls",
}
FIGURES = {"forward_ms": "forward, ms", "both_ms": "forward and backward, ms", "both_mib": "forward and backward, MiB"}


def main() -> None:
    """Measure, write and print; or draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--draw", type=Path, help="only draw the result file, as SVG, to this path")
    parser.add_argument("--batch", type=int, default=8, help="pictures (default: 8)")
    parser.add_argument("--canvases", default=",".join(map(str, CANVASES)), help="sides in pixels, comma-separated")
    parser.add_argument("--kinds", default=",".join(KINDS), help="attention kinds, comma-separated")
    given = parser.parse_args()
    if given.draw is not None:
        given.draw.write_text(picture(json.loads(given.result.read_text())))
        return
    if given.device == "cuda" and not torch.cuda.is_available():
        sys.exit("detection_encoder: no CUDA device found")
    result: dict[str, Any] = {
        **about(),
        "command": shlex.join(["python", "-m", "benchmarks.detection_encoder", *sys.argv[1:]]),
        "setting": SETTINGS[given.device],
        "encoder": CONFIG,
        "batch": given.batch,
        "rows": [],
    }
    for canvas in map(int, given.canvases.split(",")):
        for kind in given.kinds.split(","):
            result["rows"].append(measure_encoder(kind, canvas, given.batch, given.device))
            given.result.write_text(json.dumps(result, indent=1) + "\n")
            print(result["rows"][-1], flush=True)
    print(table(result))


def measure_encoder(kind: str, canvas: int, batch: int, device: str) -> dict[str, Any]:
    """Return time and memory of one kind at one size of the pictures."""
    torch.manual_seed(0)
    encoder = TokenEncoder(DETRConfig(attention=kind, **CONFIG), CHANNELS, STRIDE).to(device)  # type: ignore[arg-type]
    side = canvas // STRIDE
    features = torch.randn(batch, CHANNELS, side, side, device=device)
    extents = torch.full((batch, 2), canvas, device=device)

    def encode() -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            return encoder(features, extents).values

    def encode_without_gradients() -> Tensor:
        with torch.no_grad():
            return encode()

    def train() -> None:
        encode().sum().backward()
        encoder.zero_grad()

    train()  # compiles the kernels
    forward, both = measure(encode_without_gradients, device), measure(train, device)
    return {
        "kind": kind,
        "canvas": canvas,
        "tokens": side * side,
        "forward_ms": round(forward.milliseconds, 3),
        "both_ms": round(both.milliseconds, 3),
        "forward_mib": round(forward.peak_bytes / 2**20, 1),
        "both_mib": round(both.peak_bytes / 2**20, 1),
    }


def table(result: dict[str, Any]) -> str:
    """Return Markdown: one row per length, forward / with backward in ms, and MiB of both, for each kind."""
    kinds = list(dict.fromkeys(row["kind"] for row in result["rows"]))
    cells = {(row["tokens"], row["kind"]): row for row in result["rows"]}
    lines = [f"| tokens | {' | '.join(f'`{kind}`' for kind in kinds)} |", "|---" * (len(kinds) + 1) + "|"]
    for tokens in dict.fromkeys(row["tokens"] for row in result["rows"]):
        rows = [cells.get((tokens, kind)) for kind in kinds]
        texts = ["" if r is None else f"{r['forward_ms']:.2f} / {r['both_ms']:.2f}, {r['both_mib']:.0f}" for r in rows]
        lines.append(f"| {tokens:,} | {' | '.join(texts)} |")
    return "\n".join(lines)


def picture(result: dict[str, Any]) -> str:
    """Return one SVG with a chart of each figure over tokens, below each other."""
    machine = result["machine"]["gpu"] if "cuda" in result["setting"] else result["machine"]["cpu"]
    charts, height = [], 360
    for figure, title in FIGURES.items():
        points: dict[str, list[tuple[float, float]]] = {}
        for row in result["rows"]:
            points.setdefault(row["kind"], []).append((row["tokens"], row[figure]))
        series = [Series(kind, line) for kind, line in points.items()]
        heading = f"DETR's encoder, {title}, {result['batch']} pictures, {machine}"
        charts.append(line_chart(series, heading, Axis("tokens", log=True), Axis(title, log=True), height=height))
    placed = [chart.replace("<svg ", f'<svg y="{i * height}" ', 1) for i, chart in enumerate(charts)]
    size = f'width="860" height="{len(charts) * height}" viewBox="0 0 860 {len(charts) * height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{"".join(placed)}</svg>\n'


if __name__ == "__main__":
    main()

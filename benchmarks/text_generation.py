"""Time per token of generation after 128 and after 8,192 tokens: `python -m benchmarks.text_generation`.

Two texts of one model are written in turns, one token each, so that a busy moment hits both alike; the seconds are the
processor's. A constant state takes as long for token 8,192 as for token 128, a cache of keys and values longer. The
weights are fresh: what they are makes no difference to the time. Writes benchmarks/results/text_generation_cpu.json.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.machine import about
from qkv.decode import SearchLimits, sampler, stream
from qkv.decode.single_path import TokenChooser
from qkv.models import Decoder, DecoderConfig

RESULTS = Path(__file__).parent / "results" / "text_generation_cpu.json"
KINDS = ("softmax", "taylor", "elu", "linear")
NEAR, FAR, TOKENS, VOCABULARY = 128, 8192, 200, 2000


def measure(kind: str, dim: int, layers: int) -> dict[str, float]:
    """Return median milliseconds per token at both positions, their ratio, and the bytes of the state."""
    torch.manual_seed(0)
    config = DecoderConfig(
        dim=dim, layers=layers, hidden_dim=4 * dim, attention=kind, positions="learned", max_length=FAR + TOKENS + 1
    )
    model = Decoder(config, VOCABULARY).eval()
    texts: dict[str, Iterator[tuple[int, float]]] = {}
    for name, position in (("near", NEAR), ("far", FAR)):
        prompt = torch.randint(4, VOCABULARY, (1, position), generator=torch.Generator().manual_seed(position))
        # no token ends the text: see `_never`
        limits = SearchLimits(TOKENS, start=5, end=2, forbidden=(0, 1, 3))
        texts[name] = stream(model, prompt, limits, _never(2))
        next(texts[name])
    seconds: dict[str, list[float]] = {name: [] for name in texts}
    for _ in range(TOKENS - 1):
        for name, text in texts.items():
            started = time.process_time()
            next(text)
            seconds[name].append(time.process_time() - started)
    near, far = (statistics.median(seconds[name]) for name in ("near", "far"))
    with torch.inference_mode():
        held = model.start(torch.full((1, FAR), 5), None).bytes
    return {"ms_after_128": 1e3 * near, "ms_after_8192": 1e3 * far, "ratio": far / near, "state_bytes": held}


def _never(end: int) -> TokenChooser:
    """Draws as `sample` does, but never the end: it is taken out of what is drawn from."""
    draw = sampler(seed=0, top_k=40)

    def choose(values: torch.Tensor, sources: list[int], position: int) -> torch.Tensor:
        return draw(values.index_fill(-1, torch.tensor([end]), -torch.inf), sources, position)

    return choose


def main() -> None:
    """A record for each kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--result", type=Path, default=RESULTS)
    given = parser.parse_args()
    records = {}
    for kind in KINDS:
        records[kind] = measure(kind, given.dim, given.layers)
        print(kind, json.dumps(records[kind]))
    command = f"python -m benchmarks.text_generation --dim {given.dim} --layers {given.layers}"
    record = {**about(), "command": command, "tokens": TOKENS, "kinds": records}
    given.result.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()

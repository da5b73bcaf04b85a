"""Text models on a CPU: the fused form and int8 weights versus the plain model, and versus `transformers`.

    python -m benchmarks.text_speed_cpu                    every part, each under three minutes on two quiet cores
    python -m benchmarks.text_speed_cpu --part peers       one of: forms, peers, quality, trained
    python -m benchmarks.text_speed_cpu --table            print the tables of docs/text.md, from the result file

forms     milliseconds of a step of a model of 17 million parameters, plain, fused and int8, for one row and sixteen
peers     tokens per second of greedy decoding, sixteen rows of equal length, the same weights in transformers'
          `generate`; both with a KV cache, in float32; the tokens must be equal. And what the machine can do at most
quality   perplexity of a model of 17 million parameters, trained for a minute on Python's documentation, with float32
          and with int8 weights
trained   the same of the model of `qkv train text`, trained to its end, on the test text

All run in turns in one process; figures are medians, of rounds after the first. Writes
benchmarks/results/text_speed_cpu.json; a part replaces only its own figures.
"""

import argparse
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.machine import about
from qkv import runs
from qkv.decode import SearchLimits, greedy
from qkv.inference import measure_perplexity
from qkv.inference.sliding_window import IGNORE_INDEX
from qkv.interop import load_gpt2
from qkv.models import Decoder, DecoderConfig
from qkv.models.fast.fused_decoder import fuse, quantize
from qkv.models.fast.products import PackedProduct
from qkv.tasks import TextTask
from qkv.tasks.text import collate
from qkv.train import Loop, create_run

RESULTS = Path(__file__).parent / "results" / "text_speed_cpu.json"
SIZES: dict[str, Any] = {"dim": 384, "heads": 6, "hidden_dim": 1536, "layers": 8, "max_length": 1024}
TOKENS = 8192
KINDS = (("softmax", None), ("taylor", 16), ("delta", None))
"""Kinds with their key_dim."""
PROMPT, BURST = 64, 10
SHAPES = {
    "GPT-2 small: 12 layers of 768, 50,257 tokens": (768, 12, 12, 50257),
    "6 layers of 384, 50,257 tokens": (384, 6, 6, 50257),
    "6 layers of 384, 8,192 tokens": (384, 6, 6, 8192),
    "4 layers of 128, 2,000 tokens": (128, 4, 4, 2000),
}
"""Name -> dim, layers, heads, vocabulary."""
ROWS, NEW = 16, 64
STEPS, BATCH, LENGTH, EVALUATED = 60, 8, 128, 20_000
"""Training and evaluation of part `quality`."""

Call = Callable[[], Any]


def in_turns(calls: dict[str, Call], rounds: int) -> dict[str, float]:
    """Return the median seconds of each call; the first round does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(found[1:]) for name, found in seconds.items()}


@torch.inference_mode()
def compare_forms(rounds: int) -> dict[str, Any]:
    """Measure steps of each form, in bursts, since a model is used for many steps in a row."""
    found: dict[str, Any] = {"setting": {**SIZES, "tokens": TOKENS, "prompt": PROMPT, "dtype": "float32"}}
    for kind, key_dim in KINDS:
        torch.manual_seed(0)
        model = Decoder(DecoderConfig(**SIZES, attention=kind, key_dim=key_dim), TOKENS).eval()
        started = time.perf_counter()
        forms = {"plain": model, "fused": fuse(model), "int8": quantize(model)}
        packing = time.perf_counter() - started
        for rows in (1, ROWS):
            bursts = {name: _burst(form, rows) for name, form in forms.items()}
            milliseconds = {name: 1e3 * x / BURST for name, x in in_turns(bursts, rounds).items()}
            found[f"{kind}, {rows} rows" if rows > 1 else f"{kind}, 1 row"] = {
                "parameters": sum(x.numel() for x in model.parameters()),
                "milliseconds per step": {name: round(x, 3) for name, x in milliseconds.items()},
                "speedup": {name: round(milliseconds["plain"] / milliseconds[name], 2) for name in ("fused", "int8")},
                "tokens per second": {name: round(1e3 * rows / x) for name, x in milliseconds.items()},
                "seconds to pack both": round(packing, 3),
            }
    return found


def _burst(model: Decoder, rows: int) -> Call:
    """Return a call that takes some steps, always after the same prompt."""
    prompt = torch.randint(0, TOKENS, (rows, PROMPT), generator=torch.Generator().manual_seed(0))
    first = model.start(prompt, None)

    def run() -> None:
        state = first.fork()
        tokens = prompt[:, -1]
        for _ in range(BURST):
            logits, state = model.step(tokens, state)
            tokens = logits.argmax(-1)

    return run


def compare_peers(rounds: int) -> dict[str, Any]:
    """Measure greedy decoding in transformers and here."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    found: dict[str, Any] = {"machine": measure_machine()}
    found["setting"] = {"rows": ROWS, "prompt": PROMPT, "new tokens": NEW, "dtype": "float32", "cache": "both"}
    for name, sizes in SHAPES.items():
        found[name] = compare_peer(*sizes, rounds)
    return found


def compare_peer(dim: int, layers: int, heads: int, vocabulary: int, rounds: int) -> dict[str, Any]:
    """Measure one shape; raise unless all write the same tokens."""
    theirs, plain = build_gpt2(dim, layers, heads, vocabulary)
    fused = fuse(plain)
    prompt = torch.randint(0, vocabulary - 1, (ROWS, PROMPT), generator=torch.Generator().manual_seed(1))

    def generate() -> Tensor:
        with torch.inference_mode():
            own: Any = theirs
            options = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
            found: Tensor = own.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
            return found[:, PROMPT:]

    calls = {"transformers": generate, "plain": lambda: write(plain, prompt), "fused": lambda: write(fused, prompt)}
    written = {form: call().tolist() for form, call in calls.items()}
    if not written["transformers"] == written["plain"] == written["fused"]:
        raise SystemExit(f"not timed, because the tokens differ: {dim}, {layers}, {vocabulary}")
    seconds = in_turns(calls, rounds)
    products = sum(x.numel() for name, x in plain.named_parameters() if "embed" not in name and "table" not in name)
    products += vocabulary * dim
    return {
        "parameters": sum(x.numel() for x in plain.parameters()),
        "tokens per second": {form: round(ROWS * NEW / x) for form, x in seconds.items()},
        "fused / transformers": round(seconds["transformers"] / seconds["fused"], 2),
        "plain / transformers": round(seconds["transformers"] / seconds["plain"], 2),
        "milliseconds per step, prompt included": {form: round(1e3 * x / NEW, 2) for form, x in seconds.items()},
        "multiplications per step": ROWS * products,
        "bytes of weights": 4 * products,
        "bytes of KV cache at the end": 4 * 2 * ROWS * layers * dim * (PROMPT + NEW),
    }


def build_gpt2(dim: int, layers: int, heads: int, vocabulary: int) -> tuple[GPT2LMHeadModel, Decoder]:
    """Return a GPT-2 of transformers with random weights, spread so that its texts vary, and ours with the same."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "n_embd": dim,
        "n_layer": layers,
        "n_head": heads,
        "vocab_size": vocabulary,
        "n_positions": 1024,
    }
    theirs = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)).eval()
    with torch.no_grad():
        for weights in theirs.parameters():
            weights.mul_(3 if weights.dim() > 1 else 1)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return theirs, load_gpt2(folder)


class Continued:
    """A model whose search starts after the last token of each row: `greedy` knows one start token for all rows."""

    def __init__(self, model: Decoder, last: Tensor):
        self.model, self.last = model, last
        self.started = False

    def start(self, inputs: Tensor, mask: Tensor | None) -> Any:
        """Return the state after the inputs."""
        return self.model.start(inputs, mask)

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Return the logits after these tokens, at first after the last ones of the prompt."""
        tokens = tokens if self.started else self.last
        self.started = True
        return self.model.step(tokens, state)


def write(model: Decoder, prompt: Tensor) -> Tensor:
    """Return the greedy continuation of each row; the last token of the vocabulary ends a row, which none may write."""
    limits = SearchLimits(NEW, start=0, end=model.embed.num_embeddings - 1, forbidden=())
    found = greedy(Continued(model, prompt[:, -1]), prompt[:, :-1], None, limits)
    return torch.tensor([one.tokens for one in found])


@torch.inference_mode()
def measure_machine() -> dict[str, float]:
    """Return what the machine does at most: bytes per second, and multiplications per second of three products."""
    x, weight, bias = torch.randn(ROWS, 768), torch.randn(3072, 768), torch.zeros(3072)
    transposed, packed, big = weight.T.contiguous(), PackedProduct(weight, bias), torch.randn(2**26)
    seconds = in_turns(
        {
            "read": big.sum,
            "linear": lambda: [nn.functional.linear(x, weight, bias) for _ in range(20)],
            "transposed": lambda: [torch.addmm(bias, x, transposed) for _ in range(20)],
            "packed": lambda: [packed(x) for _ in range(20)],
        },
        rounds=9,
    )
    count = 20 * ROWS * weight.numel() / 1e9
    rates = {f"1e9 multiplications/s, {x}": round(count / seconds[x], 1) for x in ("linear", "transposed", "packed")}
    return {"GB/s read": round(big.nbytes / 1e9 / seconds["read"], 1), **rates}


def measure_quality(_rounds: int) -> dict[str, Any]:
    """Train a model for a minute, and return its perplexity on the validation text with float32 and int8 weights."""
    task = TextTask.load({"source": "python", "size": TOKENS, "sample": 1_000_000, "length": LENGTH})
    torch.manual_seed(0)
    model = Decoder(DecoderConfig(**SIZES), len(task.tokenizer))
    task.init_weights(model)
    loss = train(model, task)
    valid = list(task.splits["valid"])
    forms = {"float32": model.eval(), "int8": quantize(model)}
    with torch.inference_mode():
        found = {
            name: measure_perplexity(form, task.tokenizer, valid, LENGTH, LENGTH // 2, EVALUATED).per_token
            for name, form in forms.items()
        }
    return {
        "setting": {**SIZES, "steps": STEPS, "batch": BATCH, "length": LENGTH, "source": "python"},
        "parameters": sum(x.numel() for x in model.parameters()),
        "loss of the last training step": round(loss, 3),
        "perplexity": {name: round(x, 3) for name, x in found.items()},
        "change": round(found["int8"] / found["float32"] - 1, 5),
    }


def measure_trained(_rounds: int) -> dict[str, Any]:
    """Train as `qkv train text` does, and return the perplexity on the test text with float32 and int8 weights."""
    config = runs.configure("text", runs.preset("text", None), {})
    task = TextTask.load(config.data)
    model = runs.build(config, task)
    assert isinstance(model, Decoder)
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(task.objective(model, config.train), config.train, create_run(Path(folder) / "run"))
        loop.train()
        model.load_state_dict(loop.best)
    forms = {"float32": model.eval(), "int8": quantize(model)}
    with torch.inference_mode():
        found = {name: task.evaluate(form, "test") for name, form in forms.items()}
    perplexities = {name: metrics["perplexity"] for name, metrics in found.items()}
    return {
        "setting": {"model": config.model, "steps": config.train.steps, "data": config.data},
        "parameters": sum(x.numel() for x in model.parameters()),
        "tokens": found["float32"]["tokens"],
        "best step": loop.progress.best_step,
        "perplexity": {name: round(x, 3) for name, x in perplexities.items()},
        "change": round(perplexities["int8"] / perplexities["float32"] - 1, 5),
    }


def train(model: Decoder, task: TextTask) -> float:
    """Take some steps on the beginning of the training text; return the loss of the last."""
    ids: list[int] = []
    for document in task.splits["train"]:
        ids += [task.tokenizer.start, *task.tokenizer.encode(document), task.tokenizer.end]
        if len(ids) > STEPS * BATCH * (LENGTH + 1):
            break
    rows = torch.tensor(ids[: STEPS * BATCH * (LENGTH + 1)]).view(STEPS, BATCH, LENGTH + 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    for step, row in enumerate(rows):
        optimizer.param_groups[0]["lr"] = 1e-3 * min(1, (step + 1) / 10)
        batch = collate(row, task.tokenizer)
        logits = model(batch.input_ids, packing=batch.packing).flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, batch.target_ids.flatten(), ignore_index=IGNORE_INDEX)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return loss.item()


def table(result: dict[str, Any]) -> str:
    """Return the result as the tables of docs/text.md."""
    lines = ["| kind, rows | ms per step, plain | fused | int8 | fused | int8 |", "|---|---|---|---|---|---|"]
    for name, found in result["forms"].items():
        if name != "setting":
            times, ratios = found["milliseconds per step"], found["speedup"]
            cells = [f"{times[form]:.2f}" for form in ("plain", "fused", "int8")]
            cells += [f"{ratios[form]:.2f}x" for form in ("fused", "int8")]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "| GPT-2 shape | tokens/s, `transformers` | fused | ratio |", "|---|---|---|---|"]
    for name, found in result["peers"].items():
        if name not in ("machine", "setting"):
            rates = found["tokens per second"]
            ratio = f"{found['fused / transformers']:.2f}x"
            lines.append(f"| {name} | {rates['transformers']:,} | {rates['fused']:,} | {ratio} |")
    lines += ["", "| model | perplexity, float32 | int8 | change |", "|---|---|---|---|"]
    for part in ("quality", "trained"):
        found = result[part]
        perplexities = " | ".join(f"{found['perplexity'][form]:.2f}" for form in ("float32", "int8"))
        lines.append(f"| {found['parameters']:,} parameters | {perplexities} | {found['change']:+.2%} |")
    return "\n".join(lines)


PARTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "forms": compare_forms,
    "peers": compare_peers,
    "quality": measure_quality,
    "trained": measure_trained,
}


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--part", choices=PARTS, help="only this part (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="timed runs of each (default: 5)")
    parser.add_argument("--result", type=Path, default=RESULTS, help="where to write")
    parser.add_argument("--table", action="store_true", help="measure nothing: print the result file as tables")
    given = parser.parse_args()
    if given.table:
        print(table(json.loads(given.result.read_text())))
        return
    before = json.loads(given.result.read_text()) if given.result.exists() else {}
    result = {**before, **about(), "command": "python -m benchmarks.text_speed_cpu"}
    result["transformers"] = transformers.__version__
    for name in PARTS if given.part is None else [given.part]:
        result[name] = PARTS[name](given.rounds)
        print(name, json.dumps(result[name], indent=1))
    given.result.parent.mkdir(exist_ok=True)
    given.result.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

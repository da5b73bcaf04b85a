"""Speculative decoding against plain decoding: the same tokens, and the same distribution.

    python -m benchmarks.states_speculative

Greedy: random models of every kind continue prompts, once plain and once with a draft, in float64 and float32. Drafts
take turns: the model itself, a copy with changed weights, an n-gram of the text, and the least probable tokens. A first
difference counts as a tie if the two best logits are closer than 1e-5, else as an error.

Sampling: a model whose attention sees one token is a Markov chain, so that the probability of every pair of tokens is
known; the tokens of long texts are counted. For each other kind, the first two tokens after a prompt are counted.
Writes benchmarks/results/states_speculative_cpu.json.
"""

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.machine import about
from qkv.attention import kinds
from qkv.decode import SearchLimits, argmax_token, sampler, stream
from qkv.inference.speculative import (
    Draft,
    ModelDraft,
    PromptNgramDraft,
    Proposal,
    SpeculationStatistics,
    speculative_stream,
)
from qkv.inference.speculative.draft import Pick
from qkv.models import Decoder, DecoderConfig

RESULTS = Path(__file__).parent / "results" / "states_speculative_cpu.json"
VOCABULARY, CHAIN_VOCABULARY, END = 31, 7, 2
KINDS = (*kinds, "softmax(window=3)", "softmax+forget", "delta+forget+write", "linear,softmax")
TIE = 1e-5
"""Difference of the two best logits below which float32 may choose either."""
SAMPLERS: tuple[dict[str, Any], ...] = ({}, {"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.8})
CHAIN_LENGTH = 500
TEMPERATURE = 2.0
"""Temperature of the texts of each kind, so that no token is rare."""
SIGNIFICANCE = 0.01


class LeastProbable(Draft):
    """A draft that is wrong wherever it can be."""

    def __init__(self, model: Decoder):
        self.inner = ModelDraft(model)

    def propose(self, ids: Sequence[int], count: int, pick: Pick) -> Proposal:
        """Return the least probable tokens."""
        return self.inner.propose(ids, count, lambda logits, _: (int(logits.argmin()), None))


def make_model(attention: str, vocabulary: int = VOCABULARY, positions: str = "sinusoidal") -> Decoder:
    """Return a random model whose predictions vary from token to token."""
    torch.manual_seed(0)
    layers = 2 if "," in attention else 1
    config = DecoderConfig(
        dim=16, heads=2, hidden_dim=32, layers=layers, attention=attention, positions=positions, tied=False
    )
    model = Decoder(config, vocabulary).double().eval()
    with torch.no_grad():
        for weight in (model.embed.weight, model.lm_head.weight):
            weight.normal_(std=0.5)
    return model


def perturb(model: Decoder, std: float = 0.05) -> Decoder:
    """Return a copy with changed weights, as a draft that is often right."""
    other = deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(std * torch.randn_like(weight))
    return other


def make_draft(number: int, model: Decoder, similar: Decoder) -> tuple[str, Draft]:
    """Return the draft whose turn it is, and its name."""
    made: tuple[tuple[str, Draft], ...] = (
        ("the model itself", ModelDraft(model)),
        ("changed weights", ModelDraft(similar)),
        ("n-gram", PromptNgramDraft()),
        ("least probable", LeastProbable(model)),
    )
    return made[number % len(made)]


def compare_greedy(attention: str, dtype: torch.dtype, prompts: int, tokens: int) -> dict[str, Any]:
    """Return how many texts are identical, tied or different, and what the drafts were worth."""
    model = make_model(attention).to(dtype)
    similar = perturb(model)
    found, worth = Counter[str](), dict[str, SpeculationStatistics]()
    draw = random.Random(1)
    for number in range(prompts):
        ids = [draw.randrange(VOCABULARY) for _ in range(draw.randrange(1, 12))]
        inputs, limits = torch.tensor([ids]), SearchLimits(tokens, start=5, end=END, forbidden=(0, 1))
        plain = [token for token, _ in stream(model, inputs, limits, argmax_token)]
        name, draft = make_draft(number, model, similar)
        counts = worth.setdefault(name, SpeculationStatistics())
        pairs = speculative_stream(model, inputs, limits, argmax_token, draft, statistics=counts)
        found[judge(model, [*ids, 5], plain, [token for token, _ in pairs])] += 1
    return {
        **{name: found[name] for name in ("identical", "tied", "different")},
        "accepted per step": {name: round(counts.accepted_per_step, 2) for name, counts in worth.items()},
        "tokens per step": {name: round(counts.tokens_per_step, 2) for name, counts in worth.items()},
    }


@torch.inference_mode()
def judge(model: Decoder, prompt: list[int], plain: list[int], other: list[int]) -> str:
    """Return whether two texts are identical, or tied or different where they first differ."""
    if plain == other:
        return "identical"
    place = next((n for n, (a, b) in enumerate(zip(plain, other, strict=False)) if a != b), None)
    if place is None or next(model.parameters()).dtype == torch.float64:
        return "different"
    logits = model(torch.tensor([[*prompt, *plain[:place]]]))[0, -1].index_fill(0, torch.tensor([0, 1]), -torch.inf)
    best = logits.topk(2).values
    return "tied" if float(best[0] - best[1]) < TIE else "different"


def count_chain(draws: int) -> Iterator[tuple[str, float, int]]:
    """Yield (what was drawn, chi-square, degrees of freedom) of a Markov chain; the draws are shared out."""
    model = make_model("softmax(window=1)", CHAIN_VOCABULARY, "none")
    silence(model, END)
    similar = perturb(model, 0.15)
    with torch.inference_mode():
        logits = model(torch.arange(CHAIN_VOCABULARY)[:, None])[:, 0].index_fill(1, torch.tensor([0, 1]), -torch.inf)
    log_probabilities = logits.log_softmax(-1)
    limits = SearchLimits(CHAIN_LENGTH, start=5, end=END, forbidden=(0, 1))
    for number, options in enumerate(SAMPLERS):
        pairs: Counter[tuple[int, int]] = Counter()
        for seed in range(draws // len(SAMPLERS) // CHAIN_LENGTH):
            draft = ModelDraft(similar) if seed % 3 else PromptNgramDraft()
            choose = sampler(seed=seed + 10_000 * number, **options)
            text = speculative_stream(model, torch.tensor([[4]]), limits, choose, draft)
            pairs.update(pairwise([5, *(token for token, _ in text)]))
        expected = sampler(seed=0, **options).weights(log_probabilities)
        yield (f"chain, {options or 'as it is'}", *chi_square_of_pairs(pairs, expected))


def silence(model: Decoder, token: int) -> None:
    """Give a token a logit of -100 everywhere, so that texts do not end."""
    with torch.no_grad():
        model.norm.weight[0], model.norm.bias[0] = 0, 10
        model.lm_head.weight[:, 0] = 0
        model.lm_head.weight[token] = 0
        model.lm_head.weight[token, 0] = -10


def chi_square_of_pairs(pairs: Counter[tuple[int, int]], weights: Tensor) -> tuple[float, int]:
    """Return chi-square of the tokens after each token, and its degrees of freedom."""
    total, degrees = 0.0, 0
    for token in sorted({first for first, _ in pairs}):
        row = {second: count for (first, second), count in pairs.items() if first == token}
        found, free = chi_square(row, (weights[token] / weights[token].sum()).tolist())
        total, degrees = total + found, degrees + free
    return total, degrees


def chi_square(counts: dict[int, int], shares: list[float]) -> tuple[float, int]:
    """Return chi-square and its degrees of freedom; outcomes expected less than 5 times are counted together."""
    if any(count and not shares[token] for token, count in counts.items()):
        return float("inf"), 1
    draws = sum(counts.values())
    cells = sorted((share * draws, counts.get(token, 0)) for token, share in enumerate(shares) if share)
    while len(cells) > 1 and cells[0][0] < 5:
        (first, drawn), (second, also), *rest = cells
        cells = sorted([(first + second, drawn + also), *rest])
    return sum((count - mean) ** 2 / mean for mean, count in cells), len(cells) - 1


def count_kind(attention: str, texts: int) -> tuple[str, float, int]:
    """Return (kind, chi-square, degrees of freedom) of the first two tokens after a prompt, the first without draft."""
    model = make_model(attention, CHAIN_VOCABULARY)
    similar = perturb(model, 0.15)
    prompt, allowed = [4, 3, 4, 3, 5], [3, 4, 5, 6]
    limits = SearchLimits(3, start=5, end=END, forbidden=(0, 1))
    pairs: Counter[tuple[int, int]] = Counter()
    for seed in range(texts):
        draft = ModelDraft(similar) if seed % 3 else PromptNgramDraft(1)
        # seeds of its own for each kind: the sum over kinds is a chi-square only if they are independent
        choose = sampler(seed=1_000_000 * (1 + KINDS.index(attention)) + seed, temperature=TEMPERATURE)
        text = speculative_stream(model, torch.tensor([prompt[:-1]]), limits, choose, draft)
        tokens = [token for token, _ in text]
        if len(tokens) > 1:
            pairs[tokens[0], tokens[1]] += 1
    with torch.inference_mode():
        rows = torch.tensor([[*prompt, token] for token in allowed])
        logits = model(rows)[:, -1].index_fill(1, torch.tensor([0, 1]), -torch.inf)
    weights = torch.zeros(CHAIN_VOCABULARY, CHAIN_VOCABULARY, dtype=torch.float64)
    weights[allowed] = (logits / TEMPERATURE).softmax(-1)
    return (attention, *chi_square_of_pairs(pairs, weights))


def probability_of_more(chi_square: float, degrees: int) -> float:
    """Return the probability of a larger chi-square if the distribution is right."""
    if not degrees:
        return 1.0
    half = torch.tensor([degrees / 2, chi_square / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def compare_sampling(draws: int, texts: int) -> dict[str, Any]:
    """Return chi-square of each sampler and kind, and of all of them together."""
    parts = [*count_chain(draws), *(count_kind(attention, texts) for attention in KINDS)]
    record: dict[str, Any] = {"draws": draws, "texts per kind": texts}
    record["parts"] = {
        name: {"chi_square": round(found, 2), "degrees": free, "p": round(probability_of_more(found, free), 4)}
        for name, found, free in parts
    }
    for name, chosen in (("chain", parts[: len(SAMPLERS)]), ("kinds", parts[len(SAMPLERS) :])):
        found, free = sum(part[1] for part in chosen), sum(part[2] for part in chosen)
        record[f"all of {name}"] = {
            "chi_square": round(found, 2),
            "degrees": free,
            "p": round(probability_of_more(found, free), 4),
        }
    return record


def main() -> None:
    """Compare, write, print; exit with 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--prompts", type=int, default=200, help="prompts of each kind (default: 200)")
    parser.add_argument("--tokens", type=int, default=16, help="tokens after each (default: 16)")
    parser.add_argument("--draws", type=int, default=100_000, help="tokens to draw (default: 100,000)")
    parser.add_argument("--texts", type=int, default=400, help="short texts of each kind (default: 400)")
    parser.add_argument("--result", type=Path, default=RESULTS, help="where to write")
    given = parser.parse_args()
    result: dict[str, Any] = {**about(), "command": "python -m benchmarks.states_speculative", "prompts": given.prompts}
    result["greedy"] = {}
    for dtype in (torch.float64, torch.float32):
        for attention in KINDS:
            found = compare_greedy(attention, dtype, given.prompts, given.tokens)
            result["greedy"].setdefault(str(dtype).removeprefix("torch."), {})[attention] = found
            print(dtype, attention, json.dumps(found), flush=True)
    result["sampling"] = compare_sampling(given.draws, given.texts)
    print(json.dumps(result["sampling"], indent=1))
    different = sum(found["different"] for records in result["greedy"].values() for found in records.values())
    rejected = [name for name in ("chain", "kinds") if result["sampling"][f"all of {name}"]["p"] < SIGNIFICANCE]
    result["passed"] = not different and not rejected
    given.result.parent.mkdir(exist_ok=True)
    given.result.write_text(json.dumps(result, indent=1) + "\n")
    if not result["passed"]:
        raise SystemExit(f"{different} texts differ; rejected at {SIGNIFICANCE}: {rejected}")


if __name__ == "__main__":
    main()

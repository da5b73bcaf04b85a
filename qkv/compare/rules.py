"""The rules of a comparison as sentences: what was chosen on what, and what was equal for all candidates."""

from collections.abc import Sequence
from typing import Any

from qkv.metrics.display import format_metric


def describe_rules(records: Sequence[dict[str, Any]], rates: Sequence[Sequence[float]], fraction: float) -> list[str]:
    """Return a sentence each on learning rates (`rates` of each candidate), seeds, tokens, chance and time."""
    trained = [record for record in records if record["figures"]]
    if not trained:
        return []
    return [
        _describe_search(rates, fraction),
        f"seeds: {_count([len(record['seeds']) for record in trained])} at the chosen learning rate",
        _describe_tokens(trained),
        f"chance: {format_metric('chance', trained[0]['chance'])}",
        f"time: {sum(record['seconds'] for record in records) / 60:.1f} minutes of training",
    ]


def _describe_search(rates: Sequence[Sequence[float]], fraction: float) -> str:
    tried = [len(each) for each in rates]
    if max(tried) == 1:
        return "learning rates: one for each candidate, none was chosen: a comparison with one rate is no fair one"
    length = "over the whole length" if fraction == 1 else f"over {fraction:.0%} of the length"
    few = "" if min(tried) > 2 else "; fewer than three are no fair choice"
    chosen = f"with one seed {length}, chosen by held-out score{few}"
    return f"learning rates: {_count(tried)} tried for each candidate, {chosen}"


def _describe_tokens(records: Sequence[dict[str, Any]]) -> str:
    unit = records[0]["unit"]
    seen = [tokens for record in records for tokens in record["tokens"]]
    if min(seen) == max(seen):
        return f"equal tokens: each training learned from {seen[0]:,} {unit}"
    return f"tokens differ: trainings learned from {min(seen):,} to {max(seen):,} {unit}"


def _count(counts: Sequence[int]) -> str:
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"

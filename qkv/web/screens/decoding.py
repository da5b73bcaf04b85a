"""Screen 4, decoding: the tree of a beam with the greedy path in it, and what stands behind each node."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from qkv.data import Vocabulary
from qkv.decode import Limits
from qkv.explain import next_tokens, observe, search_tree
from qkv.tasks import Task, Seq2SeqTask
from qkv.tasks.seq2seq import limits_of
from qkv.web.params import text_of, whole_of
from qkv.web.reading import names, read_source
from qkv.web.wire import Answer

LIKELIEST = 20
MOST_BEAMS = 16
LONGEST = 128
"""Tokens of an answer, END included."""
DEFAULT = {"beams": 4, "power": 0, "prefix": ""}
IMPORTS = ("from qkv.explain import next_tokens, search_tree", "from qkv.tasks.seq2seq import limits_of")
"""What the Python of this screen needs."""


def handlers(job: Task, model: nn.Module, code: list[str]) -> dict[str, Callable[[Mapping[str, Any]], Answer]]:
    """What can be asked of a run that writes, nothing of others; `code` restores the model in Python."""
    if not isinstance(job, Seq2SeqTask):
        return {}

    def searched(asked: Mapping[str, Any]) -> Answer:
        found = search(job, model, asked)
        return replace(found, record={**found.record, "code": code})

    return {"search": searched, "node": lambda asked: node(job, model, asked)}


def questions(job: Task, model: nn.Module, asked: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """For a saved page: the tree, and what stands behind its kept nodes."""
    if not isinstance(job, Seq2SeqTask):
        return
    yield "search", dict(DEFAULT)
    found = search(job, model, {**asked, **DEFAULT}).record
    for one in found["nodes"]:
        # nothing comes after END, nor after the longest that can be written
        if (one["kept"] or one["greedy"]) and not one["end"] and one["step"] < found["limit"]:
            yield "node", {"prefix": one["prefix"]}


def search(job: Seq2SeqTask, model: nn.Module, asked: Mapping[str, Any]) -> Answer:
    """Beam and greedy in one tree; `prefix` forces what both begin with, `power` is ten times the length power."""
    source = read_source(job, model, text_of(asked, "text"))
    limits = _limits(model)
    found = search_tree(
        model,
        source.ids,
        limits,
        beams=whole_of(asked, "beams", 4, 1, MOST_BEAMS),
        length_power=whole_of(asked, "power", 0, 0, 20) / 10,
        prefix=_prefix(job, asked, limits.end),
    )
    targets = job.strings.targets
    prefixes = [""]
    nodes = []
    for number, branch in enumerate(found.branches):
        if number:
            assert branch.parent is not None
            before = prefixes[branch.parent]
            prefixes.append(f"{before}.{branch.token}" if before else str(branch.token))
        nodes.append(
            {
                "parent": branch.parent,
                "token": _name(targets, branch.token),
                "own": branch.own,
                "log": branch.log_probability,
                "step": branch.step,
                "kept": branch.kept,
                "end": branch.token == limits.end,
                "seen": branch.looked_at,
                "greedy": branch.greedy,
                "prefix": prefixes[number],
            }
        )
    notes = [*source.notes]
    if limits.max_length == LONGEST:
        notes.append(f"answers are cut at {LONGEST} tokens on this page")
    record = {"nodes": nodes, "best": found.best, "greedy": found.greedy, "rescored": found.rescored}
    return Answer({**record, "notes": notes, "source": source.tokens, "ids": source.ids, "limit": limits.max_length})


def node(job: Seq2SeqTask, model: nn.Module, asked: Mapping[str, Any]) -> Answer:
    """What the model thinks comes after a prefix, and where it looks meanwhile."""
    source = read_source(job, model, text_of(asked, "text"))
    limits = _limits(model)
    prefix = _prefix(job, asked, limits.end)
    if len(prefix) >= limits.max_length:
        raise ValueError(f"the prefix has {len(prefix)} tokens; this model writes {limits.max_length} with END")
    logs = next_tokens(model, source.ids, prefix, limits)
    order = sorted(range(len(logs)), key=lambda token: (-logs[token], token))[:LIKELIEST]
    likeliest = [(token, math.exp(logs[token])) for token in order if logs[token] > -math.inf]
    looks = [look for look in observe(model, source.ids, prefix) if look.site.rows == "written"]
    # the last row is what the token after the prefix sees
    weights = torch.stack([look.call.weights()[0, :, -1].mean(0) for look in looks]) if looks else torch.zeros(0, 0)
    return Answer(
        {
            "tokens": [_name(job.strings.targets, token) for token, _ in likeliest],
            "ids": [token for token, _ in likeliest],
            "probabilities": [probability for _, probability in likeliest],
            "total": math.fsum(math.exp(log) for log in logs),
            "source": source.tokens,
            "places": [look.site.name for look in looks],
        },
        {"attention": weights},
    )


def _limits(model: nn.Module) -> Limits:
    """As long as the model can write, but not longer than a tree can be drawn."""
    limits = limits_of(model)
    return replace(limits, max_length=min(limits.max_length, LONGEST))


def _name(targets: Vocabulary, token: int) -> str:
    return {Vocabulary.START: "START", Vocabulary.END: "END"}.get(token) or names(targets, [token])[0]


def _prefix(job: Seq2SeqTask, asked: Mapping[str, Any], end: int) -> list[int]:
    """Token ids with dots between them, as the address of the page has them."""
    parts = [part for part in text_of(asked, "prefix").split(".") if part]
    count = len(job.strings.targets)
    for part in parts:
        if not (part.isascii() and part.isdigit() and len(part) < 10 and 2 <= int(part) < count) or int(part) == end:
            raise ValueError(
                f"prefix must be token ids from 3 to {count - 1} with dots between them, got {part[:20]!r}"
            )
    return [int(part) for part in parts]

"""Screen 4, decoding: a beam search as a tree with the greedy path in it, and the next tokens of each node."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from qkv.decode import SearchLimits
from qkv.explain import SearchNode, next_token_log_probs, observe, search_tree
from qkv.inference.seq2seq import search_limits
from qkv.web.backend import Backend, TargetReader
from qkv.web.params import Params, get_int, get_text
from qkv.web.screens.base import Handler, Query, Screen
from qkv.web.wire import Response

TOP_TOKENS = 20
MAX_BEAMS = 16
MAX_LENGTH = 128
"""Maximum number of tokens of an answer that is drawn, including END."""
DEFAULTS = {"beams": 4, "length_penalty": 0, "prefix": ""}
CODE_IMPORTS = (
    "from qkv.explain import next_token_log_probs, search_tree",
    "from qkv.inference.seq2seq import search_limits",
)
"""Imports of the Python code that this screen shows."""


class Decoding(Screen):
    """Beam and greedy search of a model that generates a target."""

    name = "decoding"
    integers = ("beams", "length_penalty", "node", "dropped")

    def is_available(self, backend: Backend) -> bool:
        """Return whether the model generates targets."""
        return backend.target_reader is not None

    def handlers(self, backend: Backend) -> dict[str, Handler]:
        """Return `search` and `node`."""
        decoder = _decoder(backend)
        return {"search": decoder.search, "node": decoder.next_tokens}

    def saved_queries(self, backend: Backend, params: Params) -> Iterator[Query]:
        """Yield the tree with the default settings, and the next tokens of its kept nodes."""
        yield Query("search", dict(DEFAULTS))
        found = _decoder(backend).search({**params, **DEFAULTS}).record
        for node in found["nodes"]:
            # no token follows END, nor the longest answer
            can_continue = not node["end"] and node["step"] < found["max_length"]
            if (node["kept"] or node["greedy"]) and can_continue:
                yield Query("node", {"prefix": node["prefix"]})


def _decoder(backend: Backend) -> "_Decoder":
    assert backend.model is not None
    assert backend.target_reader is not None
    return _Decoder(backend.model, backend.target_reader, backend.restore_code(*CODE_IMPORTS))


@dataclass(frozen=True)
class _Decoder:
    """A model that generates targets, and its vocabulary."""

    model: nn.Module
    reader: TargetReader
    code: list[str]

    def search(self, params: Params) -> Response:
        """Return beam and greedy search in one tree; `prefix` forces how both begin.

        `length_penalty` is in tenths.
        """
        source = self.reader.read(get_text(params, "text"))
        limits = self._limits()
        found = search_tree(
            self.model,
            source.ids,
            limits,
            beams=get_int(params, "beams", 4, 1, MAX_BEAMS),
            length_penalty=get_int(params, "length_penalty", 0, 0, 20) / 10,
            prefix=self._prefix(params, limits),
        )
        notes = [*source.notes]
        if limits.max_length == MAX_LENGTH:
            notes.append(f"this page stops answers after {MAX_LENGTH} tokens")
        return Response(
            {
                "nodes": self._node_records(found.nodes, limits),
                "best": found.best,
                "greedy": found.greedy,
                "rescored": found.rescored,
                "notes": notes,
                "source": source.tokens,
                "ids": source.ids,
                "max_length": limits.max_length,
                "code": self.code,
            }
        )

    def next_tokens(self, params: Params) -> Response:
        """Return the distribution of the token after a prefix, and the attention over the source at that step."""
        source = self.reader.read(get_text(params, "text"))
        limits = self._limits()
        prefix = self._prefix(params, limits)
        if len(prefix) >= limits.max_length:
            raise ValueError(f"prefix must have fewer than max_length={limits.max_length} tokens, got {len(prefix)}")
        log_probs = next_token_log_probs(self.model, source.ids, prefix, limits)
        order = sorted(range(len(log_probs)), key=lambda token: (-log_probs[token], token))[:TOP_TOKENS]
        top = [token for token in order if log_probs[token] > -math.inf]
        records = [record for record in observe(self.model, source.ids, prefix) if record.site.rows == "generated"]
        # the last row is the query of the token after the prefix
        rows = [record.call.weights()[0, :, -1].mean(0) for record in records]
        return Response(
            {
                "tokens": [self._token_name(token, limits) for token in top],
                "ids": top,
                "probabilities": [math.exp(log_probs[token]) for token in top],
                "total": math.fsum(math.exp(log_prob) for log_prob in log_probs),
                "source": source.tokens,
                "sites": [record.site.name for record in records],
            },
            {"attention": torch.stack(rows) if rows else torch.zeros(0, 0)},
        )

    def _limits(self) -> SearchLimits:
        """Return the model's limits, with answers no longer than a tree can be drawn."""
        limits = search_limits(self.model)
        return replace(limits, max_length=min(limits.max_length, MAX_LENGTH))

    def _token_name(self, token: int, limits: SearchLimits) -> str:
        if token in (limits.start, limits.end):
            return "START" if token == limits.start else "END"
        return self.reader.target_names([token])[0]

    def _node_records(self, nodes: list[SearchNode], limits: SearchLimits) -> list[dict[str, Any]]:
        """Return the nodes as JSON; `prefix` has the token ids of the path, joined by dots."""
        prefixes: list[str] = []
        records = []
        for node in nodes:
            before = "" if node.parent is None else prefixes[node.parent]
            own = "" if node.parent is None else str(node.token)
            prefixes.append(".".join(part for part in (before, own) if part))
            records.append(
                {
                    "parent": node.parent,
                    "token": self._token_name(node.token, limits),
                    "token_log_prob": node.token_log_probability,
                    "log_prob": node.log_probability,
                    "step": node.step,
                    "kept": node.kept,
                    "end": node.token == limits.end,
                    "seen_by_beam": node.seen_by_beam,
                    "greedy": node.greedy,
                    "prefix": prefixes[-1],
                }
            )
        return records

    def _prefix(self, params: Params, limits: SearchLimits) -> list[int]:
        """Read token ids joined by dots, as the address bar holds them."""
        parts = [part for part in get_text(params, "prefix").split(".") if part]
        count = len(self.reader.targets)
        for part in parts:
            is_id = part.isascii() and part.isdigit() and len(part) < 10 and 2 <= int(part) < count
            if not is_id or int(part) == limits.end:
                raise ValueError(f"prefix must be token ids from 3 to {count - 1} joined by dots, got {part[:20]!r}")
        return [int(part) for part in parts]


screen = Decoding()

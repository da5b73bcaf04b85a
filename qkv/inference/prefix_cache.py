"""The prefix cache: prompts that begin alike are prefilled once.

    cache = PrefixCache(model, max_bytes=64 * 2**20)
    state = cache.start(ids)                   # equals model.start, from the longest prefix that is known

A prompt is prefilled in pieces of `block` tokens, whether or not its prefix is known, so that a hit and a miss give the
same bits. Prefixes are a tree with a block of tokens in each node:

    system prompt ── . ── . ─┬─ question 1 ── .        a node has the keys and values of its own block only:
                             └─ question 2             no prefix is stored twice
                             ^ sums are kept here and at the ends

Sums have one size, however long the prefix, but cannot be cut into blocks. They are kept at the end of each prompt, and
where the next one leaves the known path: the second prompt with a shared prefix leaves its sums at the fork, and the
third one finds them. The least recently used goes first.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from qkv.shapes import Mask, Rows

DEFAULT_BLOCK = 64
TOKEN_BYTES = 8


@dataclass(frozen=True)
class PrefixStatistics:
    """What a prefix cache was worth, and what it holds."""

    hits: int = 0
    """Prompts of which a prefix was known."""
    misses: int = 0
    tokens_reused: int = 0
    tokens_prefilled: int = 0
    bytes: int = 0
    """Bytes of the stored tensors and of the tokens of their prefixes."""
    max_bytes: int = 0
    prefixes: int = 0
    """Number of blocks in the tree."""
    evictions: int = 0


@dataclass(eq=False)
class _Node:
    """One block of tokens, after those of its parents."""

    parent: "_Node | None"
    key: bytes
    axes: Mapping[str, int] = field(default_factory=dict)
    """Axis of the tokens in each tensor of which every node of the path has a part."""
    parts: dict[str, Tensor] = field(default_factory=dict)
    """The parts of this block, and the tensors without axes."""
    sums: dict[str, Tensor] | None = None
    """The tensors that cannot be cut, if they are kept; {} if there are none."""
    children: dict[bytes, "_Node"] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Bytes of the tokens and of their parts."""
        return len(self.key) + _bytes(self.parts)


class PrefixCache:
    """States after prefixes of prompts, in at most `max_bytes`.

    What counts are the bytes of the stored tensors, and 8 for each token of their prefixes; room is made before a
    tensor is copied. The states that `start` returns are the caller's own and do not count. For any model with `start`
    and `prefill` whose weights stay the same (else `clear`). Used from one thread at a time.
    """

    def __init__(self, model: Any, max_bytes: int, block: int = DEFAULT_BLOCK):
        if not hasattr(model, "prefill"):
            raise ValueError(f"model must have prefill, as Decoder has, got {type(model).__name__}")
        if max_bytes < 0:
            raise ValueError(f"max_bytes must be at least 0, got {max_bytes}")
        if block < 1:
            raise ValueError(f"block must be at least 1, got {block}")
        self.model = model
        self.max_bytes = max_bytes
        self.block = block
        self.clear()

    def clear(self) -> None:
        """Forget all prefixes and counts."""
        self._root = _Node(None, b"", sums={})
        # (node, whether its sums or the node itself), the least recently used first
        self._recent: OrderedDict[tuple[_Node, bool], int] = OrderedDict()
        self._bytes = self._prefixes = 0
        self._counts = {"hits": 0, "misses": 0, "tokens_reused": 0, "tokens_prefilled": 0, "evictions": 0}

    def statistics(self) -> PrefixStatistics:
        """Return counts since the last `clear`, and what is stored now; from any thread."""
        return PrefixStatistics(bytes=self._bytes, max_bytes=self.max_bytes, prefixes=self._prefixes, **self._counts)

    def start(self, ids: Sequence[int]) -> Any:
        """Return the state of one row after these tokens."""
        *_, state = self.pieces(ids)
        return state

    def pieces(self, ids: Sequence[int]) -> Iterator[Any]:
        """Yield the state after each piece that is prefilled, the last after all tokens.

        Between two pieces other work can be done. Only the last state may be continued.
        """
        if getattr(self.model, "training", False):
            raise ValueError("model must be in eval mode: with dropout no two prefills are equal")
        ids = list(ids)
        blocks = [_pack(ids[start : start + self.block]) for start in range(0, len(ids) - self.block + 1, self.block)]
        path = self._match(blocks)
        known = max(depth for depth, node in enumerate(path) if node.sums is not None)
        self._touch(path, known)
        with torch.inference_mode():
            state = self._restore(path[: known + 1])
        self._count(known * self.block, len(ids))
        yield state
        writer = _Writer(self, path, keep={len(path) - 1, len(blocks)})
        for depth in range(known + 1, len(blocks) + 1):
            with torch.inference_mode():
                state = self._prefill(ids[(depth - 1) * self.block : depth * self.block], state).settled()
                writer.write(depth, blocks[depth - 1], state)
            yield state
        self._touch(writer.path, len(writer.path) - 1)
        if rest := ids[len(blocks) * self.block :]:
            with torch.inference_mode():
                state = self._prefill(rest, state)
            yield state

    def _match(self, blocks: Sequence[bytes]) -> list[_Node]:
        """Return the known path from the root along these blocks."""
        path = [self._root]
        for block in blocks:
            node = path[-1].children.get(block)
            if node is None:
                break
            path.append(node)
        return path

    def _touch(self, path: Sequence[_Node], sums: int) -> None:
        """Mark a path and the sums at this depth as used; parents after their children, so that they stay longer."""
        if (path[sums], True) in self._recent:
            self._recent.move_to_end((path[sums], True))
        for node in reversed(path):
            if (node, False) in self._recent:
                self._recent.move_to_end((node, False))

    def _restore(self, path: Sequence[_Node]) -> Any:
        """Return a state of its own after the blocks of this path."""
        device = next(self.model.parameters()).device
        empty = self.model.start(torch.zeros(1, 0, dtype=torch.int64, device=device), None)
        if len(path) == 1:
            return empty
        last = path[-1]
        assert last.sums is not None
        tensors = {name: x.clone() for name, x in (last.parts | last.sums).items() if name not in last.axes}
        for name, axis in last.axes.items():
            tensors[name] = torch.cat([node.parts[name] for node in path[1:]], axis)
        return empty.with_tensors(tensors)

    def _prefill(self, ids: Sequence[int], state: Any) -> Any:
        device = next(self.model.parameters()).device
        return self.model.prefill(torch.tensor([ids], dtype=torch.int64, device=device), state)

    def _count(self, known: int, tokens: int) -> None:
        self._counts["hits" if known else "misses"] += 1
        self._counts["tokens_reused"] += known
        self._counts["tokens_prefilled"] += tokens - known

    def make_room(self, count: int, path: Sequence[_Node]) -> bool:
        """Evict what was used least recently until `count` bytes are free, but nothing of this path."""
        if count > self.max_bytes:
            return False
        kept = set(map(id, path))
        while self._bytes + count > self.max_bytes:
            node, is_sums = next(iter(self._recent))
            if id(node) in kept:
                return False
            self._counts["evictions"] += 1
            if is_sums:
                self._drop_sums(node)
            else:
                self._drop(node)
        return True

    def add(self, node: _Node) -> None:
        """Hang a node into the tree; there is room for it."""
        assert node.parent is not None
        node.parent.children[node.key] = node
        self._recent[node, False] = node.bytes
        self._bytes += node.bytes
        self._prefixes += 1

    def add_sums(self, node: _Node, sums: dict[str, Tensor]) -> None:
        """Keep the sums of a node; there is room for them."""
        node.sums = sums
        if sums:
            self._recent[node, True] = _bytes(sums)
            self._bytes += _bytes(sums)

    def holds(self, node: _Node) -> bool:
        """Return whether a node is still in the tree."""
        return node is self._root or (node, False) in self._recent

    def _drop(self, node: _Node) -> None:
        """Remove a node, with all that follow it."""
        for child in list(node.children.values()):
            self._drop(child)
        assert node.parent is not None
        del node.parent.children[node.key]
        self._drop_sums(node)
        self._bytes -= self._recent.pop((node, False))
        self._prefixes -= 1

    def _drop_sums(self, node: _Node) -> None:
        if (node, True) in self._recent:
            self._bytes -= self._recent.pop((node, True))
            node.sums = None


class _Writer:
    """Stores the states of one prompt while it is prefilled."""

    def __init__(self, cache: PrefixCache, path: Sequence[_Node], keep: set[int]):
        self.cache = cache
        self.path = list(path)
        self.keep = keep
        """Depths at which sums are kept."""

    def write(self, depth: int, key: bytes, state: Any) -> None:
        """Store the state after the block at this depth, if there is room, and for its parents, too."""
        parent = self.path[min(depth, len(self.path)) - 1]
        if depth > len(self.path) or not self.cache.holds(parent):
            return
        tensors, axes = state.tensors(), state.place_axes
        sums = {name: x for name, x in tensors.items() if name not in axes and x.dim()}
        if depth == len(self.path):
            node = self._new_node(parent, key, tensors, axes, len(sums))
            if node is None:
                return
        node = self.path[depth]
        missing = bool(sums) and node.sums is None and depth in self.keep
        if missing and self.cache.holds(node) and self.cache.make_room(_bytes(sums), self.path):
            self.cache.add_sums(node, _clone(sums))

    def _new_node(
        self, parent: _Node, key: bytes, tensors: Mapping[str, Tensor], axes: Mapping[str, int], sums: int
    ) -> _Node | None:
        """Append a node to the path, or one that another prompt has stored meanwhile; None: there is no room."""
        if key in parent.children:
            self.path.append(parent.children[key])
            return self.path[-1]
        block = len(key) // TOKEN_BYTES
        parts = {
            name: tensors[name].narrow(axis, tensors[name].shape[axis] - block, block) for name, axis in axes.items()
        }
        parts |= {name: x for name, x in tensors.items() if not x.dim()}
        if not self.cache.make_room(len(key) + _bytes(parts), self.path):
            return None
        node = _Node(parent, key, dict(axes), _clone(parts), None if sums else {})
        self.cache.add(node)
        self.path.append(node)
        return node


class CachedModel:
    """A model whose prompts go through a prefix cache; every search of `qkv.decode` takes it."""

    def __init__(self, cache: PrefixCache):
        self.cache = cache
        self.config = getattr(cache.model, "config", None)

    def start(self, inputs: Tensor, mask: Mask | None) -> Any:
        """Return the state after the prompts, one row each."""
        visible = [slice(None)] * len(inputs) if mask is None else list(mask)
        first, *others = (self.cache.start(row[own].tolist()) for row, own in zip(inputs, visible, strict=True))
        return first.join(*others) if others else first

    def step(self, tokens: Rows, state: Any) -> tuple[Tensor, Any]:
        """Return the model's logits and state after one more token per row."""
        stepped: tuple[Tensor, Any] = self.cache.model.step(tokens, state)
        return stepped

    def extend(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Return the model's logits and state after several more tokens per row."""
        extended: tuple[Tensor, Any] = self.cache.model.extend(tokens, state)
        return extended


def _pack(ids: Sequence[int]) -> bytes:
    return array("q", ids).tobytes()


def _bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(x.nbytes for x in tensors.values())


def _clone(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies that hold no more memory than their size."""
    return {name: x.clone(memory_format=torch.contiguous_format) for name, x in tensors.items()}

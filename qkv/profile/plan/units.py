"""Parts of a model that FSDP2 gathers together: every block of its stacks is a unit, and the rest is one more."""

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Stack:
    """Blocks that run one after the other: an `nn.ModuleList` with parameters."""

    path: str
    blocks: tuple[nn.Module, ...]


@dataclass(frozen=True)
class Unit:
    """Parameters that are gathered together; a tied one belongs to the first unit that has it."""

    name: str
    parameters: tuple[nn.Parameter, ...]

    def elements(self, parts: int = 1) -> int:
        """Return the number of values, if axis 0 of each parameter is padded to a multiple of `parts`."""
        return sum(parts * shard_elements(p, parts) for p in self.parameters)


@dataclass(frozen=True)
class Units:
    """All units of a model."""

    blocks: tuple[Unit, ...]
    root: Unit
    """Parameters outside the blocks: embeddings, the output layer."""

    @property
    def all(self) -> tuple[Unit, ...]:
        """The rest first, then the blocks."""
        return self.root, *self.blocks

    def elements(self, parts: int = 1) -> int:
        """Return the number of values of the model, padded for `parts`."""
        return sum(unit.elements(parts) for unit in self.all)

    def largest_block(self, parts: int = 1) -> int:
        """Return the number of values of the largest block, padded for `parts`; 0 without blocks."""
        return max((unit.elements(parts) for unit in self.blocks), default=0)


def shard_elements(parameter: nn.Parameter, parts: int) -> int:
    """Return the number of values in the largest of `parts` shards, which FSDP2 cuts along axis 0."""
    if not parameter.dim():
        return 1
    return math.ceil(parameter.shape[0] / parts) * math.prod(parameter.shape[1:])


def find_stacks(module: nn.Module) -> list[Stack]:
    """Return the outermost module lists that have parameters."""
    found: list[Stack] = []
    for path, part in module.named_modules():
        inside = any(path.startswith(f"{stack.path}.") for stack in found)
        if isinstance(part, nn.ModuleList) and not inside and next(part.parameters(), None) is not None:
            found.append(Stack(path, tuple(part)))
    return found


def find_units(module: nn.Module) -> Units:
    """Return the trained parameters by unit."""
    taken: set[int] = set()

    def claim(name: str, part: nn.Module) -> Unit:
        own = [p for p in part.parameters() if p.requires_grad and id(p) not in taken]
        taken.update(map(id, own))
        return Unit(name, tuple(own))

    places = _places(module)
    blocks = []
    for stack in find_stacks(module):
        for i, block in enumerate(stack.blocks):
            for name, part in _parts(block):
                # a parameter that is shared stays with the rest
                if all(places[key] == count for key, count in _places(part).items()):
                    blocks.append(claim(f"{stack.path}.{i}{name}", part))
    return Units(tuple(unit for unit in blocks if unit.parameters), claim("the rest", module))


def _places(module: nn.Module) -> Counter[int]:
    """Return how often each parameter occurs in a module."""
    parts = (part for _, part in module.named_modules(remove_duplicate=False))
    return Counter(id(p) for part in parts for p in part.parameters(recurse=False))


def _parts(block: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the block or, with cross-attention, its other layers: keys and values of the context come before it."""
    if getattr(block, "cross", None) is None:
        return [("", block)]
    return [(f".{name}", part) for name, part in block.named_children() if name in ("attention", "feed_forward")]


@contextmanager
def only_blocks(module: nn.Module, stacks: list[Stack], kept: dict[str, tuple[nn.Module, ...]]) -> Iterator[None]:
    """Leave only these blocks in the stacks, by path, until the context ends."""
    with ExitStack() as restore:
        for stack in stacks:
            parent, name = module, stack.path
            if "." in stack.path:
                path, _, name = stack.path.rpartition(".")
                parent = module.get_submodule(path)
            restore.callback(setattr, parent, name, getattr(parent, name))
            setattr(parent, name, nn.ModuleList(kept.get(stack.path, ())))
        yield

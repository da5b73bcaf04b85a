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
class GatheredUnit:
    """Parameters that are gathered together; a tied one belongs to the first unit that has it."""

    name: str
    parameters: tuple[nn.Parameter, ...]

    def elements(self, parts: int = 1) -> int:
        """Return the number of values, if axis 0 of each parameter is padded to a multiple of `parts`."""
        return sum(parts * shard_elements(p, parts) for p in self.parameters)


@dataclass(frozen=True)
class ModelUnits:
    """All units of a model."""

    blocks: tuple[GatheredUnit, ...]
    root: GatheredUnit
    """Parameters outside the blocks: embeddings, the output layer."""

    @property
    def all(self) -> tuple[GatheredUnit, ...]:
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


def find_units(module: nn.Module) -> ModelUnits:
    """Return the trained parameters by unit."""
    taken: set[int] = set()

    def claim(name: str, part: nn.Module) -> GatheredUnit:
        own = [p for p in part.parameters() if p.requires_grad and id(p) not in taken]
        taken.update(map(id, own))
        return GatheredUnit(name, tuple(own))

    blocks = [claim(name, block) for name, block in find_blocks(module).items()]
    return ModelUnits(tuple(unit for unit in blocks if unit.parameters), claim("the rest", module))


def find_blocks(module: nn.Module) -> dict[str, nn.Module]:
    """Return the blocks of the stacks that are gathered by themselves, by path."""
    places = _places(module)
    blocks = {f"{stack.path}.{i}": block for stack in find_stacks(module) for i, block in enumerate(stack.blocks)}
    return {
        path: block
        for path, block in blocks.items()
        if _is_gathered_alone(block, places) and any(p.requires_grad for p in block.parameters())
    }


def _is_gathered_alone(block: nn.Module, places: Counter[int]) -> bool:
    """Return whether a block is a unit: nothing outside uses its parameters.

    Cross-attention is used before its block runs, for the keys and values of the context.
    """
    alone = all(places[key] == count for key, count in _places(block).items())
    return alone and getattr(block, "cross", None) is None


def _places(module: nn.Module) -> Counter[int]:
    """Return how often each parameter occurs in a module."""
    parts = (part for _, part in module.named_modules(remove_duplicate=False))
    return Counter(id(p) for part in parts for p in part.parameters(recurse=False))


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

"""Tensors that one device holds for the backward pass, counted on meta block by block.

Equal blocks are counted once. A block that loops over its tokens in chunks is counted at four short lengths, and the
polynomial through three of them must give the fourth; then it is evaluated at the requested length.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from qkv.cost.memory import saved_for_backward
from qkv.cost.meta_run import MetaAutocast, ModuleCall, count_forward, tensors_in
from qkv.cost.polynomial import Sizes
from qkv.layers import MultiHead
from qkv.layers.gates import Gate
from qkv.train.parallel.units import Stack, find_stacks, only_blocks

SHORT = 1024
"""Step of the lengths at which a block that loops over its tokens is counted."""


@dataclass(frozen=True)
class Activations:
    """Bytes that a forward pass leaves for the backward pass."""

    saved: int
    """Saved by all layers."""
    rest: int
    """Saved outside the blocks."""
    block_inputs: int
    """Inputs of all blocks: all that recomputation keeps of them."""
    largest_block: int
    """Saved by the block that saves most, without its input."""
    weight_copies: int
    """Weights in half precision."""
    rest_copies: int
    """Those of them that are outside the blocks."""
    outputs: int
    """Values of the result, such as logits."""

    @property
    def recomputed(self) -> int:
        """Bytes if each block runs again in the backward pass: the inputs of all, and what the one that runs saves."""
        return self.rest + self.block_inputs + self.largest_block


@dataclass(frozen=True)
class _Counts:
    saved: int = 0
    weight_copies: int = 0
    outputs: int = 0
    block_inputs: int = 0

    def plus(self, other: "_Counts", times: int = 1) -> "_Counts":
        return _Counts(*(x + times * y for x, y in zip(astuple(self), astuple(other), strict=True)))


def count_activations(call: ModuleCall, sizes: Sizes, precision: str) -> Activations:
    """Return what one forward pass at these sizes saves, in float32 or as under autocast to bfloat16.

    If the blocks cannot run one by one, recomputation is taken to save nothing.
    """
    stacks = find_stacks(call.module)
    counting = _Counting(call, sizes, precision, stacks)
    try:
        rest, total, largest = _count_by_block(counting, stacks)
    except Exception:  # noqa: BLE001 - a module without some of its blocks may raise anything
        rest = total = counting.count({stack.path: stack.blocks for stack in stacks})
        rest, largest = replace(rest, block_inputs=0), 0
    return Activations(
        saved=total.saved,
        rest=rest.saved,
        block_inputs=total.block_inputs if largest else 0,
        largest_block=largest,
        weight_copies=total.weight_copies,
        rest_copies=rest.weight_copies,
        outputs=total.outputs,
    )


def _count_by_block(counting: "_Counting", stacks: list[Stack]) -> tuple[_Counts, _Counts, int]:
    """Return the counts without blocks and with all of them, and what the block saves that saves most.

    All blocks run at once unless that takes long: then like ones are counted once, or twice, since the second one may
    share what the first one saves.
    """
    rest = total = counting.count({})
    largest = 0
    for path, blocks in _alike(stacks):
        one = counting.count({path: blocks[:1]})
        own = one.plus(rest, -1)
        total = total.plus(own)
        if counting.takes_long and len(blocks) > 1:
            total = total.plus(counting.count({path: blocks[:2]}).plus(one, -1), len(blocks) - 1)
        largest = max(largest, own.saved - own.block_inputs)
    if not counting.takes_long:
        total = counting.count({stack.path: stack.blocks for stack in stacks})
    return rest, total, largest


def _alike(stacks: list[Stack]) -> Iterator[tuple[str, tuple[nn.Module, ...]]]:
    """Yield the blocks of each stack that are like each other, with the path of the stack."""
    for stack in stacks:
        groups: dict[Any, list[nn.Module]] = {}
        for block in stack.blocks:
            look = repr(block), tuple((p.shape, p.dtype) for p in block.parameters())
            groups.setdefault(look, []).append(block)
        for blocks in groups.values():
            yield stack.path, tuple(blocks)


class _Counting:
    def __init__(self, call: ModuleCall, sizes: Sizes, precision: str, stacks: list[Stack]):
        self.call, self.sizes, self.stacks = call, sizes, stacks
        self.half = precision == "bfloat16"

    def count(self, kept: dict[str, tuple[nn.Module, ...]]) -> _Counts:
        """Return the counts of the module with only these blocks, by the path of their stack."""
        takes_long = self.takes_long
        with only_blocks(self.call.module, self.stacks, kept):
            if not takes_long:
                return self._at(self.sizes)
            ((name, length),) = self.sizes.items()
            found = _extrapolate(lambda n: self._at({name: n}), length)
            return self._at(self.sizes) if found is None else found

    @cached_property
    def takes_long(self) -> bool:
        """Whether the module loops over many tokens: the number of operations grows with the length."""
        if len(self.sizes) != 1:
            return False
        ((name, length),) = self.sizes.items()
        if length <= 4 * SHORT:
            return False
        first: dict[str, tuple[nn.Module, ...]] = {}
        for path, blocks in _alike(self.stacks):
            first[path] = (*first.get(path, ()), blocks[0])
        with only_blocks(self.call.module, self.stacks, first):
            few, many = (count_forward(self.call, {name: n}).dispatched for n in (2 * SHORT, 4 * SHORT))
        return few != many

    def _at(self, sizes: Sizes) -> _Counts:
        autocast = MetaAutocast() if self.half and not self.call.real_weights else None
        inputs: list[Tensor] = []
        blocks = [block for stack in self.stacks for block in self.call.module.get_submodule(stack.path).children()]
        with _hooks(self.call.module, blocks, inputs, autocast):
            found = saved_for_backward(self.call, sizes, autocast)
        return _Counts(found.activations, found.weight_copies, found.outputs, sum(x.nbytes for x in inputs))


@contextmanager
def _hooks(
    module: nn.Module, blocks: list[nn.Module], inputs: list[Tensor], autocast: MetaAutocast | None
) -> Iterator[None]:
    """Collect the inputs of blocks; where layers leave or enter autocast by themselves, do it for them."""
    with ExitStack() as hooks:

        def collect(_: nn.Module, args: Any, kwargs: Any) -> None:
            inputs.extend(x for x in tensors_in((*args, *kwargs.values())) if x.is_floating_point())

        for block in dict.fromkeys(blocks):
            hooks.callback(block.register_forward_pre_hook(collect, with_kwargs=True).remove)
        for part in module.modules() if autocast is not None else ():
            assert autocast is not None
            if isinstance(part, MultiHead):
                hooks.callback(part.register_forward_pre_hook(_cast_input(autocast)).remove)
            if isinstance(part, Gate):
                hooks.callback(part.register_forward_pre_hook(_switch(autocast, False)).remove)
                hooks.callback(part.register_forward_hook(_switch(autocast, True)).remove)
        yield


def _cast_input(autocast: MetaAutocast) -> Callable[..., Any]:
    return lambda _, args: (args[0].to(autocast.dtype), *args[1:]) if args[0].is_meta else None


def _switch(autocast: MetaAutocast, enabled: bool) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        autocast.enabled = enabled

    return hook


def _extrapolate(at: Callable[[int], _Counts], length: int) -> _Counts | None:
    """Return the counts at a length from those at four shorter ones; None if no polynomial of degree 2 has them."""
    start = length % SHORT
    points = [start + SHORT * step for step in (1, 2, 3, 4)]
    *three, fourth = (astuple(at(point)) for point in points)
    columns = list(zip(*three, strict=True))
    step = length // SHORT - 1  # the first point is at step 0
    if tuple(_through(column, 3) for column in columns) != fourth:
        return None
    return _Counts(*(_through(column, step) for column in columns))


def _through(values: tuple[int, ...], step: int) -> int:
    """Return the value at `step` of the polynomial with these values at steps 0, 1 and 2 (Newton's differences)."""
    first, second, third = values
    return first + step * (second - first) + step * (step - 1) // 2 * (third - 2 * second + first)

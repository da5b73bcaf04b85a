"""What makes a cached kernel be looked up again, and what does not."""

from typing import NamedTuple

import pytest
import torch
from triton.runtime.errors import OutOfResources

from qkv.attention.triton import launch_cache
from qkv.attention.triton.launch_cache import CachedKernel, Constants


class Pointers(NamedTuple):
    x: object
    mask: object


class Strides(NamedTuple):
    head: int
    token: int


class Sizes(NamedTuple):
    length: int
    strides: Strides


class Kernel:
    """Records its lookups; its compiled form records its launches."""

    arg_names = ("pointers", "sizes", "SECOND", "FIRST")

    def __init__(self, compiles=True):
        self.compiles, self.lookups, self.launched = compiles, [], []

    def __getitem__(self, grid):
        def look_up(*arguments, **named):
            self.lookups.append((grid, arguments, named))
            return Compiled(self) if self.compiles else None

        return look_up


class Compiled:
    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return lambda *arguments: self.kernel.launched.append((grid, arguments))


CONSTANTS = Constants({"FIRST": 1, "SECOND": 2}, {"num_warps": 4})
X = torch.zeros(40)
GRID = (3, 1, 1)


def test_the_second_launch_is_not_looked_up():
    kernel = Kernel()
    launch = CachedKernel(kernel, Pointers, Sizes)
    for x in (X, X[8:]):
        launch(GRID, (x, None), ((7, (3, 1)),), CONSTANTS)
    assert kernel.lookups == [(GRID, ((X, None), (7, (3, 1))), {"FIRST": 1, "SECOND": 2, "num_warps": 4})]
    assert kernel.lookups[0][1][1].strides.head == 3  # named for the compiler
    # addresses instead of tensors, and constants in the order of the kernel
    assert kernel.launched == [(GRID, ((X[8:].data_ptr(), None), (7, (3, 1)), 2, 1))]


class Crowded(Kernel):
    """Has room for `room` loads in flight."""

    def __init__(self, room):
        super().__init__()
        self.room = room

    def __getitem__(self, grid):
        def look_up(*arguments, num_stages=3, **named):
            if num_stages > self.room:
                raise OutOfResources(131072, 101376, "shared memory")
            return super(Crowded, self).__getitem__(grid)(*arguments, num_stages=num_stages, **named)

        return look_up


@pytest.mark.parametrize("options", [{}, {"num_stages": 2}])
def test_a_gpu_with_less_room_has_one_load_in_flight(options):
    kernel, constants = Crowded(room=1), Constants(CONSTANTS.values, options)
    launch = CachedKernel(kernel, Pointers, Sizes)
    for _ in range(3):
        launch(GRID, (X, None), ((7, (3, 1)),), constants)
    assert [named["num_stages"] for _, _, named in kernel.lookups] == [1]
    assert len(kernel.launched) == 2
    with pytest.raises(ValueError, match="not enough shared memory .*131072 needed, 101376 available.*chunked"):
        CachedKernel(Crowded(room=0), Pointers, Sizes)(GRID, (X, None), ((7, (3, 1)),), constants)


def test_another_grid_is_looked_up():
    kernel = Kernel()
    launch = CachedKernel(kernel, Pointers, Sizes)
    for grid in (GRID, (5, 1, 1), (5, 1, 1)):
        launch(grid, (X, None), ((7, (3, 1)),), CONSTANTS)
    assert [grid for grid, _, _ in kernel.lookups] == [GRID, (5, 1, 1)]
    assert [grid for grid, _ in kernel.launched] == [(5, 1, 1)]


@pytest.mark.parametrize(
    ("tensors", "numbers", "constants"),
    [
        ((X, None), ((8, (3, 1)),), CONSTANTS),
        ((X[1:], None), ((7, (3, 1)),), CONSTANTS),  # no longer at a multiple of 16 bytes
        ((X.double(), None), ((7, (3, 1)),), CONSTANTS),
        ((X, X), ((7, (3, 1)),), CONSTANTS),
        ((X, None), ((7, (3, 1)),), Constants({"FIRST": 1, "SECOND": 2}, {"num_warps": 8})),
    ],
    ids=["number", "alignment", "type", "presence", "constants"],
)
def test_a_changed_specialization_is_looked_up(tensors, numbers, constants):
    kernel = Kernel()
    launch = CachedKernel(kernel, Pointers, Sizes)
    launch(GRID, (X, None), ((7, (3, 1)),), CONSTANTS)
    launch(GRID, tensors, numbers, constants)
    assert (len(kernel.lookups), kernel.launched) == (2, [])


def test_an_interpreted_kernel_is_not_cached():
    kernel = Kernel(compiles=False)
    launch = CachedKernel(kernel, Pointers, Sizes)
    for _ in range(2):
        launch(GRID, (X, None), ((7, (3, 1)),), CONSTANTS)
    assert len(kernel.lookups) == 2


def test_the_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(launch_cache, "MAX_CACHED_LAUNCHES", 3)
    launch = CachedKernel(Kernel(), Pointers, Sizes)
    for length in range(10):
        launch(GRID, (X, None), ((length, (3, 1)),), CONSTANTS)
    assert len(launch._compiled) <= 3

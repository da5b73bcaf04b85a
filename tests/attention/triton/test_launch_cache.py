"""What makes a kernel be looked up again, and what does not."""

import pytest
import torch
from triton.runtime.errors import OutOfResources

from qkv.attention.triton import launch_cache as relaunch
from qkv.attention.triton.launch_cache import Constants, Relaunched


class Kernel:
    """Writes down what it was asked for; its compiled form writes down its launches."""

    arg_names = ("x_pointer", "seen_pointer", "length", "SECOND", "FIRST")

    def __init__(self, compiles=True):
        self.compiles, self.asked, self.launched = compiles, [], []

    def __getitem__(self, grid):
        def ask(*arguments, **named):
            self.asked.append((grid, arguments, named))
            return Compiled(self) if self.compiles else None

        return ask


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
    launch = Relaunched(kernel)
    for x in (X, X[8:]):
        launch(GRID, (x, None), (7,), CONSTANTS)
    assert kernel.asked == [(GRID, (X, None, 7), {"FIRST": 1, "SECOND": 2, "num_warps": 4})]
    # an address for a tensor, and constants in the order of the kernel
    assert kernel.launched == [(GRID, (X[8:].data_ptr(), None, 7, 2, 1))]


class Crowded(Kernel):
    """Has room for so many loads under way at a time."""

    def __init__(self, room):
        super().__init__()
        self.room = room

    def __getitem__(self, grid):
        def ask(*arguments, num_stages=3, **named):
            if num_stages > self.room:
                raise OutOfResources(131072, 101376, "shared memory")
            return super(Crowded, self).__getitem__(grid)(*arguments, num_stages=num_stages, **named)

        return ask


@pytest.mark.parametrize("options", [{}, {"num_stages": 2}])
def test_a_chip_with_less_room_has_one_load_under_way(options):
    kernel, constants = Crowded(room=1), Constants(CONSTANTS.values, options)
    launch = Relaunched(kernel)
    for _ in range(3):
        launch(GRID, (X, None), (7,), constants)
    assert [named["num_stages"] for _, _, named in kernel.asked] == [1]
    assert len(kernel.launched) == 2
    with pytest.raises(ValueError, match="not enough shared memory .*131072 are needed, 101376 are there.*chunked"):
        Relaunched(Crowded(room=0))(GRID, (X, None), (7,), constants)


def test_another_grid_is_launched_as_such():
    kernel = Kernel()
    launch = Relaunched(kernel)
    for grid in (GRID, (5, 1, 1), (5, 1, 1)):
        launch(grid, (X, None), (7,), CONSTANTS)
    assert [grid for grid, _, _ in kernel.asked] == [GRID, (5, 1, 1)]
    assert [grid for grid, _ in kernel.launched] == [(5, 1, 1)]


@pytest.mark.parametrize(
    ("tensors", "numbers", "constants"),
    [
        ((X, None), (8,), CONSTANTS),
        ((X[1:], None), (7,), CONSTANTS),  # no longer at a multiple of 16 bytes
        ((X.double(), None), (7,), CONSTANTS),
        ((X, X), (7,), CONSTANTS),
        ((X, None), (7,), Constants({"FIRST": 1, "SECOND": 2}, {"num_warps": 8})),
    ],
    ids=["number", "alignment", "type", "presence", "constants"],
)
def test_what_it_is_compiled_for_is_looked_up(tensors, numbers, constants):
    kernel = Kernel()
    launch = Relaunched(kernel)
    launch(GRID, (X, None), (7,), CONSTANTS)
    launch(GRID, tensors, numbers, constants)
    assert (len(kernel.asked), kernel.launched) == (2, [])


def test_an_interpreted_kernel_has_nothing_to_keep():
    kernel = Kernel(compiles=False)
    launch = Relaunched(kernel)
    for _ in range(2):
        launch(GRID, (X, None), (7,), CONSTANTS)
    assert len(kernel.asked) == 2


def test_it_does_not_grow_for_ever(monkeypatch):
    monkeypatch.setattr(relaunch, "KEPT", 3)
    launch = Relaunched(Kernel())
    for length in range(10):
        launch(GRID, (X, None), (length,), CONSTANTS)
    assert len(launch._compiled) <= 3

"""The option --mesh of a training, and errors that all of its processes find at the same moment."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.train.parallel.mesh import Mesh

TrainMesh = Annotated[
    str | None,
    typer.Option(
        "--mesh",
        metavar="AXIS=SIZE,...",
        help="Arrange the processes of torchrun: data (each has the model), shard (they share it: FSDP2), sequence "
        "(they split the tokens of each example), such as data=2,shard=2. Default: all are data.",
    ),
]
_WAIT_SECONDS = 10


def read_mesh(text: str | None) -> "Mesh | None":
    """Return the mesh of the option."""
    from qkv.train.parallel.mesh import parse_mesh

    return None if text is None else parse_mesh(text)


@contextmanager
def same_errors() -> Iterator[None]:
    """Report an error that all processes have at rank 0 alone.

    torchrun stops all processes when the first one ends, so the others wait for rank 0 to write its sentence.
    """
    from qkv.train.distributed import get_rank

    try:
        yield
    except (ValueError, QkvError):
        if get_rank() == 0:
            raise
        time.sleep(_WAIT_SECONDS)
        raise SystemExit(2) from None

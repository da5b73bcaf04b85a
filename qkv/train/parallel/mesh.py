"""The mesh of a training: how many processes replicate, shard and split what is trained.

    rank = (data_index * shard + shard_index) * sequence + sequence_index

`data` and `shard` processes take different examples; those of `sequence` take parts of the same ones.
"""

import math
from dataclasses import asdict, dataclass, fields
from typing import NamedTuple

from qkv.errors import unknown_name_error


class Coordinates(NamedTuple):
    """Indices of a process on the axes of a mesh."""

    data: int
    shard: int
    sequence: int


@dataclass(frozen=True)
class Mesh:
    """Sizes of the axes over which processes are arranged; their product is the number of processes."""

    data: int = 1
    """Replicas: each holds all parameters, gradients are averaged (DDP)."""
    shard: int = 1
    """Processes that share one copy of parameters, gradients and optimizer state (FSDP2)."""
    sequence: int = 1
    """Processes that share the tokens of each example (sequence parallel)."""

    def __post_init__(self) -> None:
        for name, size in asdict(self).items():
            if size < 1:
                raise ValueError(f"mesh axis {name} must be at least 1, got {size}")

    @property
    def processes(self) -> int:
        """Number of processes."""
        return math.prod(asdict(self).values())

    @property
    def batch_shards(self) -> int:
        """Number of parts that the examples of a step are split into."""
        return self.data * self.shard

    @property
    def parameter_shards(self) -> int:
        """Number of processes that share one copy of the parameters."""
        return self.shard * self.sequence

    def coordinates(self, rank: int) -> Coordinates:
        """Return the indices of a process on each axis."""
        outer, sequence = divmod(rank, self.sequence)
        return Coordinates(*divmod(outer, self.shard), sequence)

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in asdict(self).items())


AXES = tuple(field.name for field in fields(Mesh))


def parse_mesh(text: str) -> Mesh:
    """Parse "data=2,sequence=4"; an axis that is not named has size 1."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, equals, size = (piece.strip() for piece in part.partition("="))
        if name not in AXES:
            raise unknown_name_error("mesh axis", name, AXES)
        if not equals or not size.isascii() or not size.isdigit():
            raise ValueError(f"mesh={text!r}: {name} needs a whole number, such as {name}=2")
        if name in sizes:
            raise ValueError(f"mesh={text!r} names {name} twice")
        sizes[name] = int(size)
    return Mesh(**sizes)


def choose_mesh(requested: Mesh | None, processes: int) -> Mesh:
    """Return the requested mesh if it has this many processes; without a request all of them are `data`."""
    if requested is None:
        return Mesh(data=processes)
    if requested.processes != processes:
        raise ValueError(
            f"mesh {requested} needs {requested.processes} processes, got {processes}; "
            f"start it with torchrun --nproc-per-node={requested.processes}"
        )
    return requested

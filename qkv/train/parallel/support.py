"""What can be trained on a mesh: the reasons why a task or a model cannot, in one sentence each."""

from qkv.errors import QkvError
from qkv.layers.sequence_parallel import require_splittable
from qkv.train.ema import batch_norm_buffers
from qkv.train.objective import Objective
from qkv.train.parallel.mesh import Mesh


def require_mesh_support(objective: Objective, mesh: Mesh) -> None:
    """Raise unless the objective can be trained on the mesh."""
    if objective.update is not None and mesh.processes > 1:
        raise QkvError(f"this task updates its model itself, which needs one process, got {mesh.processes} processes")
    if mesh.parameter_shards > 1:
        _require_shards(objective, mesh)
    if mesh.sequence > 1:
        if objective.split_sequence is None:
            raise ValueError(
                f"mesh {mesh}: this task does not split its sequences over processes; use mesh axis data or shard"
            )
        require_splittable(objective.model)


def _require_shards(objective: Objective, mesh: Mesh) -> None:
    model = objective.model
    if batch_norm_buffers(model):
        raise ValueError(
            f"mesh {mesh}: batch normalization would have other statistics at each process; use mesh axis data"
        )
    if any(getattr(part, "has_unused_parameters", False) for part in model.modules()):
        raise ValueError(
            f"mesh {mesh}: {type(model).__name__} does not use all parameters in each step; use mesh axis data"
        )
    for name, parameter in model.named_parameters():
        if not parameter.dim():
            raise ValueError(f"mesh {mesh}: parameter {name} is one number and cannot be sharded; use mesh axis data")

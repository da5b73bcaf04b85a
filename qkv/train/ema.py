"""All numbers of a model by name, and their running mean."""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from qkv.train.settings import Settings

Weights = dict[str, Tensor]


def copy_of(model: nn.Module) -> Weights:
    """The model's weights as they are now."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def statistics_of(model: nn.Module) -> list[Tensor]:
    """The buffers that a forward in training changes: running means and deviations of batches."""
    return [buffer for part in model.modules() if isinstance(part, _NormBase) for buffer in part.buffers(recurse=False)]


def require_whole_batches(model: nn.Module, settings: Settings) -> None:
    """Refuse to cut batches for a model that normalizes over them: its update would be another."""
    if settings.accumulation_steps > 1 and statistics_of(model):
        raise ValueError(
            f"train.accumulation_steps={settings.accumulation_steps} cuts a batch into parts, over which batch normalization would "
            "take other means; leave it out, or take another normalization"
        )


def plain(weights: Weights) -> Weights:
    """Contiguous copies on the CPU: a tensor that shares memory with another cannot be saved as it is."""
    return {name: value.detach().to("cpu", copy=True).contiguous() for name, value in weights.items()}


def moved(weights: Weights, device: torch.device) -> Weights:
    """The weights on this device."""
    return {name: value.to(device) for name, value in weights.items()}


@torch.no_grad()
def average_in(average: Weights, model: nn.Module, keep: float) -> None:
    """average = keep * average + (1 - keep) * model, for parameters; buffers are counts and tables, and are copied."""
    parameters = dict(model.named_parameters(remove_duplicate=False))  # a state_dict takes longer than a small step
    for name in average.keys() - parameters.keys():
        average[name].copy_(model.get_buffer(name))
    torch._foreach_lerp_([average[name] for name in parameters], list(parameters.values()), 1 - keep)

"""State dicts, and their exponential moving average (EMA)."""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from qkv.train.settings import Settings

Weights = dict[str, Tensor]


def clone_weights(model: nn.Module) -> Weights:
    """Return a copy of the model's state dict."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def batch_norm_buffers(model: nn.Module) -> list[Tensor]:
    """Return the buffers that a forward pass in training changes: running means and variances."""
    norms = [module for module in model.modules() if isinstance(module, _NormBase)]
    return [buffer for norm in norms for buffer in norm.buffers(recurse=False)]


def require_no_split_batch_norm(model: nn.Module, settings: Settings) -> None:
    """Raise for gradient accumulation with batch normalization: each micro-batch would have its own statistics."""
    if settings.accumulation_steps > 1 and batch_norm_buffers(model):
        raise ValueError(
            f"train.accumulation_steps={settings.accumulation_steps} is incompatible with batch normalization: "
            "statistics would be per micro-batch; use accumulation_steps=1 or another normalization"
        )


def to_cpu(weights: Weights) -> Weights:
    """Return contiguous copies on the CPU: safetensors cannot save tensors that share memory."""
    return {name: value.detach().to("cpu", copy=True).contiguous() for name, value in weights.items()}


def to_device(weights: Weights, device: torch.device) -> Weights:
    """Return the weights on this device."""
    return {name: value.to(device) for name, value in weights.items()}


@torch.no_grad()
def update_ema(ema: Weights, model: nn.Module, decay: float) -> None:
    """Set ema = decay * ema + (1 - decay) * model for parameters; buffers are copied."""
    parameters = dict(model.named_parameters(remove_duplicate=False))  # state_dict() takes longer than a small step
    for name in ema.keys() - parameters.keys():
        ema[name].copy_(model.get_buffer(name))
    torch._foreach_lerp_([ema[name] for name in parameters], list(parameters.values()), 1 - decay)

"""The optimizer, and its memory as tensors under plain names."""

import torch
from torch import Tensor, nn

from qkv.train.ema import Weights
from qkv.train.settings import Settings


def make_optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """AdamW; only matrices decay."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError(f"model has no parameter to train: {type(model).__name__}")
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    # one pass over each parameter in place of a dozen, on a CPU too
    fused = parameters[0].device.type in ("cpu", "cuda")
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.98), fused=fused)


def memory_of(optimizer: torch.optim.Optimizer) -> Weights:
    """What the optimizer remembers: "7.exp_avg" is that of parameter number 7."""
    states = optimizer.state_dict()["state"]
    return {f"{number}.{name}": value for number, entry in states.items() for name, value in entry.items()}


def remind(optimizer: torch.optim.Optimizer, memory: Weights) -> None:
    """Give back what `memory_of` took."""
    states: dict[int, dict[str, Tensor]] = {}
    for name, value in memory.items():
        number, _, what = name.partition(".")
        states.setdefault(int(number), {})[what] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": states})

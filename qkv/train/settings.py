"""Training settings and learning-rate schedules."""

import math
from dataclasses import dataclass, fields

from qkv.errors import unknown_name_error

MEASURED_STEPS = range(10, 40)
"""Steps whose time decides how many fit into `minutes`."""
OPTIMIZERS = ("adamw", "sgd")
DTYPES = ("auto", "float32", "bfloat16")
_CHOICES = {"optimizer": OPTIMIZERS, "dtype": DTYPES}
_OPTIMIZER_SETTINGS = (
    "optimizer",
    "weight_decay",
    "max_grad_norm",
    "accumulation_steps",
    "ema_decay",
    "label_smoothing",
    "recompute",
    "dtype",
)
_LOWEST = {"steps": 1, "batch_size": 1, "accumulation_steps": 1, "validate_every": 1, "warmup": 0, "patience": 0}


@dataclass(frozen=True)
class Settings:
    """Settings of a training run."""

    steps: int | None = None
    """Number of optimizer steps; None: as many as fit into `minutes`."""
    minutes: float | None = None
    """Training time; the first steps are timed, then `steps` is fixed."""
    batch_size: int = 256
    """Examples per step, over all processes."""
    optimizer: str = "adamw"
    """adamw, or sgd (momentum 0.9, which needs a larger learning rate)."""
    learning_rate: float = 1e-3
    """Highest learning rate."""
    warmup: int = 100
    """Steps over which the learning rate rises from 0."""
    weight_decay: float = 0.01
    """Weight decay of matrices; vectors (biases, norms) do not decay."""
    max_grad_norm: float = 1.0
    """Gradient clipping: largest norm of the gradient."""
    accumulation_steps: int = 1
    """Micro-batches per step: saves memory, gives the same update."""
    ema_decay: float = 0.0
    """Decay of the moving average of the weights, which is evaluated instead of them; 0: no average."""
    label_smoothing: float = 0.0
    """Fraction of the probability that is spread over all tokens."""
    validate_every: int = 500
    """Steps between validations; each is followed by a checkpoint."""
    patience: int = 0
    """Early stopping: validations in a row without a lower score after which training ends; 0: never."""
    recompute: bool = False
    """Activation checkpointing: each block runs again in the backward pass, and only its input is kept."""
    dtype: str = "auto"
    """Type of matrix products: float32, bfloat16 (autocast, on CUDA only), or auto: bfloat16 on CUDA, else float32."""
    seed: int = 0
    """Seed of initial weights, order of examples and dropout."""

    def __post_init__(self) -> None:
        if self.steps is None and self.minutes is None:
            raise ValueError("give steps or minutes: how long to train")
        _require_known_names(self)
        for name, lowest in _LOWEST.items():
            value = getattr(self, name)
            if value is not None and not value >= lowest:
                raise ValueError(f"{name} must be at least {lowest}, got {value}")
        for name in ("minutes", "learning_rate", "max_grad_norm"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be more than 0, got {value}")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay must be 0 or more, got {self.weight_decay}")
        for name in ("ema_decay", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, got {getattr(self, name)}")


def _require_known_names(settings: Settings) -> None:
    for name, known in _CHOICES.items():
        if getattr(settings, name) not in known:
            raise unknown_name_error(name, getattr(settings, name), known)


def require_no_optimizer_settings(settings: Settings) -> None:
    """Raise for settings that an objective with its own `update` would ignore."""
    for field in fields(Settings):
        if field.name in _OPTIMIZER_SETTINGS and getattr(settings, field.name) != field.default:
            raise ValueError(f"train.{field.name} has no effect on a task that updates its model itself; leave it out")


def cosine_schedule(settings: Settings, step: int) -> float:
    """Return the learning rate of a step: linear warmup over `warmup` steps, then half a cosine to 0 at `steps`.

    With `minutes` the decay starts after the timed steps, which fix `steps`. So the rate of a step does not depend on
    whether `steps` was measured in this process or before resuming.
    """
    if step < settings.warmup:
        return settings.learning_rate * (step + 1) / settings.warmup
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * _decay_fraction(settings, step)))


def linear_schedule(settings: Settings, step: int) -> float:
    """Return the learning rate of a step: linear warmup, then linear to 0, as usual for word vectors with plain SGD."""
    if step < settings.warmup:
        return cosine_schedule(settings, step)
    return settings.learning_rate * (1 - _decay_fraction(settings, step))


def _decay_fraction(settings: Settings, step: int) -> float:
    """Return the fraction of the decay that is done before this step."""
    start = settings.warmup if settings.minutes is None else max(settings.warmup, MEASURED_STEPS.stop)
    if settings.steps is None or step < start:
        return 0.0
    return min((step - start) / max(settings.steps - start, 1), 1.0)

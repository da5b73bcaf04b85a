"""How to train: the settings, and the learning rate of each step."""

import math
from dataclasses import dataclass, fields

MEASURED = range(10, 40)
"""The steps whose time decides how many fit into `minutes`."""
_OPTIMIZING = ("weight_decay", "max_grad_norm", "accumulation_steps", "ema_decay", "label_smoothing")


@dataclass(frozen=True)
class Settings:
    """How to train."""

    steps: int | None = None
    """Updates in all; None: as many as fit into `minutes`."""
    minutes: float | None = None
    """How long to train: the rate is measured over the first steps, then `steps` is fixed."""
    batch_size: int = 256
    """Examples an update, over all processes."""
    learning_rate: float = 1e-3
    """The highest learning rate."""
    warmup: int = 100
    """Steps over which the learning rate rises from 0."""
    weight_decay: float = 0.01
    """Decay of matrices; vectors (biases, norms) do not decay."""
    max_grad_norm: float = 1.0
    """Longest gradient."""
    accumulation_steps: int = 1
    """Parts that a batch is cut into, one after the other, to save memory; the update is the same."""
    ema_decay: float = 0.0
    """Decay of the running mean of the weights that is evaluated instead of them; 0: there is none."""
    label_smoothing: float = 0.0
    """Label smoothing: the share of probability spread over all tokens."""
    validate_every: int = 500
    """Steps between validations; each is followed by a checkpoint."""
    seed: int = 0
    """Decides initial weights, order of examples and dropout."""

    def __post_init__(self) -> None:
        if self.steps is None and self.minutes is None:
            raise ValueError("give steps or minutes: how long to train")
        for name, least in (("steps", 1), ("batch_size", 1), ("accumulation_steps", 1), ("validate_every", 1), ("warmup", 0)):
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        for name in ("minutes", "learning_rate", "max_grad_norm"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be more than 0, got {value}")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay must be 0 or more, got {self.weight_decay}")
        for name in ("ema_decay", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, got {getattr(self, name)}")


def require_own_update(settings: Settings) -> None:
    """Refuse what a task with an update of its own would ignore."""
    for field in fields(Settings):
        if field.name in _OPTIMIZING and getattr(settings, field.name) != field.default:
            raise ValueError(f"train.{field.name} means nothing to a task that updates its model itself; leave it out")


def learning_rate(settings: Settings, step: int) -> float:
    """Linear rise over `warmup` steps, then half a cosine down to nothing at `steps`: a function of the step alone.

    With `minutes` the fall begins no sooner than `steps` can be known: whether it was measured just now or by an
    earlier part of the run, every step has the same rate.
    """
    if step < settings.warmup:
        return settings.learning_rate * (step + 1) / settings.warmup
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * _fallen(settings, step)))


def linear_rate(settings: Settings, step: int) -> float:
    """The same with a line instead of half a cosine: what plain gradient descent on word vectors is used to."""
    if step < settings.warmup:
        return learning_rate(settings, step)
    return settings.learning_rate * (1 - _fallen(settings, step))


def _fallen(settings: Settings, step: int) -> float:
    """The share of the fall that lies behind this step."""
    top = settings.warmup if settings.minutes is None else max(settings.warmup, MEASURED.stop)
    if settings.steps is None or step < top:
        return 0.0
    return min((step - top) / max(settings.steps - top, 1), 1.0)

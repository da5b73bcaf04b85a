"""Model families by name, each with its configuration class."""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any, TypeVar

from torch import nn

from qkv.records import from_mapping
from qkv.registry import Registry

Model = TypeVar("Model", bound=type[nn.Module])


@dataclass(frozen=True)
class Family:
    """A model class and the configuration dataclass it is built from."""

    model: type[nn.Module]
    config: type[Any]

    def configure(self, values: dict[str, Any]) -> Any:
        """Return the configuration with these values; the error for an unknown name gives the nearest one."""
        return from_mapping(self.config, values, f"setting of {self.model.__name__}:")

    def build(self, config: Any, *sizes: int) -> nn.Module:
        """Return a model for these data sizes, by its `from_config` where there is one, else by its constructor."""
        make: Callable[..., nn.Module] = getattr(self.model, "from_config", self.model)
        _, *expected = signature(make).parameters.values()
        takes_any = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in expected)
        if not takes_any and len(expected) != len(sizes):
            names = ", ".join(parameter.name for parameter in expected)
            given = ", ".join(map(str, sizes))
            raise ValueError(
                f"{self.model.__name__} does not fit this task: it takes the sizes ({names}), got ({given})"
            )
        return make(config, *sizes)


families: Registry[nn.Module] = Registry("model", group="qkv.models")
"""Model classes by name; installed packages add theirs with an entry point in the group qkv.models."""


def register(name: str, config: type[Any]) -> Callable[[Model], Model]:
    """Return a class decorator that registers a model class as `name`, with its configuration class."""

    def add(model: Model) -> Model:
        families.register(name)(model)
        model.config_class = config  # type: ignore[attr-defined]
        return model

    return add


def family(name: str) -> Family:
    """Return the family of this name."""
    model: Any = families[name]
    return Family(model, model.config_class)

"""Model families by name, each with its configuration."""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any, TypeVar

from torch import nn

from qkv.records import from_mapping
from qkv.registry import unknown_name_error

Model = TypeVar("Model", bound=type[nn.Module])


@dataclass(frozen=True)
class Family:
    """A class of models and the record of sizes it is built from."""

    model: type[nn.Module]
    config: type[Any]

    def configure(self, values: dict[str, Any]) -> Any:
        """The record with these values; an unknown name is an error that says the nearest."""
        return from_mapping(self.config, values, f"setting of {self.model.__name__}:")

    def build(self, config: Any, *sizes: int) -> nn.Module:
        """A model of these sizes; a class whose constructor takes plain numbers has a `from_config` beside it."""
        make: Callable[..., nn.Module] = getattr(self.model, "from_config", self.model)
        _, *wanted = signature(make).parameters.values()
        if not any(one.kind is one.VAR_POSITIONAL for one in wanted) and len(wanted) != len(sizes):
            names = ", ".join(one.name for one in wanted)
            given = ", ".join(map(str, sizes))
            raise ValueError(
                f"{self.model.__name__} is of another kind of task: it takes the sizes ({names}), got ({given})"
            )
        return make(config, *sizes)


families: dict[str, Family] = {}


def register(name: str, config: type[Any]) -> Callable[[Model], Model]:
    """Class decorator: enter the family under `name`."""

    def enter(model: Model) -> Model:
        families[name] = Family(model, config)
        return model

    return enter


def family(name: str) -> Family:
    """The family of this name."""
    if name not in families:
        raise unknown_name_error("model", name, families)
    return families[name]

"""The contract of a screen: one Python file here, one JavaScript module of the same name in `static/screens/`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

from qkv.web.backend import Backend
from qkv.web.params import Params
from qkv.web.wire import Response

Handler = Callable[[Params], Response]


class Query(NamedTuple):
    """A request by name and parameters."""

    name: str
    params: dict[str, Any]


class Screen(ABC):
    """A screen of the page: the requests that it answers. `static/screens/<name>.js` draws it."""

    name: ClassVar[str]
    """Name in the address bar, and of the JavaScript module."""
    integers: ClassVar[tuple[str, ...]]
    """Parameters of the address bar that are integers."""
    essential: ClassVar[bool] = False
    """Whether a saved page always contains this screen, whatever its size."""

    def is_available(self, backend: Backend) -> bool:
        """Return whether this backend has what the screen shows."""
        return True

    @abstractmethod
    def handlers(self, backend: Backend) -> dict[str, Handler]:
        """Return the requests that this screen adds to the API."""

    @abstractmethod
    def saved_queries(self, backend: Backend, params: Params) -> Iterator[Query]:
        """Yield the requests whose responses a saved page should hold."""

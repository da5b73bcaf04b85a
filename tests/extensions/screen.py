"""The number of attention sites, as an example of a screen."""

from collections.abc import Iterator

from qkv.web.backend import Backend
from qkv.web.params import Params
from qkv.web.screens.base import Handler, Query, Screen
from qkv.web.wire import Response


class Counts(Screen):
    """The number of attention sites."""

    name = "counts"
    integers = ()

    def handlers(self, backend: Backend) -> dict[str, Handler]:
        """Return `counts`."""
        return {"counts": lambda params: Response({"sites": len(backend.view_model(params).sites)})}

    def saved_queries(self, backend: Backend, params: Params) -> Iterator[Query]:
        """Yield the one request."""
        yield Query("counts", {})


screen = Counts()

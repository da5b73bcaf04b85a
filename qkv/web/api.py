"""The page's API: each request has a name and parameters; the screens provide the handlers."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from time import perf_counter
from typing import Any

import torch

from qkv.errors import unknown_name_error
from qkv.web.backend import Backend
from qkv.web.params import Params
from qkv.web.screens import SCREENS
from qkv.web.screens.base import Handler, Query, Screen
from qkv.web.wire import Response


def respond(backend: Backend, name: str, params: Params) -> Response:
    """Return the response to one request, with the `seconds` it took; raise ValueError for wrong input."""
    handlers = _handlers(backend)
    if name not in handlers:
        raise unknown_name_error("request", name[:40], handlers)
    start = perf_counter()
    with torch.no_grad():  # kinds with parameters recompute their weights
        response = handlers[name](params)
    return replace(response, record={**response.record, "seconds": perf_counter() - start})


def saved_queries(backend: Backend, params: Params) -> Iterator[tuple[Query, Screen | None]]:
    """Yield each request that a page saved at this input should hold, and its screen; None for the frame."""
    yield from ((Query("about", {}), None), (Query("overview", {}), None))
    for screen in _screens(backend):
        for query in screen.saved_queries(backend, params):
            yield query, screen


def _screens(backend: Backend) -> list[Screen]:
    return [screen for screen in SCREENS if screen.is_available(backend)]


def _handlers(backend: Backend) -> dict[str, Handler]:
    handlers: dict[str, Handler] = {
        "about": lambda params: _about(backend),
        "overview": lambda params: _overview(backend, params),
    }
    for screen in _screens(backend):
        handlers.update(screen.handlers(backend))
    return handlers


def _about(backend: Backend) -> Response:
    """Return the backend and its screens; the page imports the modules and parses the integers."""
    screens = [
        {"name": screen.name, "module": f"screens/{screen.name}.js", "integers": list(screen.integers)}
        for screen in _screens(backend)
    ]
    return Response({**backend.about(), "screens": screens})


def _overview(backend: Backend, params: Params) -> Response:
    """Return tokens and attention sites, from which the page draws its frame."""
    model = backend.view_model(params)
    sites: list[dict[str, Any]] = [asdict(site) for site in model.sites]
    return Response({"tokens": model.tokens, "sites": sites, "notes": model.notes, "code": model.code})

"""The local server behind `qkv serve`. One worker thread; when its queue is full, requests get 429."""

import secrets
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from qkv.cancellation import CanceledError
from qkv.errors import QkvError
from qkv.web.api import respond
from qkv.web.backend import Backend
from qkv.web.connections import HEADER_TIMEOUT, Connections
from qkv.web.listening import ClosingServer, listen, uvicorn_config
from qkv.web.overload import REJECTION, OverloadFilter
from qkv.web.requests import RequestError, parse_object, read_body, wait_disconnected
from qkv.web.security import Guard
from qkv.web.static_files import TYPES, static_files
from qkv.web.wire import pack
from qkv.web.worker import Worker, WorkerFullError

MAX_BODY_BYTES = 64 * 1024
BODY_TIMEOUT = 10.0
"""Seconds until a request body must have arrived."""
RESPONSE_TIMEOUT = 120.0
"""Seconds until a response is given up."""
MAX_PENDING = 8
"""Requests that may wait for the worker thread."""


class Workbench:
    """The routes of the page, and the worker thread behind them."""

    def __init__(self, backend: Backend, max_pending: int = MAX_PENDING, body_timeout: float = BODY_TIMEOUT):
        self.backend = backend
        self.body_timeout = body_timeout
        self.worker = Worker(max_pending)
        self.files = static_files()

    def routes(self) -> list[Route]:
        """Return the page, its static files and its API."""
        return [
            Route("/", self.index),
            Route("/static/{name:path}", self.file),
            Route("/api/{name}", self.api, methods=["POST"]),
        ]

    async def index(self, request: Request) -> Response:
        """Serve the page itself."""
        return Response(self.files["index.html"], media_type=TYPES[".html"])

    async def file(self, request: Request) -> Response:
        """Serve one of the files read at startup: no path from a request ever reaches the disk."""
        name = request.path_params["name"]
        if name not in self.files:
            return JSONResponse({"error": "there is no such file"}, status_code=404)
        return Response(self.files[name], media_type=TYPES[name[name.rindex(".") :]])

    async def api(self, request: Request) -> Response:
        """Serve an API request; errors are JSON with a message."""
        try:
            params = parse_object(await read_body(request, MAX_BODY_BYTES, self.body_timeout))
            packed = await self._compute(request, params)
        except RequestError as error:
            return JSONResponse({"error": error.message}, status_code=error.status)
        except WorkerFullError:
            return REJECTION
        except (QkvError, ValueError, TypeError) as error:
            return JSONResponse({"error": str(error)[:2000]}, status_code=400)
        except (ClientDisconnect, CanceledError):
            return Response(status_code=400)  # which nobody reads
        return Response(packed, media_type="application/octet-stream")

    async def _compute(self, request: Request, params: dict[str, Any]) -> bytes:
        """Run the request on the worker thread, unless its client disconnects."""
        name = request.path_params["name"]
        try:
            return await self.worker.run(
                lambda: pack(respond(self.backend, name, params)), lambda: wait_disconnected(request), RESPONSE_TIMEOUT
            )
        except TimeoutError:
            raise RequestError(
                408, f"no response after {RESPONSE_TIMEOUT:g} seconds; a shorter text is quicker"
            ) from None


def application(workbench: Workbench, token: str, port: int) -> Guard:
    """Return the ASGI application behind its guard."""
    hosts = [f"{name}:{port}" for name in ("127.0.0.1", "localhost")]

    def reject(scope: Scope) -> Response | None:
        return REJECTION if workbench.worker.is_full and scope["path"].startswith("/api/") else None

    app = OverloadFilter(Starlette(routes=workbench.routes()), reject)
    return Guard(app, token, hosts, f"qkv-{port}")


class Server:
    """A backend with an address."""

    def __init__(
        self,
        backend: Backend,
        port: int = 0,
        token: str | None = None,
        *,
        max_connections: int | None = None,
        header_timeout: float = HEADER_TIMEOUT,
        **limits: Any,
    ):
        self.socket = listen(port)
        self.port = self.socket.getsockname()[1]
        self.token = token or secrets.token_urlsafe(24)
        self.workbench = Workbench(backend, **limits)
        self.connections = self.socket.connections = Connections(max_connections, header_timeout)
        app = application(self.workbench, self.token, self.port)
        self.uvicorn = ClosingServer(uvicorn_config(app, self.connections, 2), self.connections)

    @property
    def address(self) -> str:
        """URL to open, with the token."""
        return f"http://127.0.0.1:{self.port}/?token={self.token}"

    def run(self) -> None:
        """Serve until Ctrl-C or `stop`."""
        try:
            self.uvicorn.run(sockets=[self.socket])
        finally:
            self.workbench.worker.stop()
            self.socket.close()

    def stop(self) -> None:
        """Make `run` return."""
        self.uvicorn.should_exit = True

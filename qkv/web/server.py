"""The local server behind `qkv serve`. One worker thread; when its queue is full, requests get 429."""

import asyncio
import json
import secrets
import socket
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from qkv.cancellation import CanceledError
from qkv.errors import QkvError
from qkv.web.api import respond
from qkv.web.backend import Backend
from qkv.web.connections import HEADER_TIMEOUT, BoundedListener, Connections
from qkv.web.overload import REJECTION, OverloadFilter
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


class RequestError(Exception):
    """A response of status 4xx with a message."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status
        self.message = message


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
            params = _parse(await self._read_body(request))
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

    async def _read_body(self, request: Request) -> bytes:
        """Read the request body, within MAX_BODY_BYTES and the timeout."""
        if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            raise RequestError(415, "requests must be JSON: content-type application/json")
        body = bytearray()
        try:
            async with asyncio.timeout(self.body_timeout):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > MAX_BODY_BYTES:
                        raise RequestError(413, f"a request body may have at most {MAX_BODY_BYTES:,} bytes")
        except TimeoutError:
            raise RequestError(408, f"the request body did not arrive within {self.body_timeout:g} seconds") from None
        return bytes(body)

    async def _compute(self, request: Request, params: dict[str, Any]) -> bytes:
        """Run the request on the worker thread, unless its client disconnects."""
        name = request.path_params["name"]
        try:
            return await self.worker.run(
                lambda: pack(respond(self.backend, name, params)), lambda: _disconnected(request), RESPONSE_TIMEOUT
            )
        except TimeoutError:
            raise RequestError(
                408, f"no response after {RESPONSE_TIMEOUT:g} seconds; a shorter text is quicker"
            ) from None


async def _disconnected(request: Request) -> None:
    """Wait until the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def application(workbench: Workbench, token: str, port: int) -> Guard:
    """Return the ASGI application behind its guard."""
    hosts = [f"{name}:{port}" for name in ("127.0.0.1", "localhost")]
    app = OverloadFilter(Starlette(routes=workbench.routes()), workbench.worker)
    return Guard(app, token, hosts, f"qkv-{port}")


def listen(port: int) -> BoundedListener:
    """Return a listening socket on the loopback interface; port 0 takes a free one."""
    if not 0 <= port <= 65535:
        raise ValueError(f"port must be from 0 to 65535, got {port}")
    found = BoundedListener()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(("127.0.0.1", port))
        found.listen(128)
    except OSError as error:
        found.close()
        raise QkvError(f"cannot listen on port {port} ({error.strerror}); choose another with --port") from error
    return found


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
        config = uvicorn.Config(
            application(self.workbench, self.token, self.port),
            log_level="critical",
            lifespan="off",
            loop="asyncio",  # other loops do not accept by `BoundedListener.accept`
            http=self.connections.protocol,  # type: ignore[arg-type]
            ws="none",
            timeout_keep_alive=10,
            timeout_graceful_shutdown=2,
            server_header=False,
        )
        self.uvicorn = uvicorn.Server(config)

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


def _parse(body: bytes) -> dict[str, Any]:
    def reject(constant: str) -> None:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        params = json.loads(body.decode() or "{}", parse_constant=reject)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the request is not JSON ({type(error).__name__})") from None
    if not isinstance(params, dict):
        raise RequestError(400, f"a request must be a JSON object, got a {type(params).__name__}")
    return params

"""The page on this machine: `qkv serve`. One thread computes; who comes when too many wait is told so."""

import asyncio
import json
import secrets
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from qkv.storage import QkvError
from qkv.web.backend import Bench
from qkv.web.security import Guard
from qkv.web.static_files import TYPES, static_files
from qkv.web.wire import pack

LARGEST_BODY = 64 * 1024
BODY_SECONDS = 10.0
ANSWER_SECONDS = 120.0
MOST_WAITING = 8


class RefusalError(Exception):
    """An answer of status 4xx, in words."""

    def __init__(self, status: int, words: str):
        super().__init__(words)
        self.status = status
        self.words = words


class Workbench:
    """The routes of the page, and the one thread behind them."""

    def __init__(self, bench: Bench, most_waiting: int = MOST_WAITING, body_seconds: float = BODY_SECONDS):
        self.bench = bench
        self.most_waiting = most_waiting
        self.body_seconds = body_seconds
        self.waiting = 0
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="qkv")
        self.files = static_files()

    def routes(self) -> list[Route]:
        """The page, its files, and its questions."""
        return [
            Route("/", self.index),
            Route("/static/{name}", self.file),
            Route("/api/{name}", self.ask, methods=["POST"]),
        ]

    async def index(self, request: Request) -> Response:
        """The page itself."""
        return Response(self.files["index.html"], media_type=TYPES[".html"])

    async def file(self, request: Request) -> Response:
        """One of the files read at the start: no path from a request ever reaches the disk."""
        name = request.path_params["name"]
        if name not in self.files:
            return JSONResponse({"error": "there is no such file"}, status_code=404)
        return Response(self.files[name], media_type=TYPES[name[name.rindex(".") :]])

    async def ask(self, request: Request) -> Response:
        """Answer a question, or say in words why not."""
        try:
            asked = _parse(await self._body(request))
            found = await self._compute(request.path_params["name"], asked)
        except RefusalError as refusal:
            headers = {"retry-after": "1"} if refusal.status == 429 else None
            return JSONResponse({"error": refusal.words}, status_code=refusal.status, headers=headers)
        except (QkvError, ValueError, TypeError) as error:
            return JSONResponse({"error": str(error)[:2000]}, status_code=400)
        except ClientDisconnect:
            return Response(status_code=400)
        return Response(found, media_type="application/octet-stream")

    async def _body(self, request: Request) -> bytes:
        """What the client sends, unless it sends too much or takes too long."""
        if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            raise RefusalError(415, "questions are JSON: content-type application/json")
        body = bytearray()
        try:
            async with asyncio.timeout(self.body_seconds):
                async for piece in request.stream():
                    body += piece
                    if len(body) > LARGEST_BODY:
                        raise RefusalError(413, f"a question may have {LARGEST_BODY:,} bytes at most")
        except TimeoutError:
            raise RefusalError(408, f"the question was not here after {self.body_seconds:g} seconds") from None
        return bytes(body)

    async def _compute(self, name: str, asked: dict[str, Any]) -> bytes:
        if self.waiting >= self.most_waiting:
            raise RefusalError(429, "too many questions are waiting; ask again in a moment")
        self.waiting += 1
        future = asyncio.get_running_loop().run_in_executor(self.thread, lambda: pack(self.bench.answer(name, asked)))
        # counted until the thread is done with it, also when nobody waits any more
        future.add_done_callback(self._done)
        try:
            return await asyncio.wait_for(asyncio.shield(future), ANSWER_SECONDS)
        except TimeoutError:
            raise RefusalError(408, f"no answer after {ANSWER_SECONDS:g} seconds; a shorter text is quicker") from None

    def _done(self, future: "asyncio.Future[bytes]") -> None:
        self.waiting -= 1
        with suppress(asyncio.CancelledError):
            future.exception()  # an answer that nobody waits for may fail silently


def application(workbench: Workbench, token: str, port: int) -> Guard:
    """The whole thing, guarded."""
    hosts = [f"{name}:{port}" for name in ("127.0.0.1", "localhost")]
    return Guard(Starlette(routes=workbench.routes()), token, hosts, f"qkv-{port}")


def listen(port: int) -> socket.socket:
    """A socket on the loopback; port 0 takes a free one, one that is taken is an error."""
    if not 0 <= port <= 65535:
        raise ValueError(f"port must be from 0 to 65535, got {port}")
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(("127.0.0.1", port))
        found.listen(128)
    except OSError as error:
        found.close()
        raise QkvError(f"cannot listen on port {port} ({error.strerror}); choose another with --port") from error
    return found


class Server:
    """A bench with an address."""

    def __init__(self, bench: Bench, port: int = 0, token: str | None = None, **limits: Any):
        self.socket = listen(port)
        self.port = self.socket.getsockname()[1]
        self.token = token or secrets.token_urlsafe(24)
        self.workbench = Workbench(bench, **limits)
        config = uvicorn.Config(
            application(self.workbench, self.token, self.port),
            log_level="critical",
            lifespan="off",
            http="h11",
            ws="none",
            timeout_keep_alive=10,
            timeout_graceful_shutdown=2,
            server_header=False,
        )
        self.uvicorn = uvicorn.Server(config)

    @property
    def address(self) -> str:
        """What to open, token and all."""
        return f"http://127.0.0.1:{self.port}/?token={self.token}"

    def run(self) -> None:
        """Serve until Ctrl-C or `stop`."""
        try:
            self.uvicorn.run(sockets=[self.socket])
        finally:
            self.workbench.thread.shutdown(wait=False, cancel_futures=True)
            self.socket.close()

    def stop(self) -> None:
        """End soon."""
        self.uvicorn.should_exit = True


def _parse(body: bytes) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON number")

    try:
        asked = json.loads(body.decode() or "{}", parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise RefusalError(400, f"the question is not JSON ({type(error).__name__})") from None
    if not isinstance(asked, dict):
        raise RefusalError(400, f"a question is a JSON object, got a {type(asked).__name__}")
    return asked

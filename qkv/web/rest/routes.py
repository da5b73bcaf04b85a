"""The routes of the API: which run answers what, and what is counted."""

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qkv.inference import PrefixCache
from qkv.inference.batching import Batcher, Limits
from qkv.web.requests import read_body
from qkv.web.rest.completion.engine import Engine
from qkv.web.rest.completion.route import CompletionRoute
from qkv.web.rest.embeddings import EmbeddingRoute
from qkv.web.rest.errors import ApiError, busy, reporting, shutting_down
from qkv.web.rest.metrics import CONTENT_TYPE, ApiMetrics
from qkv.web.rest.predictions import PredictionRoute
from qkv.web.rest.served_run import ServedRun
from qkv.web.rest.settings import ApiSettings
from qkv.web.worker import Worker

MAX_BODY_BYTES = 2**20
MAX_PICTURE_BODY_BYTES = 10 * 2**20
"""Largest body of `/v1/predict` for runs that read pictures."""
MAX_BODIES_BYTES = 128 * 2**20
"""Most bytes of the bodies of all requests that are read or wait for an answer."""
WORKER_QUEUE = 1024
COMPLETIONS, PREDICT, EMBEDDINGS = ANSWERED = "/v1/completions", "/v1/predict", "/v1/embeddings"
Answer = Callable[[Request, bytes], Awaitable[Response]]


class Api:
    """The routes of one run, the engine for completions and the worker thread for everything else."""

    def __init__(self, served: ServedRun, settings: ApiSettings):
        self.served, self.settings, self.metrics = served, settings, ApiMetrics()
        self.created, self.is_draining = int(time.time()), False
        self._body_bytes = 0
        self.worker = Worker(WORKER_QUEUE)
        self.engine: Engine | None = None
        self.prefix_cache: PrefixCache | None = None
        self.completions: CompletionRoute | None = None
        self.predictions: PredictionRoute | None = None
        self.embeddings: EmbeddingRoute | None = None
        timeout, waiting = settings.timeout, settings.max_waiting
        if served.tokenizer is not None:
            self.engine = self._make_engine()
            self.completions = CompletionRoute(
                served.name, served.tokenizer, served.model, self.engine, timeout, self.metrics
            )
        if served.predicts:
            self.predictions = PredictionRoute(served.name, served.make_predictor, self.worker, waiting, timeout)
        if served.masked_lm is not None:
            self.embeddings = EmbeddingRoute(served.name, served.masked_lm, self.worker, waiting, timeout)

    def application(self) -> Starlette:
        """Return the routes; every error has OpenAI's layout."""
        routes = [
            Route("/healthz", self.health),
            Route("/metrics", self.render_metrics),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            *(Route(path, self.answer, methods=["POST"]) for path in ANSWERED),
        ]
        found = Starlette(routes=routes, exception_handlers={HTTPException: _http_error})
        found.router.redirect_slashes = False  # a redirect would repeat the Host of the client
        return found

    def reject(self, scope: Scope) -> Response | None:
        """Return the response to a request for which there is no room, before it is read; None: there is room."""
        seconds = self.seconds_until_room(scope["path"])
        return None if seconds is None else busy(seconds).to_response()

    def seconds_until_room(self, path: str) -> float | None:
        """Return when to try again, if there is no room for a request to this path; None: there is room."""
        if path == COMPLETIONS:
            return None if self.engine is None or self.engine.has_room() else self.engine.retry_after
        route = {PREDICT: self.predictions, EMBEDDINGS: self.embeddings}.get(path)
        return 1.0 if route is not None and route.queue.is_full else None

    @reporting
    async def answer(self, request: Request) -> Response:
        """Answer a request to the model."""
        path, reads_pictures = request.url.path, self.predictions is not None and self.predictions.reads_pictures
        routes: dict[str, CompletionRoute | PredictionRoute | EmbeddingRoute | None] = {
            COMPLETIONS: self.completions,
            PREDICT: self.predictions,
            EMBEDDINGS: self.embeddings,
        }
        route = routes[path]
        if route is None:
            kind, have = self.served.task.kind, ", ".join(self.served.routes)
            raise ApiError(f"a run of task {kind!r} has no {path}; it has {have}", status=404, code="no_such_route")
        if self.is_draining:
            raise shutting_down()
        most = MAX_PICTURE_BODY_BYTES if path == PREDICT and reads_pictures else MAX_BODY_BYTES
        with self._reserve(request, most):
            body = await read_body(request, most, self.settings.body_timeout)
            return await route.respond(request, body)

    async def health(self, request: Request) -> Response:
        """Answer 200 while requests are taken, 503 otherwise."""
        if self.is_draining:
            return shutting_down().to_response()
        if self.engine is not None and not self.engine.is_alive:
            return ApiError("the engine has stopped", status=503, code="engine_stopped").to_response()
        return JSONResponse({"status": "ok"})

    async def render_metrics(self, request: Request) -> Response:
        """Return all counters for Prometheus."""
        waiting = running = state_bytes = 0
        if self.engine is not None:
            found = self.engine.statistics()
            waiting, running, state_bytes = found.waiting, found.running, found.state_bytes
        for route in (self.predictions, self.embeddings):
            if route is not None:
                waiting, running = waiting + route.queue.waiting, running + route.queue.running
        gauges = {
            "qkv_waiting": ("Requests and continuations that wait.", float(waiting)),
            "qkv_running": ("Requests and continuations that are computed.", float(running)),
            "qkv_state_bytes": ("Bytes of the decoding states in use.", float(state_bytes)),
        }
        prefixes = None if self.prefix_cache is None else self.prefix_cache.statistics()
        if prefixes is not None:
            gauges["qkv_prefix_cache_bytes"] = ("Bytes of the states after prefixes.", float(prefixes.bytes))
        return Response(self.metrics.render(gauges, prefixes), headers={"content-type": CONTENT_TYPE})

    async def models(self, request: Request) -> Response:
        """List the one run."""
        return JSONResponse({"object": "list", "data": [self.served.to_record(self.created)]})

    async def model(self, request: Request) -> Response:
        """Describe the run of this name."""
        name = request.path_params["name"]
        if name != self.served.name:
            message = f"there is no model {name[:60]!r} here; this server has {self.served.name!r}"
            return ApiError(message, status=404, param="model", code="model_not_found").to_response()
        return JSONResponse(self.served.to_record(self.created))

    def drain(self) -> None:
        """Refuse new requests; those that were accepted go on."""
        self.is_draining = True
        if self.completions is not None:
            self.completions.is_draining = True

    def end_all(self) -> None:
        """End what is still in flight with a clear error, and compute no more."""
        if self.engine is not None:
            self.engine.halt()  # or it would compete with the event loop, which has errors to send
        if self.completions is not None:
            self.completions.end_all(shutting_down())
        for route in (self.predictions, self.embeddings):
            if route is not None:
                route.queue.end_all(shutting_down())

    def stop(self) -> None:
        """End both threads."""
        self.worker.stop()
        if self.engine is not None:
            self.engine.stop()

    @contextmanager
    def _reserve(self, request: Request, most: int) -> Iterator[None]:
        """Count the bytes of a body while it is held; raise 429 if all bodies together would be too many."""
        declared = request.headers.get("content-length", "")
        size = min(int(declared), most) if declared.isdecimal() else most
        if self._body_bytes + size > MAX_BODIES_BYTES:
            raise busy()
        self._body_bytes += size
        try:
            yield
        finally:
            self._body_bytes -= size

    def _make_engine(self) -> Engine:
        """Return an engine that bounds what waits by what is in flight, so that a burst may fill an idle batch."""
        capacity = self.settings.max_streams + self.settings.max_waiting
        limits = Limits(max_rows=self.settings.max_streams, max_waiting=capacity)
        if self.settings.prefix_cache:
            self.prefix_cache = PrefixCache(self.served.model, int(self.settings.prefix_cache * 2**20))

        def make_batcher() -> Batcher:
            if self.prefix_cache is not None:
                self.prefix_cache.clear()  # after a step that failed, nobody knows what it holds
            return Batcher(self.served.model, limits, self.prefix_cache)

        return Engine(make_batcher, capacity)


class RequestCounter:
    """ASGI middleware that counts responses by route and status, and their time."""

    def __init__(self, app: ASGIApp, metrics: ApiMetrics):
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and count its response."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.monotonic(), 0

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_counted)
        finally:
            self.metrics.count(_route_label(scope["path"]), status, time.monotonic() - started)


def _route_label(path: str) -> str:
    """Return the path if it is one of ours: strangers must not choose labels."""
    known = (COMPLETIONS, PREDICT, EMBEDDINGS, "/v1/models", "/healthz", "/metrics")
    return path if path in known else "/v1/models/" if path.startswith("/v1/models/") else "other"


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path[:100]}: {error.detail}"
    return ApiError(message, status=error.status_code, headers=error.headers).to_response()

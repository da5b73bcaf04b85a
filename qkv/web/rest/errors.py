"""Errors of the API, in OpenAI's layout: `{"error": {"message", "type", "param", "code"}}`."""

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from math import ceil
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from qkv.cancellation import CanceledError
from qkv.errors import QkvError
from qkv.inference.batching import QueueFullError
from qkv.web.requests import RequestError

MAX_MESSAGE = 2000
KINDS = {401: "authentication_error", 408: "timeout_error", 429: "rate_limit_error", 503: "unavailable_error"}
"""Status -> type of the error; others below 500 are `invalid_request_error`, above `server_error`."""
CODES = {401: "invalid_api_key", 408: "deadline_exceeded", 429: "rate_limit_exceeded", 503: "shutting_down"}
FULL = "too many requests are in flight; try again in a moment"
NO_RETRY = {"x-should-retry": "false"}
"""Header with which OpenAI's clients do not repeat a request that would be too slow again."""
Handler = Callable[[Any, Request], Awaitable[Response]]
_log = logging.getLogger(__name__)


class ApiError(Exception):
    """A response other than 200; the message names the field, its value and what was expected."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.message, self.status, self.param = message[:MAX_MESSAGE], status, param
        self.code = code or CODES.get(status)
        self.headers = dict(headers or {})

    def to_record(self) -> dict[str, Any]:
        """Return the body of the response."""
        default = "invalid_request_error" if self.status < 500 else "server_error"
        kind = KINDS.get(self.status, default)
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def to_response(self) -> Response:
        """Return the response."""
        body = json.dumps(self.to_record())
        return Response(body, self.status, headers=self.headers, media_type="application/json")


def busy(retry_after: float = 1.0) -> ApiError:
    """Return the error of a server without room: 429, to be tried again after some seconds."""
    return ApiError(FULL, status=429, headers={"retry-after": str(max(1, ceil(retry_after)))})


def too_late(seconds: float) -> ApiError:
    """Return the error of a request whose deadline has passed."""
    message = f"no complete response after {seconds:g} seconds, the limit of this server; ask for less"
    return ApiError(message, status=408, headers=NO_RETRY)


def shutting_down() -> ApiError:
    """Return the error of a request that could not be finished, or not be begun, before the server ends."""
    return ApiError("the server is shutting down", status=503, headers={"retry-after": "5"})


def to_api_error(error: Exception) -> ApiError:
    """Return an error as the API reports it; one that is nobody's fault but ours is logged and becomes status 500."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        return ApiError(error.message, status=error.status)
    if isinstance(error, QueueFullError):
        return busy(error.retry_after)
    if isinstance(error, QkvError | ValueError | TypeError):
        return ApiError(str(error))
    _log.error("a request failed", exc_info=error)
    return ApiError("the server made a mistake; its log has the reason", status=500)


def reporting(handler: Handler) -> Handler:
    """Decorate a route's method: every error becomes a response; a client that has gone gets one that nobody reads."""

    @wraps(handler)
    async def respond(self: Any, request: Request) -> Response:
        try:
            return await handler(self, request)
        except (ClientDisconnect, CanceledError):
            return Response(status_code=499)
        except Exception as error:  # noqa: BLE001 - every error becomes a response
            return to_api_error(error).to_response()

    return respond

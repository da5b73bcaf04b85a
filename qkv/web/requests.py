"""Read the body of a request within limits of size and time, and notice a client that has gone."""

import asyncio
import json
from typing import Any

from starlette.requests import Request


class RequestError(Exception):
    """A response of status 4xx with a message."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status
        self.message = message


async def read_body(request: Request, max_bytes: int, timeout: float) -> bytes:
    """Return the body of a JSON request; raise RequestError if it is too large, too slow or of another type."""
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise RequestError(415, "requests must be JSON: content-type application/json")
    body = bytearray()
    try:
        async with asyncio.timeout(timeout):
            async for chunk in request.stream():
                body += chunk
                if len(body) > max_bytes:
                    raise RequestError(413, f"a request body may have at most {max_bytes:,} bytes")
    except TimeoutError:
        raise RequestError(408, f"the request body did not arrive within {timeout:g} seconds") from None
    return bytes(body)


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body; an empty body is an empty object."""

    def reject(constant: str) -> None:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        params = json.loads(body.decode() or "{}", parse_constant=reject)
    except UnicodeDecodeError as error:
        raise RequestError(400, f"the request is not JSON: byte {error.start} is not UTF-8") from None
    except RecursionError:
        raise RequestError(400, "the request is not JSON that can be read: it is nested too deep") from None
    except ValueError as error:  # says where, as "line 1 column 2"; advice about Python follows a semicolon
        raise RequestError(400, f"the request is not JSON: {str(error).partition(';')[0]}") from None
    if not isinstance(params, dict):
        raise RequestError(400, f"a request must be a JSON object, got a {type(params).__name__}")
    return params


async def wait_disconnected(request: Request) -> None:
    """Wait until the client has gone; the body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass

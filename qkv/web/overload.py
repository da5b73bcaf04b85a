"""Reject requests while a server is full, at little cost: each rejection takes time from the computation."""

import asyncio
import json
import time
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

HURRY = 0.1
"""Seconds after a rejection within which the next request of the same connection waits."""
WAIT = 0.25
"""Seconds that it waits. A client that ignores Retry-After would else ask thousands of times a second."""
Client = tuple[str, int] | None
"""Address and port of a connection; None if they are unknown."""
REJECTION = Response(
    json.dumps({"error": "too many requests are pending; try again in a moment"}),
    status_code=429,
    headers={"retry-after": "1"},
    media_type="application/json",
)


class OverloadFilter:
    """ASGI middleware that answers requests before they are read while there is no room for them.

    `reject` returns the response to a request without room, such as REJECTION, and None for any other.
    """

    def __init__(self, app: ASGIApp, reject: Callable[[Scope], Response | None]):
        self.app = app
        self.reject = reject
        self._rejected: dict[Client, float] = {}  # time of the last rejection

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or reject it."""
        if scope["type"] != "http" or self.reject(scope) is None:
            await self.app(scope, receive, send)
            return
        client = scope["client"]
        if self.is_hurried(client):
            await asyncio.sleep(WAIT)
        rejection = self.reject(scope)
        if rejection is None:
            await self.app(scope, receive, send)
            return
        self.note(client)
        await rejection(scope, receive, send)

    def is_hurried(self, client: Client) -> bool:
        """Return whether this connection was rejected a moment ago."""
        return time.monotonic() - self._rejected.get(client, -HURRY) < HURRY

    def note(self, client: Client) -> None:
        """Remember that this connection is rejected now."""
        if len(self._rejected) > 1000:
            self._rejected.clear()
        self._rejected[client] = time.monotonic()

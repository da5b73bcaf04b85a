"""Access control of the API: a bearer token; without one, only programs of this machine that know its address.

A server on the loopback interface without a token is open to every page in a browser of this machine: another site can
send it requests (checked by Origin), or point its own name at 127.0.0.1 (checked by Host). With a token neither helps
such a page, and a reverse proxy may use any Host.
"""

import secrets
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qkv.web.rest.errors import ApiError
from qkv.web.security import foreign_request

HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}
OPEN_PATHS = ("/healthz",)
"""Paths that need no token: a load balancer has none."""
MIN_TOKEN = 16


class BearerGuard:
    """ASGI middleware that rejects requests without access; `hosts` matter only where there is no token."""

    def __init__(self, app: ASGIApp, token: str | None, hosts: Collection[str]):
        self.app, self.token, self.hosts = app, token, frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the request, then pass it on."""
        if scope["type"] != "http":
            return
        error = self.reject(scope["path"], Headers(scope=scope))

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await (self.app if error is None else error.to_response())(scope, receive, send_guarded)

    def reject(self, path: str, headers: Headers) -> ApiError | None:
        """Return the error of a request without access; None: it has access."""
        if self.token is None:
            foreign = foreign_request(headers, self.hosts)
            return None if foreign is None else ApiError(foreign[1], status=foreign[0])
        if path in OPEN_PATHS:
            return None
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _equal(given.strip(), self.token):
            return None
        message = "the header `authorization: Bearer TOKEN` is missing, or its token is wrong"
        return ApiError(message, status=401, headers={"www-authenticate": "Bearer"})


def check_token(token: str) -> str:
    """Return a token that can be sent in a header and is not guessed; its value is never part of the error."""
    if len(token) < MIN_TOKEN or not all("!" <= character <= "~" for character in token):
        raise ValueError(
            f"the token must have at least {MIN_TOKEN} printable ASCII characters and no space, got {len(token)} "
            'characters; python -c "import secrets; print(secrets.token_urlsafe(24))" makes one'
        )
    return token


def _equal(given: str, token: str) -> bool:
    return secrets.compare_digest(given.encode(errors="replace"), token.encode())

"""Access control: only this machine's browser, with the printed token, from the page that this server sent.

A server on the loopback interface is open to every page in the same browser: another site can send it requests
(checked by Origin), or point its own name at 127.0.0.1 (checked by Host). The token keeps out other users of the
machine. Responses may load nothing from elsewhere and may not be framed.
"""

import secrets
from collections.abc import Collection, Iterable
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """ASGI middleware that rejects requests without access; the token in the URL becomes a cookie."""

    def __init__(self, app: ASGIApp, token: str, hosts: Iterable[str], cookie: str):
        self.app = app
        self.token = token
        self.hosts = frozenset(hosts)
        self.cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the request, then pass it on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no websockets: uvicorn rejects the handshake
        rejection = self._reject(scope)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await (self.app if rejection is None else rejection)(scope, receive, send_guarded)

    def _reject(self, scope: Scope) -> Response | None:
        """Return the error response; None if the request may pass."""
        headers = Headers(scope=scope)
        foreign = foreign_request(headers, self.hosts)
        if foreign is not None:
            return _error(*foreign)
        if scope["path"] == "/" and (given := _token_in_url(scope)) is not None:
            return self._admit(given)
        if not self._matches(_cookie(headers, self.cookie)):
            return _error(403, "the token is missing; open the whole address that `qkv serve` printed, with its token")
        return None

    def _admit(self, given: str) -> Response:
        """Set a cookie for this server's pages only, hidden from scripts; the token leaves the address bar."""
        if not self._matches(given):
            return _error(403, "the token is wrong; open the address that `qkv serve` printed last")
        response = RedirectResponse("/", status_code=303)
        response.set_cookie(self.cookie, self.token, httponly=True, samesite="strict", path="/")
        return response

    def _matches(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(errors="replace"), self.token.encode())


def foreign_request(headers: Headers, hosts: Collection[str]) -> tuple[int, str] | None:
    """Return status and message for a request of another site, or to another name of this machine; None: neither."""
    host = headers.get("host", "").lower()
    if host not in hosts:
        return 421, "this server answers to its own address only; open the one that `qkv serve` printed"
    if headers.get("origin", f"http://{host}") != f"http://{host}":
        return 403, "this request came from a page of another site"
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return 403, "this request came from another site"
    return None


def _error(status: int, message: str) -> Response:
    return PlainTextResponse(f"qkv: {message}\n", status_code=status)


def _token_in_url(scope: Scope) -> str | None:
    """Return the token of the query string; None without one, empty if it cannot be parsed."""
    try:
        return parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=20).get("token", [None])[0]
    except ValueError:
        return ""


def _cookie(headers: Headers, name: str) -> str:
    """Return the value of a cookie, whatever the other cookies are: all servers of this machine share them.

    `http.cookies` drops all cookies at the first that it cannot parse.
    """
    for pair in "; ".join(headers.getlist("cookie")).split(";"):
        found, _, value = pair.strip().partition("=")
        if found == name:
            return value
    return ""

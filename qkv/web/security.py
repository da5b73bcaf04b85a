"""Who may ask: this machine's own browser, with the token that was printed, from the page that we served.

A server on the loopback is open to every page that the same browser shows: another site can send it requests
(Origin tells), or point a name of its own at 127.0.0.1 (Host tells). The token keeps other users of the machine
out. What is answered may load nothing from elsewhere and may not be framed.
"""

import secrets
from collections.abc import Iterable
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
    """Refuses in words whoever may not ask; the token in the address becomes a cookie."""

    def __init__(self, app: ASGIApp, token: str, hosts: Iterable[str], cookie: str):
        self.app = app
        self.token = token
        self.hosts = frozenset(hosts)
        self.cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, then pass on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # there are no websockets here; uvicorn refuses the handshake
        refused = self._refuse(scope)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await (self.app if refused is None else refused)(scope, receive, send_guarded)

    def _refuse(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        if host not in self.hosts:
            return _no(421, "this server answers to its own address only; open the one that `qkv serve` printed")
        if headers.get("origin", f"http://{host}") != f"http://{host}":
            return _no(403, "this request came from a page of another site")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return _no(403, "this request came from another site")
        if scope["path"] == "/" and (given := _token_in_address(scope)) is not None:
            return self._admit(given)
        if not self._matches(_cookie(headers, self.cookie)):
            return _no(403, "the token is missing; open the whole address that `qkv serve` printed, with its token")
        return None

    def _admit(self, given: str) -> Response:
        """The cookie is for this server's pages only, unread by scripts; the token leaves the address bar."""
        if not self._matches(given):
            return _no(403, "the token is wrong; open the address that `qkv serve` printed last")
        response = RedirectResponse("/", status_code=303)
        response.set_cookie(self.cookie, self.token, httponly=True, samesite="strict", path="/")
        return response

    def _matches(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(errors="replace"), self.token.encode())


def _no(status: int, words: str) -> Response:
    return PlainTextResponse(f"qkv: {words}\n", status_code=status)


def _token_in_address(scope: Scope) -> str | None:
    try:
        return parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=20).get("token", [None])[0]
    except ValueError:
        return ""


def _cookie(headers: Headers, name: str) -> str:
    """The value of a cookie, whatever else is there: other servers of this machine share the jar, and write anything.

    `http.cookies` gives up all cookies at the first that it does not understand.
    """
    for pair in "; ".join(headers.getlist("cookie")).split(";"):
        found, _, value = pair.strip().partition("=")
        if found == name:
            return value
    return ""

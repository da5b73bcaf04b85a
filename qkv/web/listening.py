"""The listening socket of a server, and the settings of uvicorn that every server here has."""

import socket
from ipaddress import ip_address

import uvicorn
from starlette.types import ASGIApp

from qkv.errors import QkvError
from qkv.web.connections import BoundedListener, Connections

LOOPBACK = "127.0.0.1"


def parse_host(host: str) -> str:
    """Return the IP address of `--host`: an address or localhost."""
    try:
        return LOOPBACK if host == "localhost" else str(ip_address(host))
    except ValueError:
        raise ValueError(f"host must be an IP address such as 0.0.0.0, or localhost, got {host[:60]!r}") from None


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    return ip_address(host).is_loopback


def listen(port: int, host: str = LOOPBACK) -> BoundedListener:
    """Return a listening socket, by default on the loopback interface; port 0 takes a free one."""
    if not 0 <= port <= 65535:
        raise ValueError(f"port must be from 0 to 65535, got {port}")
    found = BoundedListener(socket.AF_INET if ip_address(host).version == 4 else socket.AF_INET6)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen(128)
    except OSError as error:
        found.close()
        place = "" if host == LOOPBACK else f" of {host}"
        raise QkvError(f"cannot listen on port {port}{place} ({error.strerror}); choose another with --port") from error
    return found


class ClosingServer(uvicorn.Server):
    """uvicorn that closes connections which were accepted, but not yet known, when it ends."""

    def __init__(self, config: uvicorn.Config, connections: Connections):
        super().__init__(config)
        self.open_connections = connections

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, and wait for what is in flight within the limit."""
        self.open_connections.is_closing = True
        await super().shutdown(sockets)


def uvicorn_config(app: ASGIApp, connections: Connections, shutdown_seconds: float) -> uvicorn.Config:
    """Return settings with these bounded connections; `shutdown_seconds`: how long it waits for open requests."""
    return uvicorn.Config(
        app,
        log_level="critical",
        lifespan="off",
        loop="asyncio",  # other loops do not accept by `BoundedListener.accept`
        http=connections.protocol,  # type: ignore[arg-type]
        ws="none",
        timeout_keep_alive=10,
        timeout_graceful_shutdown=shutdown_seconds,  # type: ignore[arg-type]
        server_header=False,
        proxy_headers=False,  # a client is its connection, whatever it says about others
    )

"""The server behind `qkv serve --api`: address, access, overload, and an end that finishes what was accepted."""

import asyncio
import secrets
import socket

import uvicorn

from qkv.web.connections import Connections, connection_limit
from qkv.web.listening import ClosingServer, is_loopback, listen, parse_host, uvicorn_config
from qkv.web.overload import OverloadFilter
from qkv.web.rest.access import BearerGuard, check_token
from qkv.web.rest.early_refusal import EarlyRefusal
from qkv.web.rest.routes import Api, RequestCounter
from qkv.web.rest.served_run import ServedRun
from qkv.web.rest.settings import ApiSettings

SPARE_CONNECTIONS = 256
"""Connections beyond those of accepted requests: for refusals, idle clients, metrics."""
LAST_SECONDS = 1.0
"""Seconds to send errors to what could not be finished; then connections are closed."""


class ApiServer:
    """A run with an address."""

    def __init__(self, served: ServedRun, settings: ApiSettings | None = None):
        self.settings = settings or ApiSettings()
        host = parse_host(self.settings.host)
        self.token, self.has_own_token = self.settings.token, self.settings.token is None
        if self.token is not None:
            check_token(self.token)
        elif not is_loopback(host):
            self.token = secrets.token_urlsafe(24)
        self.socket = listen(self.settings.port, host)
        self.host, self.port = host, self.socket.getsockname()[1]
        self.api = Api(served, self.settings)
        names = {"127.0.0.1", "localhost", f"[{self.host}]" if ":" in self.host else self.host}
        overload = OverloadFilter(self.api.application(), self.api.reject)
        guard = BearerGuard(overload, self.token, [f"{name}:{self.port}" for name in names])
        most = connection_limit(most_connections(self.settings))
        refuse = EarlyRefusal(self.api, guard, overload)
        self.connections = self.socket.connections = Connections(most, self.settings.header_timeout, refuse)
        config = uvicorn_config(
            RequestCounter(guard, self.api.metrics), self.connections, self.settings.shutdown_seconds + LAST_SECONDS
        )
        self.uvicorn = DrainingServer(config, self.connections, self.api)

    @property
    def address(self) -> str:
        """URL that programs start from."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def run(self) -> None:
        """Serve until SIGTERM, Ctrl-C or `stop`."""
        try:
            self.uvicorn.run(sockets=[self.socket])
        finally:
            self.api.stop()
            self.socket.close()

    def stop(self) -> None:
        """Make `run` return, after what was accepted has been finished."""
        self.uvicorn.should_exit = True


class DrainingServer(ClosingServer):
    """uvicorn that refuses new requests when it ends, and tells those that could not be finished."""

    def __init__(self, config: uvicorn.Config, connections: Connections, api: Api):
        super().__init__(config, connections)
        self.api = api

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, wait for what is in flight within the limit, then end the rest with an error."""
        self.api.drain()
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self.api.settings.shutdown_seconds, self.api.end_all)
        await super().shutdown(sockets)
        timer.cancel()


def most_connections(settings: ApiSettings) -> int:
    """Return how many connections a server with these settings has open at most."""
    return settings.max_streams + 2 * settings.max_waiting + SPARE_CONNECTIONS

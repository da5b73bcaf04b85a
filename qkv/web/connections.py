"""Bounds on the connections of the server: how many are open, and how long each may stay silent.

uvicorn keeps a connection that sends half a header until the client closes it, and asyncio accepts until no file
descriptor is left. Here the headers of a request have a deadline, and the oldest idle connection makes room for a new
one.
"""

import asyncio
import errno
import os
import resource
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 128
"""Maximum number of open connections; lower if the process may open fewer than 256 files."""
HEADER_TIMEOUT = 10.0
"""Seconds until the headers of a request must have arrived; an idle connection is closed after as many."""
WRITE_TIMEOUT = 30.0
"""Seconds that a client may take to read what was sent to it."""
GRACE = 0.25
"""Seconds that an idle connection is kept even if others wait; what waits to be accepted can send meanwhile."""
ACCEPTS_PER_TICK = 16
"""Connections accepted before the event loop handles what else is ready."""


def connection_limit(most: int = MAX_CONNECTIONS) -> int:
    """Return `most`, or half of the files that this process may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if files == resource.RLIM_INFINITY else max(4, min(most, files // 2))


def raise_file_limit(connections: int) -> None:
    """Let this process open twice as many files as connections, as far as the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections if hard == resource.RLIM_INFINITY else min(2 * connections, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Refusal(NamedTuple):
    """A whole response to a request that is not read; the headers of every response come after the status line."""

    status_line: bytes
    rest: bytes
    unread: int
    """Bytes of the request's body that will arrive, and are dropped."""


Refuse = Callable[[bytes, tuple[str, int] | None], Refusal | None]
"""Returns the refusal of the request that begins with these bytes, by address of its client; None: read it."""


class Connections:
    """The open connections; the one that has been idle longest comes first."""

    def __init__(self, limit: int | None = None, header_timeout: float = HEADER_TIMEOUT, refuse: Refuse | None = None):
        self.limit = connection_limit() if limit is None else limit
        self.header_timeout, self.refuse = header_timeout, refuse
        self.is_closing = False
        """Whether the server ends: a connection that was accepted a moment before would else be waited for."""
        self._open: dict[TimedProtocol, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: "TimedProtocol") -> None:
        """Add a connection. At the limit, close the one that has been idle longest; if none is idle, the new one."""
        if len(self._open) >= self.limit:
            oldest = next((other for other in self._open if other.is_idle()), connection)
            self.remove(oldest)
            oldest.transport.abort()
            if oldest is connection:
                return
        self._open[connection] = None

    def room(self) -> int:
        """Return how many connections can be accepted now, if those that have been idle for a while are closed."""
        free = self.limit - len(self._open)
        if free > 0:
            return free
        before = time.monotonic() - GRACE
        return sum(other.is_idle() and other.idle_since < before for other in self._open)

    def touch(self, connection: "TimedProtocol") -> None:
        """Make this connection the newest."""
        if connection in self._open:
            self._open[connection] = self._open.pop(connection)

    def remove(self, connection: "TimedProtocol") -> None:
        """Forget a connection that is closed."""
        self._open.pop(connection, None)

    def protocol(self, *args: Any, **kwargs: Any) -> "TimedProtocol":
        """Return the protocol of a new connection; uvicorn calls this."""
        return TimedProtocol(self, *args, **kwargs)


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with deadlines for reading headers and for writing responses."""

    def __init__(self, open_connections: Connections, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._open_connections = open_connections
        self._deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._has_begun = False  # some bytes of the next request are there
        self._unread = 0  # bytes to drop: the rest of the body of a refused request
        self.idle_since = time.monotonic()

    def is_idle(self) -> bool:
        """Return whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline: a client that sends nothing is closed too."""
        super().connection_made(transport)
        if self._open_connections.is_closing:
            transport.close()
            return
        self._start_deadline()
        self._open_connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop both deadlines."""
        self._open_connections.remove(self)
        _cancel(self._deadline)
        _cancel(self._write_deadline)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Restart the deadline at the first byte of a request, and at no other."""
        if self._unread:
            data, self._unread = data[self._unread :], max(0, self._unread - len(data))
        if not data or (self._is_between_requests() and self._refuse(data)):
            return
        if not self._has_begun:
            self._has_begun = True
            self._start_deadline()
        super().data_received(data)
        if not self.is_idle():
            _cancel(self._deadline)

    def on_response_complete(self) -> None:
        """Wait for the next request, for as long as its headers may take."""
        self._has_begun = False
        self.idle_since = time.monotonic()
        self._open_connections.touch(self)
        super().on_response_complete()
        if self.is_idle():  # pipelined requests have begun
            self._start_deadline()

    def pause_writing(self) -> None:
        """Start the deadline of a client that does not read."""
        super().pause_writing()
        self._write_deadline = self.loop.call_later(WRITE_TIMEOUT, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop that deadline."""
        _cancel(self._write_deadline)
        super().resume_writing()

    def _is_between_requests(self) -> bool:
        """Return whether the next byte begins a request, and nothing waits to be sent before its response."""
        if self._has_begun or self.flow.write_paused:
            return False
        return self.conn.our_state is h11.IDLE and not self.conn.trailing_data[0]

    def _refuse(self, data: bytes) -> bool:
        """Answer a request that is refused; return whether it was."""
        refuse = self._open_connections.refuse
        refusal = None if refuse is None else refuse(data, self.client)
        if refusal is None:
            return False
        self._unread = refusal.unread
        headers = b"".join(name + b": " + value + b"\r\n" for name, value in self.server_state.default_headers)
        self.transport.write(refusal.status_line + headers + refusal.rest)
        self._unset_keepalive_if_required()
        self.idle_since = time.monotonic()
        self._open_connections.touch(self)
        self._start_deadline()
        return True

    def _start_deadline(self) -> None:
        _cancel(self._deadline)
        self._deadline = self.loop.call_later(self._open_connections.header_timeout, self._close_idle)

    def _close_idle(self) -> None:
        if self.is_idle():
            self.transport.abort()


class BoundedListener(socket.socket):
    """A listening socket that accepts a few connections at a time, and refuses them when no descriptor is left."""

    def __init__(self, family: int = socket.AF_INET) -> None:
        super().__init__(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # so that asyncio sends at once
        self.connections: Connections | None = None
        self._reserve: int | None = _open_reserve()
        self._accepted = 0

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection; raise BlockingIOError, as if none were waiting, until the loop has run once more."""
        if self._accepted >= ACCEPTS_PER_TICK:
            raise BlockingIOError
        if self.connections is not None and self._accepted >= self.connections.room():
            time.sleep(0.001)  # it is reported again at once: let it wait in the queue of the system
            raise BlockingIOError
        if not self._accepted:
            asyncio.get_running_loop().call_soon(self._start_tick)
        self._accepted += 1
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._refuse()
            raise BlockingIOError from None

    def close(self) -> None:
        """Close the socket and the descriptor in reserve."""
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None
        super().close()

    def _start_tick(self) -> None:
        self._accepted = 0

    def _refuse(self) -> None:
        """Accept the waiting connection with the reserved descriptor and close it: it no longer wakes the server."""
        if self._reserve is None:
            time.sleep(0.05)  # nothing can be done until others close their files
        else:
            os.close(self._reserve)
            self._reserve = None
            with suppress(OSError):  # the client has gone, or another thread took the descriptor
                super().accept()[0].close()
        self._reserve = _open_reserve()


def _open_reserve() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()

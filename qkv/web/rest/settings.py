"""Settings of the API server."""

import math
from dataclasses import dataclass

from qkv.web.connections import HEADER_TIMEOUT
from qkv.web.listening import LOOPBACK


@dataclass(frozen=True)
class ApiSettings:
    """Address, access and limits."""

    host: str = LOOPBACK
    """IP address to listen on, or localhost."""
    port: int = 0
    """Port; 0 takes a free one."""
    token: str | None = None
    """Token that every request must send; None: no token on the loopback interface, a random one elsewhere."""
    max_streams: int = 64
    """Most continuations that are generated at once."""
    max_waiting: int = 64
    """Most continuations, and most other requests, that wait; further ones get status 429."""
    prefix_cache: float = 64.0
    """Most MiB of the states after prefixes of prompts, which prompts that begin alike share; 0: none is kept."""
    timeout: float = 120.0
    """Seconds until a request is given up."""
    shutdown_seconds: float = 8.0
    """Seconds for requests in flight after SIGTERM."""
    body_timeout: float = 10.0
    """Seconds until the body of a request must have arrived."""
    header_timeout: float = HEADER_TIMEOUT
    """Seconds until the headers of a request must have arrived."""

    def __post_init__(self) -> None:
        if self.max_streams < 1:
            raise ValueError(f"max_streams must be at least 1, got {self.max_streams}")
        if self.max_waiting < 0:
            raise ValueError(f"max_waiting must be at least 0, got {self.max_waiting}")
        if not 0 <= self.prefix_cache < math.inf:
            raise ValueError(f"prefix_cache must be a number of MiB of at least 0, got {self.prefix_cache}")
        if not 0 < self.timeout < math.inf:
            raise ValueError(f"timeout must be a number of seconds above 0, got {self.timeout}")

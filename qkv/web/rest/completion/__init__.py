"""Completions over HTTP: the request, the thread that generates, the choices of a response."""

from .engine import Engine as Engine
from .route import CompletionRoute as CompletionRoute

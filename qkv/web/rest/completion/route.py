"""`POST /v1/completions`: continue prompts, whole or as server-sent events, in OpenAI's layout."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from torch import nn

from qkv.cancellation import CanceledError
from qkv.data import Tokenizer
from qkv.web.requests import parse_object, wait_disconnected
from qkv.web.rest.completion.choice import ChoiceDelta, TokenEntry, logprobs_record
from qkv.web.rest.completion.engine import Engine
from qkv.web.rest.completion.request import CompletionRequest, EncodedPrompt, encode, read_completion
from qkv.web.rest.completion.session import CompletionSession
from qkv.web.rest.errors import ApiError, shutting_down, to_api_error
from qkv.web.rest.metrics import ApiMetrics

INLINE_CHARACTERS = 2000
"""Prompts up to this length are encoded on the event loop; longer ones on a thread."""
DONE = b"data: [DONE]\n\n"


class CompletionRoute:
    """Answers requests for completions of one model."""

    def __init__(
        self, name: str, tokenizer: Tokenizer, model: nn.Module, engine: Engine, timeout: float, metrics: ApiMetrics
    ):
        self.name, self.tokenizer, self.model = name, tokenizer, model
        self.engine, self.timeout, self.metrics = engine, timeout, metrics
        self.is_draining = False
        self._sessions: set[CompletionSession] = set()

    async def respond(self, request: Request, body: bytes) -> Response:
        """Return the response; raise for a request that cannot be answered."""
        asked = read_completion(parse_object(body), self.name)
        prompts = await self._encode(asked)
        if self.is_draining:
            raise shutting_down()
        session = CompletionSession(asked, prompts, self.tokenizer, self.timeout)
        session.start(self.engine)
        self._sessions.add(session)
        writer = CompletionWriter(self.name, session)
        if asked.stream:
            return EventStream(writer, self._finish)
        watcher = asyncio.create_task(wait_disconnected(request))
        watcher.add_done_callback(lambda _: session.cancel())
        try:
            return JSONResponse(await writer.whole())
        finally:
            watcher.cancel()
            self._finish(session)

    def end_all(self, error: ApiError) -> None:
        """End what is still in flight with this error."""
        for session in self._sessions:
            session.fail(error)

    async def _encode(self, asked: CompletionRequest) -> list[EncodedPrompt]:
        def encode_all() -> list[EncodedPrompt]:
            return [encode(self.tokenizer, self.model, prompt, asked.max_tokens) for prompt in asked.prompts]

        return encode_all() if asked.characters <= INLINE_CHARACTERS else await asyncio.to_thread(encode_all)

    def _finish(self, session: CompletionSession) -> None:
        session.cancel()
        if session not in self._sessions:
            return
        self._sessions.remove(session)
        usage = session.usage()
        self.metrics.tokens.add(usage["prompt_tokens"], kind="prompt")
        self.metrics.tokens.add(usage["completion_tokens"], kind="completion")
        if session.first_token is not None:
            self.metrics.first_token.observe(session.first_token - session.started)


class CompletionWriter:
    """Writes the deltas of a session as JSON."""

    def __init__(self, name: str, session: CompletionSession):
        self.session, self.request = session, session.request
        self.head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": name,
        }
        self._echoes = [self._echo(index) for index in range(len(session.choices))]

    async def whole(self) -> dict[str, Any]:
        """Return the response when all choices have ended."""
        whole = [ChoiceDelta() for _ in self.session.choices]
        async for found in self.session.deltas():
            for index, delta in found:
                whole[index].text += delta.text
                whole[index].entries += delta.entries
                whole[index].finish_reason = delta.finish_reason
        choices = [self._choice(index, delta, self._echoes[index]) for index, delta in enumerate(whole)]
        return {**self.head, "choices": choices, "usage": self.session.usage()}

    async def events(self) -> AsyncIterator[bytes]:
        """Yield server-sent events; an error after the first byte is an event, too."""
        before, after = self._template()
        try:
            for index, text in enumerate(self._echoes):
                if text:
                    yield _event(self._chunk([self._choice(index, ChoiceDelta(text))]))
            async for found in self.session.deltas():
                parts = []
                for index, delta in found:
                    if delta.text or delta.entries or delta.finish_reason is not None:
                        choice = self._choice(index, delta)
                        parts.append(before + json.dumps(choice).encode() + after)
                yield b"".join(parts)
            if self.request.include_usage:
                yield _event({**self.head, "choices": [], "usage": self.session.usage()})
        except CanceledError:
            return  # the client has gone
        except Exception as error:  # noqa: BLE001 - the status is sent; the error becomes an event
            yield _event(to_api_error(error).to_record())
        yield DONE

    def _template(self) -> tuple[bytes, bytes]:
        """Return what is before and after the choice in each event: it is written once."""
        before, after = json.dumps(self._chunk(["CHOICE"])).split('"CHOICE"')
        return f"data: {before}".encode(), f"{after}\n\n".encode()

    def _chunk(self, choices: list[Any]) -> dict[str, Any]:
        usage = {"usage": None} if self.request.include_usage else {}
        return {**self.head, "choices": choices, **usage}

    def _echo(self, index: int) -> str:
        if not self.request.echo:
            return ""
        prompt = self.request.prompts[index // self.request.n]
        return prompt if isinstance(prompt, str) else self.session.tokenizer.decode(prompt)

    def _choice(self, index: int, delta: ChoiceDelta, echo: str = "") -> dict[str, Any]:
        found: dict[str, Any] = {"text": echo + delta.text, "index": index, "logprobs": self._logprobs(delta.entries)}
        return {**found, "finish_reason": delta.finish_reason}

    def _logprobs(self, entries: list[TokenEntry]) -> dict[str, Any] | None:
        return None if self.request.logprobs is None else logprobs_record(entries)


class EventStream(StreamingResponse):
    """A response of server-sent events; `finish` is called however it ends."""

    def __init__(self, writer: CompletionWriter, finish: Any):
        headers = {"x-accel-buffering": "no"}  # or a reverse proxy holds events back
        super().__init__(writer.events(), headers=headers, media_type="text/event-stream")
        self.writer, self.finish = writer, finish

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until they end or the client goes away."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.finish(self.writer.session)


def _event(record: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(record)}\n\n".encode()

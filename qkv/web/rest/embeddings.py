"""`POST /v1/embeddings`: vectors of texts from an encoder, in OpenAI's layout."""

import base64
import struct
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from qkv.inference import MaskedLM
from qkv.web.params import MAX_TEXT_LENGTH
from qkv.web.requests import parse_object, wait_disconnected
from qkv.web.rest.errors import ApiError
from qkv.web.rest.fields import Fields, require_model
from qkv.web.rest.job_queue import JobQueue
from qkv.web.worker import Worker

MAX_TEXTS = 1024
BATCH_SIZE = 64
"""Texts that one computation embeds; texts of several requests share it."""
KNOWN = ("model", "input", "encoding_format", "dimensions", "user")


class EmbeddingRoute:
    """Answers requests for embeddings of one encoder; requests that wait are computed together."""

    def __init__(self, name: str, lm: MaskedLM, worker: Worker, max_waiting: int, timeout: float):
        self.name, self.lm, self.timeout = name, lm, timeout
        self.queue: JobQueue[str, tuple[list[float], int] | str] = JobQueue(
            worker, self._embed, lambda key: BATCH_SIZE, max_waiting
        )

    async def respond(self, request: Request, body: bytes) -> Response:
        """Return the response; raise for a request that cannot be answered."""
        asked = Fields(parse_object(body), KNOWN)
        require_model(asked, self.name)
        asked.require_neutral("dimensions", (self.lm.model.config.dim,))
        as_base64 = asked.choice("encoding_format", "float", ("float", "base64")) == "base64"
        what = f"a string of at most {MAX_TEXT_LENGTH:,} characters"
        texts = asked.one_or_many("input", MAX_TEXTS, _is_text, what)
        found = await self.queue.run(None, texts, wait_disconnected(request), self.timeout)
        data, tokens = [], 0
        for index, one in enumerate(found):
            if isinstance(one, str):
                raise ApiError(one, param="input", code="context_length_exceeded")
            vector, count = one
            tokens += count
            data.append({"object": "embedding", "index": index, "embedding": _write(vector, as_base64)})
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return JSONResponse({"object": "list", "data": data, "model": self.name, "usage": usage})

    def _embed(self, key: None, texts: list[str], indices: list[int]) -> list[tuple[list[float], int] | str]:
        """Return vector and number of tokens of each text, or why it has none, on the worker thread."""
        counts = [len(self.lm.tokenizer.encode(text)) for text in texts]
        room = self.lm.model.config.max_length - 2  # [CLS] and [SEP]
        good = [number for number, count in enumerate(counts) if count <= room]
        vectors = dict(zip(good, self.lm.embed([texts[number] for number in good]).tolist(), strict=True))
        return [
            (vectors[number], count)
            if number in vectors
            else f"input {indices[number] + 1} has {count} tokens; the model takes {room}"
            for number, count in enumerate(counts)
        ]


def _write(vector: list[float], as_base64: bool) -> Any:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode() if as_base64 else vector


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT_LENGTH

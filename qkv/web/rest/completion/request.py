"""The fields of `POST /v1/completions`, in OpenAI's layout."""

import secrets
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from qkv.data import Tokenizer
from qkv.decode import SearchLimits, argmax_token, sampler
from qkv.decode.single_path import TokenChooser
from qkv.inference.generate import prompt_limits
from qkv.web.rest.errors import ApiError
from qkv.web.rest.fields import Fields, require_model, require_unicode

DEFAULT_TOKENS = 16
MAX_CHOICES = 128
"""Prompts times `n`."""
MAX_LOGPROBS = 5
MAX_STOPS, MAX_STOP_LENGTH = 16, 256
MAX_PROMPT_LENGTH = 500_000
"""Longest prompt, in characters."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "suffix": ("",),
}
"""Fields of OpenAI that have no effect here, with the values that they may have."""
KNOWN = (
    *("model", "prompt", "max_tokens", "temperature", "top_p", "top_k", "seed", "n", "stop", "stream"),
    *("stream_options", "logprobs", "echo", "user"),
    *NEUTRAL,
)


class EncodedPrompt(NamedTuple):
    """A prompt as ids, the start token included, and what may follow."""

    ids: list[int]
    limits: SearchLimits


@dataclass(frozen=True)
class CompletionRequest:
    """The checked fields, before the prompts are encoded."""

    prompts: tuple[str | list[int], ...]
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int | None
    seed: int | None
    n: int
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool
    logprobs: int | None
    echo: bool

    @property
    def characters(self) -> int:
        """Number of characters to encode."""
        return sum(len(prompt) for prompt in self.prompts if isinstance(prompt, str))

    def choosers(self) -> list[TokenChooser]:
        """Return how each of the `n` continuations of one prompt picks tokens.

        Continuation i draws row i of the seed, so the first is that of `qkv predict --search sample` with this seed.
        """
        if self.temperature == 0:
            return [argmax_token] * self.n
        seed = secrets.randbits(62) if self.seed is None else self.seed
        top_p = None if self.top_p == 1 else self.top_p
        settings = {"seed": seed, "temperature": self.temperature, "top_k": self.top_k, "top_p": top_p}
        return [sampler(**settings, row_ids=[row]) for row in range(self.n)]  # type: ignore[arg-type]


def read_completion(record: dict[str, Any], model_name: str) -> CompletionRequest:
    """Return the checked fields of a request."""
    fields = Fields(record, KNOWN)
    require_model(fields, model_name)
    for name, values in NEUTRAL.items():
        fields.require_neutral(name, values)
    prompts, n = _read_prompts(fields), fields.integer("n", 1, 1, MAX_CHOICES)
    if len(prompts) * n > MAX_CHOICES:
        raise ApiError(f"n={n} times {len(prompts)} prompts must be at most {MAX_CHOICES}", param="n")
    stream = fields.boolean("stream")
    if fields.get("stream_options") is not None and not stream:
        raise fields.wrong("stream_options", "needs stream: true")
    options = fields.record_of("stream_options", ("include_usage", "include_obfuscation"))
    options.require_neutral("include_obfuscation", (False,))
    logprobs, echo = fields.integer("logprobs", None, 0, MAX_LOGPROBS), fields.boolean("echo")
    if echo and logprobs is not None:
        raise ApiError("logprobs with echo is not supported: the tokens of a prompt are not scored", param="logprobs")
    return CompletionRequest(
        prompts=prompts,
        max_tokens=fields.integer("max_tokens", None, 1, 2**31 - 1),
        temperature=fields.number("temperature", 1.0, 0, 2),
        top_p=_positive(fields, "top_p"),
        top_k=fields.integer("top_k", None, 1, 2**31 - 1),
        seed=fields.integer("seed", None, -(2**63), 2**63 - 1),
        n=n,
        stops=_read_stops(fields),
        stream=stream,
        include_usage=options.boolean("include_usage"),
        logprobs=logprobs,
        echo=echo,
    )


def encode(tokenizer: Tokenizer, model: nn.Module, prompt: str | list[int], max_tokens: int | None) -> EncodedPrompt:
    """Return a prompt as ids, after the start token; by default with DEFAULT_TOKENS, or fewer if no more fit."""
    if isinstance(prompt, str):
        ids = [tokenizer.start, *tokenizer.encode(prompt)]
    else:
        _require_known(prompt, len(tokenizer))
        ids = list(prompt) if prompt[:1] == [tokenizer.start] else [tokenizer.start, *prompt]
    longest = int(model.config.max_length)  # type: ignore[union-attr, arg-type]
    tokens = max(1, min(DEFAULT_TOKENS, longest - len(ids) + 1)) if max_tokens is None else max_tokens
    try:
        return EncodedPrompt(ids, prompt_limits(tokenizer, model, ids, tokens))
    except ValueError as error:
        param = "prompt" if len(ids) > longest else "max_tokens"
        raise ApiError(str(error), param=param, code="context_length_exceeded") from None


def _read_prompts(fields: Fields) -> tuple[str | list[int], ...]:
    what = f"a string of at most {MAX_PROMPT_LENGTH:,} characters or a list of token ids"
    return tuple(fields.one_or_many("prompt", MAX_CHOICES, _is_prompt, what))


def _is_prompt(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_PROMPT_LENGTH
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


def _require_known(ids: list[int], count: int) -> None:
    wrong = [token for token in ids if not 0 <= token < count]
    if wrong:
        raise ApiError(f"token ids must be 0 to {count - 1}, got {wrong[0]}", param="prompt")


def _read_stops(fields: Fields) -> tuple[str, ...]:
    value = fields.get("stop")
    stops = [] if value is None else value if isinstance(value, list) else [value]
    if len(stops) > MAX_STOPS:
        raise ApiError(f"stop must have at most {MAX_STOPS} strings, got {len(stops)}", param="stop")
    for stop in stops:
        if not isinstance(stop, str) or not 1 <= len(stop) <= MAX_STOP_LENGTH:
            raise ApiError(f"stop must be strings of 1 to {MAX_STOP_LENGTH} characters", param="stop")
        require_unicode("stop", stop)
    return tuple(stops)


def _positive(fields: Fields, name: str) -> float:
    value: float = fields.number(name, 1.0, 0, 1)
    if value == 0:
        raise fields.wrong(name, "must be above 0 and at most 1")
    return value

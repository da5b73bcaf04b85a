"""Generate text with a language model: encode a prompt, then sample, take the argmax, or search by beam.

    for token in generate_ids(model, [5, 17, 42], SearchLimits(100, end=2), draft=ModelDraft(small)): ...

A prefix cache saves the prefill of prompts that begin alike; a draft proposes tokens that the model verifies.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from qkv.data import Tokenizer
from qkv.decode import SearchLimits, argmax_token, beam, sampler, stream
from qkv.decode.single_path import TokenChooser
from qkv.errors import unknown_name_error
from qkv.inference.predictor import PredictOptions, Predictor
from qkv.inference.prefix_cache import CachedModel, PrefixCache
from qkv.inference.speculative import Draft, speculative_stream
from qkv.models.fast.fused_decoder import fast_form

DEFAULT_TOKENS = 100


@dataclass(frozen=True)
class Prompt:
    """A prompt as ids; the search starts after `inputs` with the token that its limits name."""

    ids: list[int]
    inputs: Tensor
    limits: SearchLimits


@dataclass(frozen=True)
class Continuation:
    """The text generated after a prompt."""

    text: str
    tokens: int
    log_probability: float
    finished: bool
    """Whether the model ended the text; otherwise the token limit did."""

    def to_record(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "text": self.text,
            "tokens": self.tokens,
            "log_probability": self.log_probability,
            "perplexity": math.exp(-self.log_probability / max(self.tokens + self.finished, 1)),
            "finished": self.finished,
        }


def encode_prompt(tokenizer: Tokenizer, model: nn.Module, text: str, tokens: int) -> Prompt:
    """Encode a prompt with room for `tokens` more; raise if the model cannot take that many."""
    return prompt_of_ids(tokenizer, model, [tokenizer.start, *tokenizer.encode(text)], tokens)


def prompt_of_ids(tokenizer: Tokenizer, model: nn.Module, ids: list[int], tokens: int) -> Prompt:
    """Return a prompt of these ids, the start token included, with room for `tokens` more; raise if there is none."""
    limits = prompt_limits(tokenizer, model, ids, tokens)
    device = next(model.parameters()).device
    return Prompt(ids, torch.tensor([ids[:-1]], dtype=torch.int64, device=device), limits)


def prompt_limits(tokenizer: Tokenizer, model: nn.Module, ids: Sequence[int], tokens: int) -> SearchLimits:
    """Return the limits of `tokens` more after a prompt of these ids; raise if the model cannot take that many."""
    if tokens < 1:
        raise ValueError(f"tokens must be at least 1, got {tokens}")
    longest = int(model.config.max_length)  # type: ignore[union-attr, arg-type]
    # the last generated token is never fed back
    if len(ids) + tokens - 1 > longest:
        raise ValueError(
            f"the prompt has {len(ids)} tokens with the start token, and {tokens} more exceed "
            f"the model's max_length={longest}"
        )
    forbidden = {*tokenizer.special.values(), tokenizer.pad, tokenizer.start} - {tokenizer.end}
    return SearchLimits(tokens, start=ids[-1], end=tokenizer.end, forbidden=tuple(sorted(forbidden)))


def token_chooser(search: str, options: PredictOptions) -> TokenChooser:
    """Return how "greedy" or "sample" picks the next token."""
    if search == "greedy":
        return argmax_token
    if search != "sample":
        raise unknown_name_error("search", search, ("greedy", "sample"))
    return sampler(seed=options.seed, temperature=options.temperature, top_k=options.top_k, top_p=options.top_p)


def generate_ids(
    model: nn.Module,
    prompt: Sequence[int],
    limits: SearchLimits,
    choose: TokenChooser = argmax_token,
    *,
    prefix_cache: PrefixCache | None = None,
    draft: Draft | None = None,
) -> Iterator[int]:
    """Yield the tokens that a decoder continues a prompt with, END included, as soon as they are chosen.

    The prompt is of at least one id; `limits.start` is ignored. A draft serves one generation at a time.
    """
    *first, last = _require_prompt(prompt)
    inputs = torch.tensor([first], dtype=torch.int64, device=next(model.parameters()).device)
    for token, _ in _stream(model, inputs, replace(limits, start=last), choose, prefix_cache, draft):
        yield token


def generate(
    tokenizer: Tokenizer,
    model: nn.Module,
    prompt: Prompt,
    choose: TokenChooser,
    *,
    prefix_cache: PrefixCache | None = None,
    draft: Draft | None = None,
) -> Iterator[str | Continuation]:
    """Yield the text piece by piece, and last the whole continuation.

    A character may span several tokens; it is yielded when it is complete.
    """
    decoder, count, total, finished = tokenizer.stream_decoder(prompt.ids), 0, 0.0, False
    pieces = []
    for token, log_probability in _stream(model, prompt.inputs, prompt.limits, choose, prefix_cache, draft):
        total += log_probability
        finished = token == prompt.limits.end
        if not finished:
            count += 1
            pieces.append(decoder.push(token))
            yield pieces[-1]
    pieces.append(decoder.flush())
    yield pieces[-1]
    yield Continuation("".join(pieces), count, total, finished)


def _stream(
    model: nn.Module,
    inputs: Tensor,
    limits: SearchLimits,
    choose: TokenChooser,
    prefix_cache: PrefixCache | None,
    draft: Draft | None,
) -> Iterator[tuple[int, float]]:
    """Yield tokens and their log-probabilities."""
    if prefix_cache is not None and prefix_cache.model is not model:
        raise ValueError("prefix_cache holds the states of another model; build it with PrefixCache(model, max_bytes)")
    searched: Any = model if prefix_cache is None else CachedModel(prefix_cache)
    if draft is None:
        return stream(searched, inputs, limits, choose)
    return speculative_stream(searched, inputs, limits, choose, draft)


def _require_prompt(ids: Sequence[int]) -> Sequence[int]:
    if not ids:
        raise ValueError("prompt must have at least one id, such as that of the start token, got none")
    return ids


def beam_continuations(
    tokenizer: Tokenizer, model: nn.Module, prompt: Prompt, *, beams: int, best: int
) -> list[Continuation]:
    """Return the best continuations that beam search finds."""
    found = beam(model, prompt.inputs, None, prompt.limits, beams=beams, n_best=best)[0]  # type: ignore[arg-type]
    continuations = []
    for hypothesis in found:
        decoder = tokenizer.stream_decoder(prompt.ids)
        text = "".join(decoder.push(token) for token in hypothesis.tokens) + decoder.flush()
        continuations.append(
            Continuation(text, len(hypothesis.tokens), hypothesis.log_probability, hypothesis.finished)
        )
    return continuations


class TextPredictor(Predictor):
    """Continue prompts; a record is {"input", "answers": [continuation]}. Standard input is one prompt.

    On a CPU it runs the model's fused form, whose output is equal up to rounding.
    """

    batch_size: ClassVar[int] = 1
    reads_whole_stdin: ClassVar[bool] = True

    def __init__(self, tokenizer: Tokenizer, model: nn.Module, options: PredictOptions):
        self.search = options.search or "sample"
        if options.draft is not None and self.search == "beam":
            raise ValueError("--draft has no effect with --search beam; it needs --search greedy or sample")
        options.require_beam(self.search)
        options.require_used(self.search)
        self.tokenizer, self.model, self.options = tokenizer, fast_form(model), options
        self.tokens = DEFAULT_TOKENS if options.tokens is None else options.tokens

    def check(self, text: str) -> None:
        """Raise for a prompt that the model cannot continue by so many tokens."""
        encode_prompt(self.tokenizer, self.model, text, self.tokens)

    def problem(self, text: str) -> str | None:
        """Return None: a prompt that cannot be continued ends the command; a server calls `check`."""
        return None

    def predict(self, texts: Sequence[str], indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the continuations of each prompt."""
        return [self._last(self.stream(text, index)) for text, index in zip(texts, indices, strict=True)]

    def stream(self, text: str, index: int) -> Iterator[str | dict[str, Any]]:
        """Yield the prompt and its continuation as it is generated, then the record."""
        prompt = encode_prompt(self.tokenizer, self.model, text, self.tokens)
        found: list[Continuation] = []
        if self.search == "beam":
            beams = max(self.options.beams, self.options.best)
            found = beam_continuations(self.tokenizer, self.model, prompt, beams=beams, best=self.options.best)
            yield from (text + one.text + "\n" for one in found)
        else:
            yield text
            choose = token_chooser(self.search, self.options)
            for piece in generate(self.tokenizer, self.model, prompt, choose, draft=self.options.draft):
                if isinstance(piece, Continuation):
                    found.append(piece)
                else:
                    yield piece
            yield "\n"
        yield {"input": text, "answers": [one.to_record() for one in found]}

    def format(self, record: dict[str, Any]) -> str:
        """Return the prompt with each continuation."""
        return "".join(f"{record['input']}{one['text']}\n" for one in record["answers"])

    def failed(self, text: str, error: str) -> dict[str, Any]:
        """Return a record without answers."""
        return {"input": text, "answers": [], "error": error}

    @staticmethod
    def _last(pieces: Iterator[str | dict[str, Any]]) -> dict[str, Any]:
        *_, record = pieces
        assert isinstance(record, dict)
        return record

"""Writing with a language model: a prompt, and what it goes on to say."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qkv.decode import Limits, beam, drawing, likeliest, stream
from qkv.decode.single_path import Choose
from qkv.registry import unknown_name_error
from qkv.tasks.text import TextTask


@dataclass(frozen=True)
class Prompt:
    """A prompt as tokens: a search starts after `inputs` with the token that its limits name."""

    ids: list[int]
    inputs: Tensor
    limits: Limits


@dataclass(frozen=True)
class Written:
    """What was written after a prompt."""

    text: str
    tokens: int
    log_probability: float
    finished: bool
    """Whether it came to the end of the text; if not, it was cut."""

    def to_record(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "text": self.text,
            "tokens": self.tokens,
            "log_probability": self.log_probability,
            "perplexity": math.exp(-self.log_probability / max(self.tokens + self.finished, 1)),
            "finished": self.finished,
        }


def read_prompt(job: TextTask, model: nn.Module, text: str, tokens: int) -> Prompt:
    """The prompt with room for `tokens` more; one that is too long for the model is refused."""
    if tokens < 1:
        raise ValueError(f"tokens must be at least 1, got {tokens}")
    one, config = job.tokenizer, model.config
    ids = [one.start, *one.encode(text)]
    longest = int(config.max_length)  # type: ignore[union-attr, arg-type]
    # the last token that is written need not be read
    if len(ids) + tokens - 1 > longest:
        raise ValueError(
            f"the prompt has {len(ids)} tokens (the start is one) and {tokens} more are wanted, "
            f"but the model takes {longest}"
        )
    device = next(model.parameters()).device
    forbidden = tuple(sorted({*one.special.values(), one.pad, one.start} - {one.end}))
    limits = Limits(tokens, start=ids[-1], end=one.end, forbidden=forbidden)
    return Prompt(ids, torch.tensor([ids[:-1]], dtype=torch.int64, device=device), limits)


def chooser(search: str, **options: Any) -> Choose:
    """How "greedy" or "sample" take the next token."""
    if search == "greedy":
        return likeliest
    if search != "sample":
        raise unknown_name_error("search", search, ("greedy", "sample"))
    return drawing(**{name: options[name] for name in ("seed", "temperature", "top_k", "top_p")})


def write(job: TextTask, model: nn.Module, prompt: Prompt, choose: Choose) -> Iterator[str | Written]:
    """Pieces of text as they are made, and at last all of it.

    A character may be split over several tokens; it is given out when it is whole.
    """
    text, count, total, finished = job.tokenizer.reader(prompt.ids), 0, 0.0, False
    written = []
    for token, log_probability in stream(model, prompt.inputs, prompt.limits, choose):  # type: ignore[arg-type]
        total += log_probability
        finished = token == prompt.limits.end
        if not finished:
            count += 1
            written.append(text.read(token))
            yield written[-1]
    written.append(text.finish())
    yield written[-1]
    yield Written("".join(written), count, total, finished)


def search_texts(job: TextTask, model: nn.Module, prompt: Prompt, *, beams: int, best: int) -> list[Written]:
    """The best continuations that a beam search finds."""
    found = beam(model, prompt.inputs, None, prompt.limits, beams=beams, best=best)[0]  # type: ignore[arg-type]
    texts = []
    for hypothesis in found:
        reader = job.tokenizer.reader(prompt.ids)
        text = "".join(reader.read(token) for token in hypothesis.tokens) + reader.finish()
        texts.append(Written(text, len(hypothesis.tokens), hypothesis.log_probability, hypothesis.finished))
    return texts

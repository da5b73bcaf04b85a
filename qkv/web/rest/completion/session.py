"""One request for completions while it is answered: its choices, its deadline and its end."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial

from torch import Tensor

from qkv.cancellation import CanceledError
from qkv.data import Tokenizer
from qkv.decode.single_path import TokenChooser
from qkv.decode.stepper import best_tokens
from qkv.inference.batching import Generation
from qkv.web.rest.completion.choice import ChoiceDelta, CompletionChoice, TopTokens
from qkv.web.rest.completion.engine import Engine
from qkv.web.rest.completion.request import CompletionRequest, EncodedPrompt
from qkv.web.rest.errors import ApiError, busy, too_late


class ChoiceListener:
    """Passes the tokens of a generation to its choice, and wakes the session."""

    def __init__(self, session: "CompletionSession", choice: CompletionChoice, generation: Generation):
        self.session, self.choice, self.generation = session, choice, generation

    def add(self, token: int, log_probability: float, extra: TopTokens) -> None:
        """Take a token; after a stop string no further one is needed."""
        self.session.note_token()
        if self.choice.add(token, log_probability, extra):
            self.session.release(self.generation)

    def end(self, reason: str) -> None:
        """Take the end of the generation."""
        if reason in ("stop", "length"):
            self.choice.end(reason)
        elif self.choice.finish_reason is None:
            self.session.fail(CanceledError() if reason == "canceled" else ApiError(reason, status=500))
        self.session.wake.set()


class CompletionSession:
    """The choices of one request; `deltas` yields what is new, until all have ended."""

    def __init__(
        self, request: CompletionRequest, prompts: Sequence[EncodedPrompt], tokenizer: Tokenizer, timeout: float
    ):
        self.request, self.prompts, self.tokenizer, self.timeout = request, prompts, tokenizer, timeout
        self.wake = asyncio.Event()
        self.started = time.monotonic()
        self.first_token: float | None = None
        self.choices: list[CompletionChoice] = []
        self._generations: list[Generation] = []
        self._error: Exception | None = None
        self._engine: Engine | None = None

    def start(self, engine: Engine) -> None:
        """Submit all generations, or none: then raise."""
        self._engine, count = engine, len(self.prompts) * self.request.n
        if count > engine.capacity:
            raise ApiError(f"{count} continuations are more than this server runs at a time, {engine.capacity}")
        if not engine.has_room(count):
            raise busy(engine.retry_after)
        try:
            for prompt in self.prompts:
                for choose in self.request.choosers():
                    self._submit(engine, prompt, choose)
        except BaseException:
            self.cancel()
            raise

    async def deltas(self) -> AsyncIterator[list[tuple[int, ChoiceDelta]]]:
        """Yield (choice, what is new) until every choice has ended; raise what ended the session before.

        Whatever ends the iteration, a client that goes away included, cancels what is still generated.
        """
        open_choices = set(range(len(self.choices)))
        left = max(0.0, self.started + self.timeout - time.monotonic())
        timer = asyncio.get_running_loop().call_later(left, lambda: self.fail(too_late(self.timeout)))
        try:
            while open_choices:
                await self.wake.wait()
                self.wake.clear()
                new = [(index, self.choices[index].take()) for index in sorted(open_choices)]
                found = [(index, delta) for index, delta in new if delta is not None]
                open_choices -= {index for index, delta in found if delta.finish_reason is not None}
                if found:
                    yield found
                if self._error is not None and open_choices:
                    raise self._error
        finally:
            timer.cancel()
            self.cancel()

    def note_token(self) -> None:
        """Remember when the first token came."""
        self.wake.set()
        if self.first_token is None:
            self.first_token = time.monotonic()

    def release(self, generation: Generation) -> None:
        """Cancel one generation, whose choice has ended."""
        generation.cancel()
        if self._engine is not None:
            self._engine.wake()

    def fail(self, error: Exception) -> None:
        """End the session with an error."""
        if self._error is None:
            self._error = error
        self.wake.set()

    def cancel(self) -> None:
        """Cancel all generations; those that have ended stay as they are."""
        for generation in self._generations:
            generation.cancel()
        if self._engine is not None:
            self._engine.wake()

    def usage(self) -> dict[str, int]:
        """Return the counts of tokens; the start token in front of a prompt is not counted."""
        read = sum(len(prompt.ids) - 1 for prompt in self.prompts)
        written = sum(choice.tokens for choice in self.choices)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    def _submit(self, engine: Engine, prompt: EncodedPrompt, choose: TokenChooser) -> None:
        request, describe, top = self.request, None, None
        if request.logprobs is not None:
            describe = self.tokenizer.token_text
            choose = top = RecordingChooser(choose, request.logprobs)
        choice = CompletionChoice(self.tokenizer.stream_decoder(prompt.ids), request.stops, prompt.limits.end, describe)
        generation = Generation(prompt.ids, prompt.limits, choose)
        self.choices.append(choice)
        extra = list if top is None else partial(top.named, self.tokenizer)
        engine.submit(generation, ChoiceListener(self, choice, generation), extra)
        self._generations.append(generation)


class RecordingChooser:
    """A token chooser of one row that keeps the most probable tokens of its last call."""

    def __init__(self, choose: TokenChooser, count: int):
        self.choose, self.count = choose, count
        self._last: tuple[list[float], list[int]] = ([], [])

    def __call__(self, log_probabilities: Tensor, sources: list[int], position: int) -> Tensor:
        """Choose as without recording."""
        if self.count:
            values, tokens = best_tokens(log_probabilities, self.count)
            self._last = values[0].tolist(), tokens[0].tolist()
        return self.choose(log_probabilities, sources, position)

    def named(self, tokenizer: Tokenizer) -> TopTokens:
        """Return the kept tokens by name; those that can never be chosen are left out."""
        pairs = zip(*self._last, strict=True)
        return [(tokenizer.token_text(token), value) for value, token in pairs if value > float("-inf")]

"""Continue texts with a trained run: `qkv.generate(run, prompt)`."""

from collections.abc import Iterator
from pathlib import Path

from torch import nn

from qkv.data import Tokenizer
from qkv.errors import QkvError
from qkv.inference import PredictOptions, TextPredictor
from qkv.inference.generate import DEFAULT_TOKENS, Continuation, encode_prompt, generate, token_chooser
from qkv.inference.prefix_cache import PrefixCache
from qkv.inference.speculative import Draft, ModelDraft, PromptNgramDraft
from qkv.runs.config import Config
from qkv.runs.load import load
from qkv.tasks.base import Task

NGRAM = "ngram"
"""Name of the draft that needs no run."""


class TextGenerator:
    """A loaded run of task `text`; it keeps the states of prefixes that its prompts share.

        generator = qkv.runs.load_generator("runs/text", cache_bytes=2**26, draft="runs/small")
        for piece in generator.generate("The statement", tokens=50):
            print(piece, end="", flush=True)

    One text is generated at a time.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        model: nn.Module,
        *,
        prefix_cache: PrefixCache | None = None,
        draft: Draft | None = None,
    ):
        self.tokenizer = tokenizer
        self.model = model.eval()
        self.prefix_cache = prefix_cache
        self.draft = draft

    def generate(
        self,
        prompt: str,
        *,
        tokens: int = DEFAULT_TOKENS,
        search: str = "sample",
        seed: int = 0,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
    ) -> Iterator[str]:
        """Yield the text after a prompt piece by piece; `search` is sample or greedy."""
        options = PredictOptions(seed=seed, temperature=temperature, top_k=top_k, top_p=top_p)
        options.require_used("sample" if search == "sample" else "greedy")
        encoded = encode_prompt(self.tokenizer, self.model, prompt, tokens)
        pieces = generate(
            self.tokenizer,
            self.model,
            encoded,
            token_chooser(search, options),
            prefix_cache=self.prefix_cache,
            draft=self.draft,
        )
        yield from (piece for piece in pieces if not isinstance(piece, Continuation))


def load_generator(
    run: str | Path | tuple[Config, Task, nn.Module], *, cache_bytes: int = 0, draft: str | Path | None = None
) -> TextGenerator:
    """Load a run of task `text`; `run` is its folder, or what `load` returned.

    Args:
        run: A run folder, or a Hugging Face GPT-2 folder.
        cache_bytes: Most bytes of a prefix cache (default: 0, none).
        draft: A smaller run with the same vocabulary, or "ngram", whose proposals the run verifies (default: none).
    """
    _, task, model = load(Path(run)) if isinstance(run, str | Path) else run
    predictor = task.predictor(model.eval(), PredictOptions())
    if not isinstance(predictor, TextPredictor):
        raise ValueError(f"a run of task {task.kind!r} generates no text; it needs one of task 'text'")
    device = str(next(model.parameters()).device)
    cache = PrefixCache(model, cache_bytes) if cache_bytes else None
    proposes = None if draft is None else load_draft(draft, task, device)
    return TextGenerator(predictor.tokenizer, model, prefix_cache=cache, draft=proposes)


def load_draft(name: str | Path, task: Task, device: str) -> Draft:
    """Return the draft of this name: "ngram", or a run of the same task with the same vocabulary."""
    if str(name) == NGRAM:
        return PromptNgramDraft()
    _, other, model = load(Path(name))
    if other.kind != task.kind:
        raise ValueError(f"--draft {name} is a run of task {other.kind}, but the run is one of task {task.kind}")
    if other.vocabulary() != task.vocabulary():
        raise QkvError("the draft has another vocabulary than the run; train it with data.tokenizer of the run", name)
    return ModelDraft(model.to(device).eval())

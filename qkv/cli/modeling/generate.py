"""`qkv decode` with a run of task text: a prompt is continued, and shown while it is written."""

import sys
from io import IncrementalNewlineDecoder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from qkv.tasks import TextTask

TOKENS = 100


def continue_texts(
    job: "TextTask", model: "nn.Module", prompts: list[str] | None, search: str, options: dict[str, Any], *, quiet: bool
) -> list[dict[str, Any]]:
    """Each prompt and what follows, on stdout as it comes or `quiet` and returned; without any, all of stdin is one."""
    from qkv.inference.generate import Written, chooser, read_prompt, search_texts, write

    records = []
    tokens = TOKENS if options["tokens"] is None else options["tokens"]
    for text in prompts or [_stdin()]:
        prompt = read_prompt(job, model, text, tokens)
        if search == "beam":
            found = search_texts(job, model, prompt, beams=options["beams"], best=options["best"])
            for one in () if quiet else found:
                _say(text + one.text + "\n")
        else:
            found = []
            _say("" if quiet else text)
            for piece in write(job, model, prompt, chooser(search, **options)):
                if isinstance(piece, Written):
                    found.append(piece)
                elif not quiet:
                    _say(piece)
            _say("" if quiet else "\n")
        records.append({"input": text, "answers": [one.to_record() for one in found]})
    return records


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _stdin() -> str:
    """All of it, read as texts to train on are: no mark of byte order, and one newline for each end of a line."""
    text = "" if sys.stdin is None else sys.stdin.buffer.read().decode("utf-8", errors="replace")
    return IncrementalNewlineDecoder(None, translate=True).decode(text.removeprefix("\ufeff"), final=True).rstrip("\n")

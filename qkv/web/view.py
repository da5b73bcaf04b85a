"""A page to keep: what `qkv look` writes, and what a notebook shows."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from qkv.storage import write_atomic
from qkv.web.backend import Bench, RunBench
from qkv.web.external import Layers, TensorBench, read_layers, read_tokens
from qkv.web.saved_page import key, self_contained
from qkv.web.wire import pack

LARGEST = 64 * 2**20
"""Bytes of numbers in one page: what a browser opens without complaint."""
COMFORTABLE = 16 * 2**20
"""Bytes after which a page is not filled up any further."""
NEEDED = ("about", "overview", "thumbnails", "head")


class View:
    """A bench at one input. Shows itself in a notebook; `save` writes one file that needs no network and no Python."""

    def __init__(self, bench: Bench, asked: dict[str, str] | None = None, title: str = "qkv"):
        self.bench = bench
        self.asked = asked or {}
        self.title = title
        self._page: str | None = None

    def html(self) -> str:
        """The page as one text."""
        if self._page is None:
            self._page = self_contained(self.title, self._record())
        return self._page

    def save(self, path: str | Path) -> Path:
        """Write the page, whole or not at all."""
        write_atomic(Path(path), self.html().encode())
        return Path(path)

    def _repr_html_(self) -> str:
        """In a notebook: a frame that may run scripts and save files, and reach nothing else."""
        return (
            f'<iframe srcdoc="{escape(self.html(), quote=True)}" sandbox="allow-scripts allow-downloads" '
            'style="width: 100%; height: 760px; border: 0" title="qkv"></iframe>'
        )

    def _record(self) -> dict[str, bytes]:
        """The answers that the page will ask for: the atlas whole, of the rest what there is room for."""
        size = 0
        answers: dict[str, bytes] = {}
        for name, asked in self.bench.questions(self.asked):
            if name not in NEEDED and size > COMFORTABLE:
                break
            found = self.bench.answer(name, {**self.asked, **asked})
            if name == "about":
                found.record.update(self.asked)
            answers[key(name, asked)] = data = pack(found)
            size += len(data)
            if size > LARGEST:
                raise ValueError(
                    f"the page would hold more than {LARGEST // 2**20} MiB of numbers; "
                    "look at a shorter text or at fewer layers, or use `qkv serve`, which sends one head at a time"
                )
        return answers


def look(
    run: str | Path | None = None,
    text: str | None = None,
    *,
    attention: Layers | None = None,
    tokens: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
) -> View:
    """A page about a run at a text, or about anybody's attention weights.

        qkv.look("runs/mine", "attention")
        qkv.look(attention=outputs.attentions, tokens=tokens)

    `attention` is a tensor of (1, heads, queries, keys) for each layer, as other viewers take it; `keys` names the
    columns where they are not the tokens of the rows.
    """
    if (run is None) == (attention is None):
        raise ValueError("give either a run and a text, or attention= and tokens=")
    if attention is not None:
        if tokens is None or text is not None:
            raise ValueError("attention= needs tokens=, a text for each row, and takes no other text")
        layers = read_layers(attention)
        return View(TensorBench(layers, read_tokens(layers, tokens, keys)), title="attention")
    if text is None or tokens is not None or keys is not None:
        raise ValueError("a run needs a text to look at, and makes its own tokens")
    assert run is not None
    bench = RunBench(Path(run))
    return View(bench, {"text": text, "answer": ""}, title=f"{bench.run.name}: {text}")

"""What a page can ask, and who answers: a trained run, or tensors that somebody brought."""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from qkv import tasks
from qkv.explain import observe
from qkv.inference.source_text import longest_source
from qkv.pronunciation.bundled import NAME, run_folder
from qkv.registry import unknown_name_error
from qkv.storage import QkvError
from qkv.train import Run
from qkv.web.params import text_of
from qkv.web.reading import READABLE, Sequence, answer_greedily, example, read_source, read_target
from qkv.web.screens import atlas, decoding, stepwise
from qkv.web.screens import versus as beside
from qkv.web.view_model import ModelScene, Scene
from qkv.web.wire import Answer

Handler = Callable[[Mapping[str, Any]], Answer]
KEPT = 4
"""Inputs whose passes are remembered, so that a click on another head need not run the model."""


class Bench(ABC):
    """Answers by name. One at a time: whoever serves a bench keeps to one thread."""

    screens: tuple[str, ...]

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """What is looked at: name, size, where it came from."""

    @abstractmethod
    def scene(self, asked: Mapping[str, Any]) -> Scene:
        """The input that is asked about, seen from inside."""

    def handlers(self) -> dict[str, Handler]:
        """What can be asked."""
        return {
            "about": lambda asked: Answer({**self.about(), "screens": list(self.screens)}),
            "overview": lambda asked: atlas.overview(self.scene(asked)),
            "thumbnails": lambda asked: atlas.thumbnails(self.scene(asked)),
            "head": lambda asked: atlas.head_map(self.scene(asked), asked),
        }

    def questions(self, asked: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """All that a page saved at this input should hold the answers to."""
        yield from (("about", {}), ("overview", {}), ("thumbnails", {}))
        for number, place in enumerate(self.scene(asked).places):
            for head in range(-1, place.heads):
                yield "head", {"place": number, "head": head}

    def answer(self, name: str, asked: Mapping[str, Any]) -> Answer:
        """The answer, or a ValueError in words; `seconds` says how long it took."""
        handlers = self.handlers()
        if name not in handlers:
            raise unknown_name_error("question", name[:40], handlers)
        start = perf_counter()
        with torch.no_grad():  # a kind with weights of its own computes them anew
            found = handlers[name](asked)
        return replace(found, record={**found.record, "seconds": perf_counter() - start})


class RunBench(Bench):
    """A trained run, or by the name `pronounce` the model that comes with qkv."""

    def __init__(self, run: Path):
        self.run, self.folder = run, run_folder(run)
        self.config, self.job, self.model = tasks.restore(self.folder)
        if not isinstance(self.job, READABLE):
            raise QkvError(f"a run of task {self.config.task!r} has no attention to look at", self.folder)
        writes = isinstance(self.job, tasks.Seq2SeqTask)
        self.screens = ("atlas", "stepwise", "beside", *(("decoding",) if writes else ()))
        self.weights_hash = sha256(Run(self.folder).weights.read_bytes()).hexdigest()
        self._scenes: OrderedDict[tuple[str, str], ModelScene] = OrderedDict()

    def about(self) -> dict[str, Any]:
        """The model and where it came from."""
        parameter = next(self.model.parameters())
        return {
            "name": self.run.name,
            "run": str(self.run),
            "task": self.config.task,
            "family": self.config.family,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "hash": self.weights_hash[:12],
            "seed": self.config.train.seed,
            "torch": torch.__version__,
            "dtype": str(parameter.dtype).removeprefix("torch."),
            "device": str(parameter.device),
            "longest": longest_source(self.model),
            "text": example(self.job),
            "writes": isinstance(self.job, tasks.Seq2SeqTask),
        }

    def handlers(self) -> dict[str, Handler]:
        """Also what needs a model."""
        return {
            **super().handlers(),
            "steps": lambda asked: stepwise.steps(self.scene(asked), asked),
            "kinds": lambda asked: Answer({"kinds": beside.offered()}),
            "beside": lambda asked: beside.beside(self.scene(asked), asked),
            "copying": beside.copying_at,
            **decoding.handlers(self.job, self.model, self._restoring(*decoding.IMPORTS)),
        }

    def questions(self, asked: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Also the kinds beside softmax, those whose states are small."""
        yield from super().questions(asked)
        kinds = [kind for kind in beside.offered() if kind != "taylor(order=4)"]
        yield "kinds", {}
        for kind in ("softmax", *kinds):
            yield "copying", {"kind": kind}
        for number, place in enumerate(self.scene(asked).places):
            for head in range(place.heads):
                rows = range(len(self.scene(asked).tokens[place.rows]))
                yield from (("steps", {"place": number, "head": head, "row": row}) for row in rows)
                yield from (("beside", {"place": number, "head": head, "kind": kind}) for kind in kinds)
        yield from decoding.questions(self.job, self.model, asked)

    def scene(self, asked: Mapping[str, Any]) -> ModelScene:
        """A pass of the model over the text; its target is the `answer` asked about, or what it writes itself."""
        key = text_of(asked, "text"), text_of(asked, "answer")
        if key not in self._scenes:
            self._scenes[key] = self._observe(*key)
            while len(self._scenes) > KEPT:
                self._scenes.popitem(last=False)
        self._scenes.move_to_end(key)
        return self._scenes[key]

    def sequences(self, text: str, answer: str) -> tuple[Sequence, Sequence | None]:
        """Source and target of a text; a model that only continues has no target."""
        source = read_source(self.job, self.model, text)
        if not isinstance(self.job, tasks.Seq2SeqTask):
            return source, None
        if answer.strip():
            return source, read_target(self.job, self.model, answer)
        return source, answer_greedily(self.job, self.model, source)

    def _restoring(self, *imports: str) -> list[str]:
        """The lines that restore this model in Python, with these imports among their own."""
        if self.run != self.folder:
            own, where = ["from qkv.pronunciation.bundled import model_folder"], "model_folder()"
        else:
            own, where = [], f"Path({str(self.folder)!r})"
        standard = [] if own else ["from pathlib import Path", ""]
        lines = sorted(["from qkv import tasks", *imports, *own])
        return [*standard, *lines, "", f"_, job, model = tasks.restore({where})"]

    def _observe(self, text: str, answer: str) -> ModelScene:
        source, target = self.sequences(text, answer)
        code = self._restoring("from qkv.explain import observe")
        if target is None:
            looks = observe(self.model, source.ids)
            code.append(f"looks = observe(model, {source.ids})")
            return ModelScene(looks, {looks[0].site.rows: source.tokens}, source.notes, code)
        looks = observe(self.model, source.ids, target.ids)
        code.append(f"looks = observe(model, {source.ids}, {target.ids})")
        tokens = {
            "source": source.tokens,
            "target": ["START", *target.tokens],
            "written": [*target.tokens, "END"],
        }
        return ModelScene(looks, tokens, source.notes + target.notes, code)


def newest_run(parent: Path) -> Path:
    """The run folder that was finished last, of those whose models attend; without any, the model of qkv."""
    finished = [path.parent for path in parent.glob("*/model.safetensors") if _can_be_read(path.parent)]
    return max(finished, key=lambda folder: (folder / "model.safetensors").stat().st_mtime, default=Path(NAME))


def _can_be_read(folder: Path) -> bool:
    """A run that is damaged is not passed over: opening it says what is wrong."""
    try:
        return issubclass(tasks.tasks[tasks.read_config(Run(folder)).task], READABLE)
    except (QkvError, ValueError):
        return True

"""The run behind the API: its model, and which routes it has."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from qkv import runs
from qkv.data import Tokenizer
from qkv.errors import QkvError
from qkv.inference import MaskedLM, PredictOptions, Predictor
from qkv.models.fast.fused_decoder import fast_form
from qkv.pronunciation.bundled import run_folder
from qkv.tasks import Task
from qkv.web.rest.native_memory import bound_native_memory


class ExampleRequest(NamedTuple):
    """A request to print as an example."""

    path: str
    body: str


@dataclass(frozen=True)
class ServedRun:
    """A trained run with the parts that its routes need; None: the task has no such route."""

    name: str
    """The name that requests give as `model`: that of the folder."""
    family: str
    task: Task
    model: nn.Module
    tokenizer: Tokenizer | None
    masked_lm: MaskedLM | None
    predicts: bool

    @classmethod
    def load(cls, run: Path) -> "ServedRun":
        """Load a run folder, a Hugging Face folder or the bundled model `pronounce`."""
        bound_native_memory()
        folder = run_folder(run)
        config, task, model = runs.load(folder)
        model = fast_form(model.eval())
        tokenizer, masked_lm = task.text_tokenizer(), task.masked_lm(model)
        predicts = task.predictor(model, PredictOptions()) is not None
        if tokenizer is None and masked_lm is None and not predicts:
            raise QkvError(f"a run of task {config.task!r} has nothing to serve: it takes no input", folder)
        name = folder.resolve().name if run == folder else run.name
        return cls(name, config.family, task, model, tokenizer, masked_lm, predicts)

    def make_predictor(self, options: PredictOptions) -> Predictor:
        """Return a predictor with these options; only if the run predicts."""
        found = self.task.predictor(self.model, options)
        assert found is not None
        return found

    def to_record(self, created: int) -> dict[str, Any]:
        """Return the run as `/v1/models` lists it."""
        longest = getattr(getattr(self.model, "config", None), "max_length", None)
        return {
            "id": self.name,
            "object": "model",
            "created": created,
            "owned_by": "qkv",
            "task": self.task.kind,
            "family": self.family,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "max_length": longest,
            "routes": self.routes,
        }

    def example_request(self) -> "ExampleRequest":
        """Return a request that this run answers."""
        if self.predicts and self.make_predictor(PredictOptions()).reads_pictures:
            return ExampleRequest("/v1/predict", '{"input": {"picture": "BASE64"}}')
        reader = self.task.text_input(self.model)
        text = "0,1" if reader is None else reader.example
        if self.tokenizer is not None:
            return ExampleRequest("/v1/completions", json.dumps({"prompt": text, "max_tokens": 20}))
        return ExampleRequest("/v1/predict" if self.predicts else "/v1/embeddings", json.dumps({"input": text}))

    @property
    def routes(self) -> list[str]:
        """Paths of the routes that this run answers."""
        have = {
            "/v1/completions": self.tokenizer is not None,
            "/v1/predict": self.predicts,
            "/v1/embeddings": self.masked_lm is not None,
        }
        return [path for path, there in have.items() if there]

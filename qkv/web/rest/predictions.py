"""`POST /v1/predict`: what `qkv predict` prints, for every task that takes an input."""

import re
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import fields
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from qkv.inference import PredictOptions, Predictor
from qkv.inference.predictor import SEARCHES, predict_all, problem_of
from qkv.web.params import MAX_TEXT_LENGTH
from qkv.web.requests import parse_object, wait_disconnected
from qkv.web.rest.errors import ApiError
from qkv.web.rest.fields import Fields, require_model
from qkv.web.rest.job_queue import JobQueue
from qkv.web.rest.pictures import Picture, as_files, decode_picture, picture_problem
from qkv.web.wire import finite_or_none
from qkv.web.worker import Worker

MAX_INPUTS = 1024
MAX_PICTURES = 16
MAX_BEAMS = 64
CACHE_SIZE = 16
"""Predictors that are kept: one for each set of options."""
OPTIONS = tuple(field.name for field in fields(PredictOptions) if field.name != "warn")
Record = dict[str, Any]
MakePredictor = Callable[[PredictOptions], Predictor]


class PredictionRoute:
    """Answers requests for predictions of one run; requests that wait are computed together."""

    def __init__(self, name: str, make_predictor: MakePredictor, worker: Worker, max_waiting: int, timeout: float):
        self.name, self.timeout = name, timeout
        self._make_predictor = make_predictor
        self._predictors: OrderedDict[PredictOptions, Predictor] = OrderedDict()
        self.reads_pictures = self._predictor(PredictOptions(warn=_ignore)).reads_pictures
        self.queue: JobQueue[str | Picture, Record] = JobQueue(worker, self._predict, self._batch_size, max_waiting)

    async def respond(self, request: Request, body: bytes) -> Response:
        """Return the response; raise for a request that cannot be answered."""
        asked = Fields(parse_object(body), ("model", "input", "user", *OPTIONS))
        require_model(asked, self.name)
        options, inputs = read_options(asked), self._read_inputs(asked)
        self._predictor(options)  # raises for options that have no meaning
        records = await self.queue.run(options, inputs, wait_disconnected(request), self.timeout)
        failed = [record["error"] for record in records if record.get("error") is not None]
        if len(failed) == len(records):
            raise ApiError(failed[0], param="input")
        return JSONResponse({"object": "list", "model": self.name, "data": finite_or_none(records)})

    def _read_inputs(self, asked: Fields) -> list[str | Picture]:
        if self.reads_pictures:
            found = asked.one_or_many("input", MAX_PICTURES, lambda one: isinstance(one, dict), "an object")
            return [decode_picture(one) for one in found]
        what = f"a string of at most {MAX_TEXT_LENGTH:,} characters"
        return asked.one_or_many("input", MAX_INPUTS, _is_text, what)

    def _predictor(self, options: PredictOptions) -> Predictor:
        if options not in self._predictors:
            try:
                self._predictors[options] = self._make_predictor(options)
            except ValueError as error:
                raise ApiError(_with_field_names(str(error))) from None
            if len(self._predictors) > CACHE_SIZE:
                self._predictors.popitem(last=False)
        self._predictors.move_to_end(options)
        return self._predictors[options]

    def _batch_size(self, options: Hashable) -> int:
        assert isinstance(options, PredictOptions)
        return self._predictor(options).batch_size

    def _predict(self, options: PredictOptions, inputs: list[str | Picture], indices: list[int]) -> list[Record]:
        """Return a record per input, on the worker thread."""
        predictor = self._predictors.get(options) or self._make_predictor(options)
        if not self.reads_pictures:
            return predict_all(predictor, [str(one) for one in inputs], indices, partial(problem_of, predictor))
        with as_files([one for one in inputs if isinstance(one, Picture)]) as paths:
            records = predict_all(predictor, paths, indices, picture_problem)
        return [_without_path(record, index) for record, index in zip(records, indices, strict=True)]


def read_options(asked: Fields) -> PredictOptions:
    """Return the options of a request: those of `qkv predict`, with underscores."""
    default = PredictOptions()
    return PredictOptions(
        search=asked.choice("search", None, SEARCHES),
        beams=asked.integer("beams", default.beams, 1, MAX_BEAMS),
        best=asked.integer("best", default.best, 1, MAX_BEAMS),
        temperature=asked.number("temperature", default.temperature, 0, 100),
        top_k=asked.integer("top_k", None, 1, 2**31 - 1),
        top_p=asked.number("top_p", None, 0, 1),
        seed=asked.integer("seed", default.seed, -(2**63), 2**63 - 1),
        tokens=asked.integer("tokens", None, 1, 2**31 - 1),
        min_score=asked.number("min_score", None, 0, 1),
        warn=_ignore,
    )


def _without_path(record: Record, index: int) -> Record:
    """Return a record that names its picture by number: paths of this machine are nobody's business."""
    path, name = record["input"], f"picture {index + 1}"
    error = record.get("error")
    hidden = None if error is None else error.replace(path, name).replace(path.rpartition("/")[0], "the request")
    return {**record, "input": name, "error": hidden}


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT_LENGTH


def _with_field_names(message: str) -> str:
    """Return a message about options of the command line with the names of the fields: --top-k is top_k."""
    return re.sub(r"--([a-z-]+)", lambda found: found[1].replace("-", "_"), message)


def _ignore(message: str) -> None:
    """Drop a warning: the records of a batch do not tell which of them it is about."""

"""A predictor whose answers show which lines shared a batch, and jobs that use it."""

import time
from pathlib import Path

from qkv.inference import AnswerPredictor
from qkv.inference.jobs import BatchJob, JobSettings, open_job

SETTINGS = {"run": "0123", "options": {"search": None, "seed": 0}}


class Capitals(AnswerPredictor):
    """Answers in capitals, with the index of the line and the first text of its batch; an input with "!" has none."""

    batch_size = 4

    def __init__(self, seconds=0.0, fail_at=None):
        super().__init__(1)
        self.seconds, self.fail_at, self.seen = seconds, fail_at, []

    def check(self, text):
        if "!" in text:
            raise ValueError(f"{text!r} is too loud")

    def predict(self, texts, indices):
        if self.fail_at in texts:
            raise RuntimeError("power is off")
        time.sleep(self.seconds)
        self.seen += texts
        return [
            {"input": text, "answers": [{"text": f"{text.upper()} {index} {texts[0]}", "probability": 0.5}]}
            for text, index in zip(texts, indices, strict=True)
        ]


def run_job(folder, source, predictor=None, **settings):
    """The summary of a job that comes to its end."""
    job_folder, lines = open_job(Path(folder), Path(source), JobSettings(**{**SETTINGS, "part_lines": 5, **settings}))
    job = BatchJob(job_folder, lines, predictor or Capitals())
    try:
        job.run()
        return job.finish()
    finally:
        job_folder.close()


def outputs(folder):
    """Every file that must be the same however often a job was stopped."""
    paths = [*folder.glob("part-*"), *(folder / "state").glob("*.json"), folder / "summary.json"]
    return {path.name: path.read_bytes() for path in paths if path.exists()}

"""Predict the pieces of an input file and write a part for each.

A process takes the first piece that has no part and that no other process has locked. So a slow process holds up
nobody, and any number of processes, started at any time, give the same files: batches are formed within a piece, and
sampling is seeded by the number of the line.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import Any

from qkv.inference.jobs.input_file import InputFile, InputLine
from qkv.inference.jobs.job_folder import SUMMARY, JobFolder
from qkv.inference.jobs.part_file import FORMATS, Answer, PartWriter
from qkv.inference.predictor import Predictor, predict_all, problem_of
from qkv.storage import write_json, write_stream

POLL_SECONDS = 0.2
"""Seconds between two looks at the pieces that other processes have."""
REPORT_SECONDS = 0.5
"""Shortest time between two reports of progress."""

Progress = Callable[[int], None]
"""Called with the number of lines that have their answer: those of complete parts, and of the piece at work."""


@dataclass(frozen=True)
class JobSummary:
    """Counts of a complete job."""

    lines: int
    answered: int
    failed: int
    blank: int
    parts: int

    def to_record(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        return asdict(self)


class BatchJob:
    """Predicts the pieces of an input that have no part yet."""

    def __init__(self, folder: JobFolder, source: InputFile, predictor: Predictor):
        self.folder, self.source, self.predictor = folder, source, predictor
        self._reported = 0.0

    def run(self, progress: Progress | None = None) -> None:
        """Work until all parts are there, those of other processes too."""
        pieces = set(range(self.source.pieces))
        while missing := sorted(pieces - self.folder.complete()):
            if not sum(self._predict_unclaimed(piece, progress) for piece in missing):
                time.sleep(POLL_SECONDS)
                self._report(progress, 0)

    def lines_complete(self) -> int:
        """Return the number of lines of the complete parts."""
        return sum(map(self.source.index.piece_lines, self.folder.complete()))

    def finish(self) -> JobSummary:
        """Compare each part with its checksum, write and return the summary of the job."""
        records = [self.folder.read_record(piece) for piece in range(self.source.pieces)]
        lines, failed, blank = (sum(getattr(one, name) for one in records) for name in ("lines", "failed", "blank"))
        summary = JobSummary(lines, lines - failed - blank, failed, blank, len(records))
        write_json(self.folder.path / SUMMARY, summary.to_record())
        self.folder.remove_stale()
        return summary

    def _predict_unclaimed(self, piece: int, progress: Progress | None) -> bool:
        """Predict a piece unless it is complete or another process has it; return whether it was predicted."""
        with self.folder.claim(piece) as claimed:
            if not claimed or self.folder.is_complete(piece):
                return False
            self._predict_piece(piece, progress)
            return True

    def _predict_piece(self, piece: int, progress: Progress | None) -> None:
        with write_stream(self.folder.part(piece)) as file:
            writer = PartWriter(file, FORMATS[self.folder.form], self.predictor)
            for batch in _batches(self.source.read_piece(piece), self.predictor.batch_size):
                writer.write(self._answers(batch))
                self._report(progress, writer.lines)
        self.folder.save_record(piece, writer.record())

    def _answers(self, batch: list[InputLine]) -> list[Answer]:
        """Return a record for each line: that of a blank line is empty, and a line with a problem has its error."""
        asked = [line for line in batch if line.error is None and line.text.strip()]
        indices, problem = [line.number - 1 for line in asked], partial(problem_of, self.predictor)
        found = iter(predict_all(self.predictor, [line.text for line in asked], indices, problem))
        answers = []
        for line in batch:
            if line.error is not None:
                record = self.predictor.failed(line.text, line.error)
            elif line.text.strip():
                record = next(found)
            else:
                record = {**self.predictor.failed(line.text, ""), "error": None}
            answers.append((line.number, record))
        return answers

    def _report(self, progress: Progress | None, lines: int) -> None:
        if progress is not None and time.monotonic() - self._reported > REPORT_SECONDS:
            self._reported = time.monotonic()
            progress(self.lines_complete() + lines)


def _batches(lines: Iterator[InputLine], size: int) -> Iterator[list[InputLine]]:
    while batch := list(islice(lines, size)):
        yield batch

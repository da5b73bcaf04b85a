"""All cases. `python -m benchmarks.hostile_files` runs them and writes a result file."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.hostile import data_cases, huggingface_cases, run_cases
from tests.hostile.bases import make_bases
from tests.hostile.case import Case
from tests.hostile.measure import MAX_BYTES, MAX_SECONDS, Outcome, run

CASES: list[Case] = [*run_cases.cases(), *huggingface_cases.cases(), *data_cases.cases()]


def run_case(case: Case, bases: Path, folder: Path) -> Outcome:
    """Write the files of a case into an empty folder, run its command, and return how it ended."""
    folder.mkdir()
    arguments = case.make(bases, folder)
    return run(arguments, folder, {name: value.format(folder=folder) for name, value in case.environment})


def problem(outcome: Outcome) -> str:
    """Return what is wrong with an outcome; empty: refused in words, in time and in memory."""
    if not outcome.refused:
        return f"exit {outcome.code}: {outcome.stderr[-600:]}"
    if outcome.seconds > MAX_SECONDS:
        return f"{outcome.seconds:.1f} s"
    return f"{outcome.bytes / 1e6:.0f} MB" if outcome.bytes > MAX_BYTES else ""


def measure(cases: Sequence[Case]) -> Iterator[tuple[Case, Outcome]]:
    """Run these cases, each in a process of its own, in a folder that is removed at the end."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "bases").mkdir()
        make_bases(root / "bases")
        for number, case in enumerate(cases):
            yield case, run_case(case, root / "bases", root / str(number))
            shutil.rmtree(root / str(number), ignore_errors=True)

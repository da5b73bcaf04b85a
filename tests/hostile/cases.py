"""All cases, and the command that runs one or more of them: python -m tests.hostile.cases [part of a name]."""

import sys
import tempfile
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


def main() -> None:
    """Print the outcome of each case whose name has this text."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "bases").mkdir()
        make_bases(root / "bases")
        bad = 0
        for number, case in enumerate(case for case in CASES if wanted in case.name):
            outcome = run_case(case, root / "bases", root / str(number))
            failed = problem(outcome)
            bad += bool(failed)
            said = outcome.stderr.strip().splitlines()[-1:] or [""]
            mark = f"{'BAD' if failed else 'ok ':3} {outcome.seconds:5.2f} s {outcome.bytes / 1e6:6.0f} MB"
            sys.stdout.write(f"{mark}  {case.name}\n      {failed or said[0]}\n")
            sys.stdout.flush()
        sys.stdout.write(f"{bad} of {number + 1} are wrong\n")


if __name__ == "__main__":
    main()

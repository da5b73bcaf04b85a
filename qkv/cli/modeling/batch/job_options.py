"""The options of `qkv predict --in FILE --out FOLDER`, and what they cannot be combined with."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

FILE_SUFFIXES = (".tsv", ".json", ".jsonl")
PART_LINES = 10_000
THREADS = 1
"""Sums are rounded in another order with another number of threads. So it does not follow from the machine."""
MAX_THREADS = 256
PANEL = "Large files (--in)"

In = Annotated[
    Path | None,
    typer.Option(
        "--in",
        metavar="FILE",
        help="Predict each line of this text file and write numbered parts into the folder --out. The same command "
        "continues a job that was stopped. With torchrun, processes share the parts.",
        rich_help_panel=PANEL,
    ),
]
PartLines = Annotated[
    int | None,
    typer.Option(metavar="N", help=f"Lines per part (default: {PART_LINES:,}).", rich_help_panel=PANEL),
]
Format = Annotated[
    str | None,
    typer.Option("--format", metavar="NAME", help="tsv or jsonl (default: tsv).", rich_help_panel=PANEL),
]
Threads = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="CPU threads of each process; start a process per core instead. Another number changes the last digits of "
        f"probabilities (default: {THREADS}).",
        rich_help_panel=PANEL,
    ),
]


@dataclass(frozen=True)
class JobOptions:
    """Input file and output folder of a job, how the answers are cut into files, and threads of a process."""

    source: Path
    folder: Path
    form: str
    part_lines: int
    threads: int


def read_job_options(
    source: Path | None,
    out: Path | None,
    inputs: list[str] | None,
    form: str | None,
    part_lines: int | None,
    threads: int | None,
) -> JobOptions | None:
    """Return the options of a job; None without --in."""
    if source is None:
        for option, value in (("--format", form), ("--part-lines", part_lines), ("--threads", threads)):
            if value is not None:
                raise ValueError(f"{option} {value} has no effect: it is for large files, with --in FILE")
        return None
    if inputs:
        raise ValueError(f"--in {source} and {inputs[0][:40]!r} are two inputs; give one of them")
    if out is None:
        raise ValueError(f"--in {source} needs --out FOLDER for the parts")
    if out.suffix in FILE_SUFFIXES and not out.is_dir():
        raise ValueError(
            f"--out {out}: with --in it is a folder of parts; to write one file: qkv predict RUN --out {out} < {source}"
        )
    part_lines, threads = _default(part_lines, PART_LINES), _default(threads, THREADS)
    if part_lines < 1:
        raise ValueError(f"--part-lines must be at least 1, got {part_lines}")
    if not 1 <= threads <= MAX_THREADS:
        raise ValueError(f"--threads must be 1 to {MAX_THREADS}, got {threads}")
    _check_format(form)
    _check_files(source, out)
    return JobOptions(source, out, form or "tsv", part_lines, threads)


def _default(value: int | None, default: int) -> int:
    return default if value is None else value


def _check_format(form: str | None) -> None:
    from qkv.errors import unknown_name_error
    from qkv.inference.jobs import FORMATS

    if form is not None and form not in FORMATS:
        raise unknown_name_error("format", form, FORMATS)


def _check_files(source: Path, folder: Path) -> None:
    """Raise for an input that cannot be read, or a folder that holds something else."""
    from qkv.inference.jobs import require_job_or_empty
    from qkv.storage import open_file

    with open_file(source):
        require_job_or_empty(folder)

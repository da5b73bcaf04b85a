"""`qkv predict`: predict with a trained run."""

import csv
import io
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.modeling.batch.job_options import Format, In, PartLines, Threads, read_job_options
from qkv.cli.modeling.batch.predict_file import LoadedRun, local_device, predict_file
from qkv.cli.shared.completion import complete_run
from qkv.cli.shared.console import Json, console, format_json, print_json
from qkv.cli.shared.device import choose_device
from qkv.cli.shared.options import require_count
from qkv.cli.shared.parameters import Device, With
from qkv.cli.shared.stdin import read_lines, warn
from qkv.cli.shared.visible import visible
from qkv.cli.shared.warnings import WarningLimit

if TYPE_CHECKING:
    from qkv.inference import DrawingFiles, PredictOptions, Predictor

OUT_SUFFIXES = (".tsv", ".json")


SEARCH_PANEL = "Search (pairs, pronounce, text)"
SAMPLING_PANEL = "Sampling (--search sample; default for text)"

RunFolder = Annotated[
    Path,
    typer.Argument(help="Run folder, or a Hugging Face BERT or GPT-2 folder.", autocompletion=complete_run),
]
Inputs = Annotated[
    list[str] | None,
    typer.Argument(metavar="INPUT", help="Inputs, also image files and folders (default: lines of stdin)."),
]
Search = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="greedy, beam or sample (default: sample for text, else beam).",
        rich_help_panel=SEARCH_PANEL,
    ),
]
Temperature = Annotated[
    float,
    typer.Option(
        help="Below 1: more cautious, probable tokens gain. Above 1: more varied.", rich_help_panel=SAMPLING_PANEL
    ),
]
TopK = Annotated[
    int | None,
    typer.Option(help="Sample from the k most probable tokens (default: all).", rich_help_panel=SAMPLING_PANEL),
]
TopP = Annotated[
    float | None,
    typer.Option(
        help="Sample from the most probable tokens with this total probability (default: all).",
        rich_help_panel=SAMPLING_PANEL,
    ),
]
Tokens = Annotated[
    int | None,
    typer.Option(help="Maximum number of tokens to generate (default: 100).", rich_help_panel="Text"),
]
DraftOption = Annotated[
    str | None,
    typer.Option(
        "--draft",
        metavar="RUN|ngram",
        help="Faster, with the same result: a small run with the same vocabulary, or ngram, what the text has so far, "
        "proposes tokens that the run verifies.",
        rich_help_panel="Text",
        autocompletion=complete_run,
    ),
]
MinScore = Annotated[
    float | None,
    typer.Option(help="Least score of an object, 0 to 1 (default: 0.5).", rich_help_panel="Pictures (detect)"),
]
Draw = Annotated[
    bool,
    typer.Option(
        "--draw/--no-draw",
        help="Write photo.boxes.svg, the picture with its boxes, beside each picture, or into the folder of --out.",
        rich_help_panel="Pictures (detect)",
    ),
]
Int8 = Annotated[
    bool,
    typer.Option(
        "--int8",
        help="Weights of 8 bits, on a CPU: faster, a little less accurate (`qkv eval RUN --int8` prints the loss).",
        rich_help_panel="Text",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write the predictions to this file, .tsv or .json, instead of stdout. For runs of task detect also a "
        "folder: drawings, index.html and results.json. With --in a folder: its parts.",
    ),
]


def predict(
    run: RunFolder,
    inputs: Inputs = None,
    best: Annotated[int, typer.Option(help="Answers per input, with their probabilities.")] = 1,
    search: Search = None,
    beams: Annotated[int, typer.Option(help="Beam width.", rich_help_panel=SEARCH_PANEL)] = 4,
    temperature: Temperature = 1.0,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Annotated[int, typer.Option(help="Random seed for sampling.", rich_help_panel=SAMPLING_PANEL)] = 0,
    with_: With = None,
    tokens: Tokens = None,
    draft: DraftOption = None,
    int8: Int8 = False,
    min_score: MinScore = None,
    draw: Draw = True,
    device: Device = None,
    out: Out = None,
    json: Json = False,
    in_: In = None,
    part_lines: PartLines = None,
    form: Format = None,
    threads: Threads = None,
) -> None:
    """Predict with a trained run: `qkv predict runs/mine tokenizer`, `qkv predict runs/xor 0,1`, or lines of stdin.

    `qkv predict runs/bert "the [MASK] sat" --best 5` fills masks.
    `qkv predict runs/text "The statement" --tokens 200 --top-k 40` continues a text.
    `qkv predict runs/digits photo.png folder --out answers.tsv` classifies images.
    `qkv predict runs/cards photo.jpg` finds objects and draws them: photo.boxes.svg. With --json: COCO results.
    `qkv predict runs/mine --in big.txt --out answers` predicts a large file, line by line, and can be stopped.

    Exit code 3: an input has no answer; the others are answered all the same.
    """
    from qkv.inference import PredictOptions

    job = read_job_options(in_, out, inputs, form, part_lines, threads)
    _check_options(search, beams, best, None if job else out)
    warnings = WarningLimit()
    said = warn if job is None else warnings.warn
    options = PredictOptions(search, beams, best, temperature, top_k, top_p, seed, tokens, min_score, said)
    if search is not None:
        options.require_beam(search)
    load = partial(_load_run, [run, *(with_ or [])], choose_device(device), options, draft, int8=int8)
    if job is not None:
        predict_file(job, partial(load, is_job=True), options, {"draft": draft, "int8": int8}, warnings, as_json=json)
        return
    predictor = load().predictor
    _check_picture_options(predictor, min_score, out)
    _predict_and_print(predictor, inputs, out, json, draw=draw)


def _predict_and_print(
    predictor: "Predictor", inputs: list[str] | None, out: Path | None, json: bool, *, draw: bool
) -> None:
    """Predict every input, or stdin, and write the predictions or print them; exit with 3 if one has no answer."""
    if not inputs and predictor.reads_whole_stdin:
        inputs = [_read_stdin()]
    folder = out if out is not None and out.suffix not in OUT_SUFFIXES else None
    drawings = _make_drawings(predictor, folder) if draw and predictor.draws else None
    expanded = chain.from_iterable(map(predictor.expand, inputs or read_lines(warn)))
    keep, warns = json or out is not None, predictor.draws or not json
    records, failed = _predict_all(predictor, expanded, drawings, keep=keep, warns=warns)
    if out is not None:
        _write_predictions(predictor, records, out / "results.json" if folder else out)
    if drawings is not None:
        drawings.write_page(f"Objects in {len(drawings.written):,} pictures")
    if json:
        print_json(predictor.to_json(records))
    elif out is not None:
        console().print(f"{len(records) - failed:,} of {len(records):,} inputs predicted: {out}", soft_wrap=True)
    elif drawings is not None and drawings.written:
        first, *others = drawings.written
        more = f" and {len(others):,} more" if others else ""
        console(stderr=True).print(f"drawn: {first}{more}", soft_wrap=True)
    if failed:
        raise typer.Exit(3)


def _make_drawings(predictor: "Predictor", folder: Path | None) -> "DrawingFiles":
    from qkv.inference import DrawingFiles

    return DrawingFiles(predictor, folder)


def _check_picture_options(predictor: "Predictor", min_score: float | None, out: Path | None) -> None:
    """Raise ValueError for options that need a predictor of objects in pictures."""
    if predictor.draws:
        return
    if min_score is not None:
        raise ValueError("--min-score is for runs of task detect")
    if out is not None and out.suffix not in OUT_SUFFIXES:
        raise _out_name_error(out)


def _out_name_error(out: Path) -> ValueError:
    return ValueError(f"--out {out}: the name must end in .tsv or .json")


def _check_options(search: str | None, beams: int, best: int, out: Path | None) -> None:
    """Raise ValueError for options that have no meaning."""
    from qkv.errors import unknown_name_error
    from qkv.inference.predictor import SEARCHES

    if search is not None and search not in SEARCHES:
        raise unknown_name_error("search", search, SEARCHES)
    if out is not None and out.suffix not in ("", *OUT_SUFFIXES) and not out.is_dir():
        raise _out_name_error(out)
    require_count("--beams", beams)
    require_count("--best", best)


def _load_run(
    folders: list[Path], device: str, options: "PredictOptions", draft: str | None, *, int8: bool, is_job: bool = False
) -> LoadedRun:
    """Load a run and make its predictor; a job takes the bundled model by its name, and a GPU for each process."""
    from qkv import runs
    from qkv.models.fast.fused_decoder import quantize
    from qkv.pronunciation.bundled import NAME, run_folder

    if str(folders[0]) == NAME and not folders[0].exists():
        if not is_job:
            raise ValueError(f"there is no run folder {NAME!r}; to pronounce words: qkv pronounce WORD")
        folders = [run_folder(folders[0]), *folders[1:]]
    if is_job:
        device = local_device(device)
    _, task, model = runs.load(*folders)
    if draft is not None:
        options = replace(options, draft=runs.load_draft(draft, task, device))
    model = model.to(device)
    predictor = task.predictor(quantize(model) if int8 else model, options)
    if predictor is None:
        raise ValueError(f"{folders[0]} is a run of task {task.kind!r}, which takes no text input")
    return LoadedRun(predictor, task, model)


def _write_predictions(predictor: "Predictor", records: list[dict[str, Any]], path: Path) -> None:
    """Write records as JSON, or as a table with a header; a tab or a line end in a cell is quoted."""
    from qkv.storage import write_atomic

    text = io.StringIO(newline="")
    if path.suffix == ".json":
        text.write(format_json(predictor.to_json(records)))
    else:
        table = csv.writer(text, delimiter="\t", lineterminator="\n")
        table.writerow(predictor.columns)
        table.writerows(row for record in records for row in predictor.rows(record))
    write_atomic(path, text.getvalue().encode("utf-8", "backslashreplace"))


def _predict_all(
    predictor: "Predictor", inputs: Iterable[str], drawings: "DrawingFiles | None", *, keep: bool, warns: bool
) -> tuple[list[dict[str, Any]], int]:
    """Predict every input, in batches; print and draw the predictions, or with `keep` return the records.

    An input that has no prediction stops no other: it is counted, and with `warns` reported on stderr.
    """
    records: list[dict[str, Any]] = []
    failed, warnings = 0, WarningLimit()
    for start, batch in _batches(inputs, predictor):
        for record in _predict_batch(predictor, batch, start, stream=not keep):
            if keep:
                records.append(record)
            if record.get("error") is not None:
                failed += 1
                if warns:
                    warnings.warn(record["error"])
            elif drawings is not None:
                _draw(drawings, record, warnings)
    warnings.print_suppressed("inputs")
    return records, failed


def _draw(drawings: "DrawingFiles", record: dict[str, Any], warnings: WarningLimit) -> None:
    """Write the drawing of a record; a folder that cannot be written is an error only if it was asked for."""
    from qkv.errors import QkvError

    try:
        drawings.write(record)
    except QkvError as error:
        if drawings.folder is not None:
            raise
        warnings.warn(str(error))


def _predict_batch(predictor: "Predictor", texts: list[str], start: int, *, stream: bool) -> list[dict[str, Any]]:
    """Return a record per text, in order; with `stream`, print each as it comes."""
    if stream and predictor.batch_size == 1:
        return [_stream(predictor, text, start + offset) for offset, text in enumerate(texts)]
    problems = [predictor.problem(text) for text in texts]
    good = [index for index, problem in enumerate(problems) if problem is None]
    found = iter(predictor.predict([texts[i] for i in good], [start + i for i in good]) if good else [])
    records = []
    for text, problem in zip(texts, problems, strict=True):
        record = next(found) if problem is None else predictor.failed(text, problem)
        records.append(record)
        if stream and record.get("error") is None:
            sys.stdout.write(visible(predictor.format(record)))
    return records


def _stream(predictor: "Predictor", text: str, index: int) -> dict[str, Any]:
    """Print a prediction piece by piece; return its record."""
    record: dict[str, Any] = {}
    for piece in predictor.stream(text, index):
        if isinstance(piece, dict):
            record = piece
        else:
            sys.stdout.write(visible(piece))
            sys.stdout.flush()
    return record


def _batches(inputs: Iterable[str], predictor: "Predictor") -> Iterator[tuple[int, list[str]]]:
    """Yield (index of the first input, inputs); empty lines are skipped, but not an empty prompt."""
    texts = iter(inputs) if predictor.reads_whole_stdin else (text for text in inputs if text.strip())
    start = 0
    while batch := list(islice(texts, predictor.batch_size)):
        yield start, batch
        start += len(batch)


def _read_stdin() -> str:
    """Read all of stdin as training text is read: no byte order mark, one newline per line end."""
    text = "" if sys.stdin is None else sys.stdin.buffer.read().decode("utf-8", errors="replace")
    return (
        io.IncrementalNewlineDecoder(None, translate=True).decode(text.removeprefix("\ufeff"), final=True).rstrip("\n")
    )

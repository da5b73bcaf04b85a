"""`qkv eval`: evaluate a trained run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.modeling import pronounce
from qkv.cli.shared.completion import complete_run
from qkv.cli.shared.console import Json, console, print_json
from qkv.cli.shared.device import choose_device
from qkv.cli.shared.options import require_count
from qkv.cli.shared.parameters import Device, With
from qkv.cli.tables import answer_scores
from qkv.cli.tables import pronounce as pronounce_table
from qkv.cli.tables.metrics import print_confusion, print_metrics

if TYPE_CHECKING:
    from torch import nn

    from qkv.tasks import ConfusionMatrix, Task


DEFAULT_BEAMS = 4
DEFAULT_RESAMPLES = 1000
SPLITS = ("train", "valid", "test")
PRONOUNCE_PANEL = "Task pronounce"
TEXT_PANEL = "Answers that are texts (pairs)"

RunOrPronounce = Annotated[
    Path, typer.Argument(help="Run folder, or `pronounce` for the bundled model.", autocompletion=complete_run)
]
SearchName = Annotated[
    str | None, typer.Option(metavar="NAME", help="greedy or beam (default: beam with a joint model, else greedy).")
]
AmongBest = Annotated[
    int,
    typer.Option(help="Also report how often a right answer is among the best N.", rich_help_panel=PRONOUNCE_PANEL),
]
JointModel = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Joint model that rescores beam search; `none` for no rescoring (default: the run's joint model).",
        rich_help_panel=PRONOUNCE_PANEL,
    ),
]
Int8 = Annotated[
    bool,
    typer.Option(
        "--int8", help="Also evaluate with weights of 8 bits, on a CPU, and print the loss in perplexity (text)."
    ),
]
Metrics = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,...",
        help="Only these, with 95 % intervals: bleu, chrf, exact, tokens.",
        rich_help_panel=TEXT_PANEL,
    ),
]
Against = Annotated[
    Path | None,
    typer.Option(
        metavar="RUN",
        help="Compare with this run on the same examples: interval of the difference, and p.",
        rich_help_panel=TEXT_PANEL,
        autocompletion=complete_run,
    ),
]
Resamples = Annotated[
    int, typer.Option(help="Resamples of the intervals, and trials of p.", rich_help_panel=TEXT_PANEL)
]
Seed = Annotated[int, typer.Option(help="Seed of the resamples.", rich_help_panel=TEXT_PANEL)]


def evaluate(
    run: RunOrPronounce,
    split: Annotated[str, typer.Option(metavar="NAME", help="train, valid or test.")] = "test",
    search: SearchName = None,
    beams: Annotated[int, typer.Option(help="Beam width.")] = DEFAULT_BEAMS,
    length_penalty: Annotated[float, typer.Option(help="Exponent: scores are divided by length ** value.")] = 0.0,
    test_file: Annotated[str | None, typer.Option(metavar="FILE", help="Evaluate on this file.")] = None,
    stress: pronounce.Stress = True,
    with_: With = None,
    best: AmongBest = 1,
    joint: JointModel = None,
    int8: Int8 = False,
    metrics: Metrics = None,
    against: Against = None,
    resamples: Resamples = DEFAULT_RESAMPLES,
    seed: Seed = 0,
    device: Device = None,
    json: Json = False,
) -> None:
    """Evaluate a trained run on held-out data.

    Pairs: error rates and similarities. Classes: accuracy and confusion matrix. Text: perplexity per token and per
    word, and bits per byte. Masked text: masked-token and next-sentence accuracy, against the best constant baseline.
    Words: loss per neighbor.

    Token error rate: edits per reference token. Sequence error rate: share of wrong outputs. Perplexity: exp of the
    mean loss; 1 is perfect. Bits per byte: loss per byte of the text. The printed table explains every metric.

    A pronouncer gets its word error rate with a 95 % interval, of the model alone, without dictionaries.
    Texts: --metrics prints BLEU, chrF (sacreBLEU), exact match, token accuracy; bootstrap intervals, randomization p.
    """
    from qkv import runs

    _check_options(split, search, beams, best, joint)
    scoring = answer_scores.read_scoring(metrics, against, resamples, seed, int8=int8)
    folders, target = [run, *(with_ or [])], choose_device(device)
    if pronounce_table.is_pronouncer(run):
        _require_no_text_options(run, scoring, int8=int8)
        options = pronounce_table.PronounceEvalOptions(search, beams, length_penalty, stress, best, joint)
        pronounce_table.print_evaluation(folders, split, test_file, target, options, json)
        return
    _require_no_pronounce_options(run, stress=stress, best=best, joint=joint)
    _, loaded, model = runs.load(*folders)
    task, model = _with_data(folders, loaded, test_file), model.to(target)
    given = _search_options(task, search, beams, length_penalty)
    if scoring is None:
        _print_standard(run, (task, model), split, (search, given), int8=int8, as_json=json)
        return
    rival = _load_rival(against, test_file, target)
    answer_scores.print_evaluation(run, (task, model), rival, split, given, scoring, json)


def _print_standard(
    run: Path,
    measured: tuple["Task", "nn.Module"],
    split: str,
    search: tuple[str | None, dict[str, Any]],
    *,
    int8: bool,
    as_json: bool,
) -> None:
    """Print the metrics that the task reports, and its confusion matrix; `search` is the name and the options."""
    (task, model), (name, options) = measured, search
    rounded = _evaluate(task, _quantize(model), split, options)[0] if int8 else {}
    metrics, confusion = _evaluate(task, model, split, options)
    if as_json:
        more = ({"int8": rounded} if rounded else {}) | ({"confusion_matrix": confusion.counts} if confusion else {})
        print_json({"run": str(run), "split": split, "search": name or "greedy", **metrics, **more})
        return
    _print_metrics(f"{split} {name or 'greedy'}" if task.decodes else split, metrics, rounded)
    if confusion is not None:
        print_confusion(confusion.counts, confusion.classes)


def _load_rival(run: Path | None, test_file: str | None, device: str) -> answer_scores.Rival | None:
    """Load the run of --against with the same test file, or with its own data."""
    from qkv import runs

    if run is None:
        return None
    _, task, model = runs.load(run)
    return answer_scores.Rival(run, _with_data([run], task, test_file), model.to(device))


def _print_metrics(name: str, metrics: dict[str, Any], rounded: dict[str, Any]) -> None:
    """Print the metrics, and beside them those of weights of 8 bits, if there are any."""
    print_metrics({name: metrics, f"{name} int8": rounded} if rounded else {name: metrics})
    if "perplexity" in rounded:
        console().print(f"int8: perplexity {rounded['perplexity'] / metrics['perplexity'] - 1:+.2%}")


def _require_no_text_options(run: Path, scoring: answer_scores.Scoring | None, *, int8: bool) -> None:
    answer_scores.require_none(scoring, run)
    if int8:
        raise ValueError(f"--int8 is for runs of task text; {run} is not one")


def _quantize(model: "nn.Module") -> "nn.Module":
    from qkv.models.fast.fused_decoder import quantize

    return quantize(model.eval())


def _evaluate(
    task: "Task", model: "nn.Module", split: str, search: dict[str, Any]
) -> tuple[dict[str, Any], "ConfusionMatrix | None"]:
    """Return metrics and confusion matrix; show the progress."""
    from qkv.cli.shared.progress import evaluation_progress

    with evaluation_progress():
        return task.evaluate(model, split, **search), task.confusion(model, split)


def _check_options(split: str, search: str | None, beams: int, best: int, joint: str | None) -> None:
    """Raise ValueError for an unknown name, and for search options that contradict each other."""
    from qkv.errors import unknown_name_error

    if split not in SPLITS:
        raise unknown_name_error("split", split, SPLITS)
    if search not in (None, "greedy", "beam"):
        raise unknown_name_error("search", search, ("greedy", "beam"))
    for name, value in (("--beams", beams), ("--best", best)):
        require_count(name, value)
    if best > 1 and search == "greedy":
        raise ValueError(f"--best {best} needs --search beam: greedy gives one answer")
    if joint not in (None, "none") and (search == "greedy" or beams == 1):
        raise ValueError(f"--joint {joint} needs beam search: a single answer cannot be reordered")


def _require_no_pronounce_options(run: Path, *, stress: bool, best: int, joint: str | None) -> None:
    if not stress or best > 1 or joint is not None:
        raise ValueError(f"--no-stress, --best and --joint are for runs of task pronounce; {run} is not one")


def _search_options(task: "Task", search: str | None, beams: int, length_penalty: float) -> dict[str, Any]:
    """Return the options of the search; raise ValueError for those that this evaluation would ignore."""
    given = {"--search": search, "--beams": beams != DEFAULT_BEAMS, "--length-penalty": length_penalty}
    names = [name for name, value in given.items() if value]
    if names and not task.decodes:
        raise ValueError(f"{names[0]} has no effect: task {task.kind} is evaluated without a search; leave it out")
    if names and search != "beam" and names != ["--search"]:
        raise ValueError(f"{names[-1]} needs --search beam")
    return {"beams": beams if search == "beam" else 1, "length_penalty": length_penalty} if task.decodes else {}


def _with_data(folders: list[Path], task: "Task", test_file: str | None) -> "Task":
    """Return the task with the test file, or with its own data if that is still what it was trained on."""
    from qkv import runs

    if test_file is None:
        runs.require_same_splits(folders)
        return task.with_data()
    loaded = task.with_test_file(test_file)
    for warning in loaded.warnings:
        console(stderr=True).print(f"qkv: {warning}", markup=False, soft_wrap=True)
    return loaded

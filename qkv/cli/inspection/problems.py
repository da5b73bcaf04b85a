"""`qkv problems`: worked problems, solved by running code and compared with the hand-written answers."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.shared.console import Json, console, print_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from qkv.problems import Problem, Solution

WORKERS = 2
"""Processes that solve problems at the same time, if some are slow."""
MAX_ITEMS = 12
"""Items of a list that are printed at most."""


def problems(
    ids: Annotated[
        list[str] | None, typer.Argument(help="Ids, such as A3 B5, or all (default: print the index).", metavar="ID")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write pictures of the problems that have one to this folder.", metavar="DIR")
    ] = None,
    json: Json = False,
) -> None:
    """Solve worked problems: question, code, computed and hand-written answer, and whether they agree.

    A known mistake of a hand-written answer is named as a slip.
    """
    from qkv.problems import problem
    from qkv.problems import problems as catalog

    if not ids:
        _print_index(list(catalog.values()), json)
        return
    chosen = list(catalog) if ids == ["all"] else list(dict.fromkeys(problem(name).id for name in ids))
    if plot is not None:
        _make_folder(plot)
    solutions = list(_solve(chosen))
    _require_computed(solutions)
    pictures = [path for solution in solutions for path in _draw(solution, plot)]
    if json:
        print_json([solution.to_record() for solution in solutions])
    else:
        _print(solutions, pictures)
    if any(solution.ok is False for solution in solutions):
        raise typer.Exit(3)


def _print_index(catalog: "list[Problem]", as_json: bool) -> None:
    """Print the id and the question of every problem, without solving any."""
    if as_json:
        print_json([{"id": one.id, "question": one.question, "slow": one.slow} for one in catalog])
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table("id", "question")
    for one in catalog:
        table.add_row(one.id, escape(" ".join(one.question.split("\n\n")[0].split())))
    console().print(table)
    console().print("`qkv problems A1 B2` solves some of them, `qkv problems all` all in a few minutes", markup=False)


def solve(name: str) -> "Solution":
    """Solve one problem, in this process or a worker."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or torch's profiler prints
    from qkv.problems import problem

    return problem(name).solve()


def end_with_parent() -> None:
    """Exit when the parent process ends: a worker whose parent was killed would wait for work forever."""
    from multiprocessing import parent_process
    from threading import Thread

    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def _solve(chosen: list[str]) -> Iterator["Solution"]:
    """Yield the solutions in order. If some problems are slow, workers solve them in parallel, slow ones first."""
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    from rich.progress import Progress

    from qkv.problems import problem

    if len(chosen) == 1 or not any(problem(name).slow for name in chosen):
        yield from map(solve, chosen)
        return
    order = sorted(chosen, key=lambda name: not problem(name).slow)
    with (
        Progress(console=console(stderr=True), transient=True) as bar,
        ProcessPoolExecutor(min(WORKERS, len(chosen)), get_context("spawn"), end_with_parent) as pool,
    ):
        task = bar.add_task("solving", total=len(chosen))
        futures = {pool.submit(solve, name): name for name in order}
        try:
            for future in as_completed(futures):
                future.result()
                bar.update(task, advance=1, description=f"solved {futures[future]}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    found = {name: future.result() for future, name in futures.items()}
    yield from (found[name] for name in chosen)


def _require_computed(solutions: list["Solution"]) -> None:
    """Raise if no answer could be computed; if others could, its panel says why."""
    from qkv.errors import QkvError

    reasons = [solution.reason_not_computed for solution in solutions]
    if all(reasons):
        raise QkvError(f"{solutions[0].id} cannot be computed: {reasons[0]}")


def _make_folder(folder: Path) -> None:
    from qkv.errors import QkvError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise QkvError(f"the folder for pictures cannot be created ({error.strerror})", folder) from error


def _draw(solution: "Solution", folder: Path | None) -> list[Path]:
    from qkv.problems import draw_pictures
    from qkv.storage import write_atomic

    if folder is None:
        return []
    drawn = draw_pictures(solution.id, solution.answer)
    for name, svg in drawn.items():
        write_atomic(folder / name, svg.encode())
    return [folder / name for name in drawn]


def _print(solutions: list["Solution"], pictures: list[Path]) -> None:
    from rich.panel import Panel

    screen = console()
    for solution in solutions:
        screen.print(Panel(_describe(solution), title=f"[bold]{solution.id}[/]", title_align="left"))
    for path in pictures:
        screen.print(f"picture: {path}", soft_wrap=True)
    right = sum(solution.ok for solution in solutions)
    slips = sum(solution.slip is not None for solution in solutions)
    text = f"{right} of {len(solutions)} computed answers are as expected; {slips} hand-written answers have a mistake"
    screen.print(f"[green]{text}[/]" if right == len(solutions) else f"[red]{text}[/]")


def _describe(solution: "Solution") -> "RenderableType":
    from rich.console import Group
    from rich.markup import escape
    from rich.syntax import Syntax
    from rich.table import Table

    from qkv.problems.value_text import format_value

    verdict = "[green]✓ the computed answer is as expected[/]"
    if solution.reason_not_computed:
        verdict = "[yellow]not computed[/]"
    elif not solution.ok:
        verdict = "[bold red]✗ the computed answer is not as expected[/]"
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", max_width=console().width // 2)
    table.add_column(overflow="fold")
    for name, value in solution.answer.items():
        table.add_row(escape(name), escape(format_value(value, MAX_ITEMS, lines=True)))
    slip = "" if solution.slip is None else f"\n[yellow]slip:[/] {escape(solution.slip)}"
    ending = f"[dim]by hand:[/] {escape(solution.hand_written)}{slip}\n{verdict}"
    call = Syntax(solution.call, "python", background_color="default", word_wrap=True)
    return Group(f"[bold]{escape(solution.question)}[/]\n", call, "", table, ending)

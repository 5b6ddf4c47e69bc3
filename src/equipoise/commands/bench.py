"""``equipoise bench``: how fast and how large, against PyG; and which path a model's layers take."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.bench.cases import NAMES, SCALING, choose
from equipoise.commands.terminal import bars, working
from equipoise.errors import EquipoiseError

if TYPE_CHECKING:
    from equipoise.bench.report import Report

Option = typer.Option


def bench(
    *,
    case: Annotated[
        list[str] | None,
        Option(
            metavar="NAME",
            help=f"What to measure: {', '.join(NAMES)}. Can be given several times; all but huge if left out.",
            show_default=False,
        ),
    ] = None,
    threads: Annotated[
        str | None, Option(metavar="N,…", help="Numbers of threads; else 1,2 (1 on a single core).", show_default=False)
    ] = None,
    quick: Annotated[bool, Option("--quick", help="Small cases and few rounds: to see that it works.")] = False,
    huge: Annotated[bool, Option("--huge", help="Also a graph of 62 million edges; needs 20 GiB.")] = False,
    figure: Annotated[
        Path | None, Option(metavar="FILE", help="Save a picture of how cost grows (.png, .svg or .pdf).")
    ] = None,
    as_json: Annotated[
        Path | None, Option("--json", metavar="FILE", help="Write all numbers as JSON; - for here.")
    ] = None,
    markdown: Annotated[bool, Option("--markdown", help="Print tables as Markdown.")] = False,
    read: Annotated[
        Path | None, Option(metavar="FILE", help="Measure nothing: show what --json has written before.")
    ] = None,
    explain: Annotated[
        str | None,
        Option(
            metavar="MODULE:FACTORY",
            help="Measure nothing: say which path each layer of this model takes, fused or PyG's own, and why.",
        ),
    ] = None,
) -> None:
    """Measure epochs and memory against PyG (and DGL, where it is installed), and how far off the floor they are."""
    if explain is not None:
        _explain(explain, as_json)
        return
    if read is None:
        names = choose(case or [], quick=quick, huge=huge)
        if figure is not None and SCALING not in names:
            raise EquipoiseError("the picture shows how cost grows", where="--figure", remedy=f"add --case {SCALING}")
        if as_json is not None and not as_json.resolve().parent.is_dir():
            raise EquipoiseError(f"there is no folder {as_json.resolve().parent}", where=f"--json {as_json}")
        report = _measure(names, _threads(threads), quick)
    else:
        from equipoise.bench.report import read_report

        report = read_report(read)
    _show(report, as_json, markdown)
    if figure is not None:
        from equipoise.bench.figure import draw_scaling
        from equipoise.report.figures import save_figure

        typer.echo(f"picture: {save_figure(draw_scaling(report), figure)}", err=True)
    if any(note.failed for note in report.notes):
        raise typer.Exit(1)


def _threads(given: str | None) -> list[int]:
    if given is None:
        return [1, 2] if (os.cpu_count() or 1) > 1 else [1]
    try:
        counts = [int(count) for count in given.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise EquipoiseError(
            f"{given!r} is no list of numbers of threads", where="--threads", remedy="write --threads 1,2"
        )
    return list(dict.fromkeys(counts))


def _measure(names: list[str], threads: list[int], quick: bool) -> Report:
    from equipoise.bench.run import plan, run

    tasks = plan(names, threads, quick=quick)
    with bars() as progress:
        bar = progress.add_task("bench", total=len(tasks), says="")
        started = iter(range(len(tasks)))
        return run(tasks, lambda label: progress.update(bar, completed=next(started), says=label))


def _show(report: Report, as_json: Path | None, markdown: bool) -> None:
    from rich.console import Console

    from equipoise.bench.goals import GOALS
    from equipoise.bench.table import grids

    if as_json is not None:
        goals = [goal.to_dict(report) for goal in GOALS]
        _write(json.dumps(report.to_dict() | {"goals": goals}, indent=1), as_json)
    if as_json != Path("-"):
        if markdown:
            typer.echo("\n\n".join(grid.markdown() for grid in grids(report)))
        else:
            Console().print(*(grid.rich() for grid in grids(report)), sep="\n")
    for note in report.notes:
        typer.echo(f"{note.case}: {'failed' if note.failed else 'left out'}: {note.reason}", err=True)
    if not all(note.failed for note in report.notes):
        typer.echo("`equipoise data list` says which data sets are here", err=True)


def _write(text: str, path: Path) -> None:
    if path == Path("-"):
        typer.echo(text)
        return
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise EquipoiseError(
            f"the numbers cannot be written: {error.strerror}",
            where=f"--json {path}",
            remedy="name a file you may write",
        ) from error


def _explain(target: str, as_json: Path | None) -> None:
    with working(f"running {target} …"):
        from rich.console import Console

        from equipoise.bench.paths import layer_paths, path_table
        from equipoise.target import load_target

        model, inputs, kwargs = load_target(target)
        paths = layer_paths(model, *inputs, **kwargs)
    if as_json is not None:
        _write(json.dumps([asdict(path) for path in paths], indent=2), as_json)
    elif paths:
        Console().print(path_table(paths))
    else:
        typer.echo(f"{type(model).__name__} has no graph layer")

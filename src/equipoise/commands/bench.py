"""``equipoise bench``: speed and memory compared with PyG, and the code path of each layer of a model."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.bench.cases import CASE_NAMES, OPTIONAL_NAMES, SCALING, select_cases
from equipoise.commands.options import refuse_options
from equipoise.commands.outputs import FIGURE_SUFFIXES, check_output
from equipoise.commands.terminal import print_tables, progress_bars, spinner
from equipoise.errors import EquipoiseError

if TYPE_CHECKING:
    from equipoise.bench.report import BenchReport

Option = typer.Option


def bench(
    context: typer.Context,
    *,
    case: Annotated[
        list[str] | None,
        Option(
            metavar="NAME",
            help=f"Case to measure: {', '.join(CASE_NAMES)}. Repeatable; "
            f"by default all but {', '.join(OPTIONAL_NAMES)}.",
            show_default=False,
        ),
    ] = None,
    threads: Annotated[
        str | None,
        Option(metavar="N,…", help="Numbers of threads; by default 1,2 (1 on a single core).", show_default=False),
    ] = None,
    isa: Annotated[
        str, Option(metavar="NAME", help="Instruction set: native, or avx2 to measure it on a processor with AVX-512.")
    ] = "native",
    quick: Annotated[bool, Option("--quick", help="Small cases and few rounds, as a smoke test.")] = False,
    huge: Annotated[bool, Option("--huge", help="Also measure a graph of 62 million edges; needs 20 GiB.")] = False,
    figure: Annotated[
        Path | None,
        Option(metavar="FILE", help="Write the scaling plots (.png, .svg or .pdf).", show_default=False),
    ] = None,
    as_json: Annotated[
        Path | None,
        Option("--json", metavar="FILE", help="Write all measurements as JSON; - for stdout.", show_default=False),
    ] = None,
    markdown: Annotated[bool, Option("--markdown", help="Print the tables as Markdown.")] = False,
    read: Annotated[
        Path | None,
        Option(metavar="FILE", help="Measure nothing; show a file written by --json.", show_default=False),
    ] = None,
    explain: Annotated[
        str | None,
        Option(
            metavar="MODULE:FACTORY",
            help="Measure nothing; report which code path each layer of this model takes, fused or PyG's own, and why.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Measure time and memory per epoch, compared with PyG (and DGL, if installed) and with the roofline."""
    if explain is not None:
        void = set(context.params) - {"context", "explain", "as_json"}
        refuse_options(context, void, "has no effect with --explain, which measures nothing: leave it out")
    if read is not None:
        void = {"case", "threads", "isa", "quick", "huge"}
        refuse_options(context, void, "has no effect with --read, which measures nothing: leave it out")
    check_output(as_json, "--json")
    check_output(figure, "--figure", FIGURE_SUFFIXES)
    if explain is not None:
        _explain(explain, as_json)
        return
    if read is None:
        names = select_cases(case or [], quick=quick, huge=huge)
        if figure is not None and SCALING not in names:
            raise EquipoiseError(
                "the figure needs the scaling measurements", where="--figure", remedy=f"add --case {SCALING}"
            )
        report = _measure(names, _parse_threads(threads), quick=quick, isa=isa)
    else:
        from equipoise.bench.report import read_report

        report = read_report(read)
    _show(report, as_json, markdown)
    if figure is not None:
        from equipoise.bench.plot import draw_scaling
        from equipoise.report.plots.style import save_figure

        typer.echo(f"figure: {save_figure(draw_scaling(report), figure)}", err=True)
    if any(task.failed for task in report.skipped):
        raise typer.Exit(1)


def _parse_threads(text: str | None) -> list[int]:
    if text is None:
        return [1, 2] if (os.cpu_count() or 1) > 1 else [1]
    try:
        counts = [int(count) for count in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise EquipoiseError(
            f"{text!r} is not a list of thread counts", where="--threads", remedy="write --threads 1,2"
        )
    return list(dict.fromkeys(counts))


def _measure(names: list[str], threads: list[int], *, quick: bool, isa: str) -> BenchReport:
    from equipoise.bench.run import plan_tasks, run_tasks

    tasks = plan_tasks(names, threads, quick=quick, isa=isa)
    with progress_bars() as progress:
        bar = progress.add_task("bench", total=len(tasks), status="")
        started = iter(range(len(tasks)))
        return run_tasks(tasks, lambda label: progress.update(bar, completed=next(started), status=label), isa=isa)


def _show(report: BenchReport, as_json: Path | None, markdown: bool) -> None:
    from equipoise.bench.report import report_tables

    if as_json is not None:
        _write(json.dumps(report.to_dict(), indent=1), as_json)
    if as_json != Path("-"):
        if markdown:
            typer.echo("\n\n".join(table.markdown() for table in report_tables(report)))
        else:
            print_tables(*(table.rich() for table in report_tables(report)))
    for task in report.skipped:
        typer.echo(f"{task.task}: {'failed' if task.failed else 'skipped'}: {task.reason}", err=True)
    if not all(task.failed for task in report.skipped):
        typer.echo("`equipoise data list` shows which data sets are available", err=True)


def _write(text: str, path: Path) -> None:
    if path == Path("-"):
        typer.echo(text)
        return
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise EquipoiseError(
            f"the JSON file cannot be written: {error.strerror}",
            where=f"--json {path}",
            remedy="name a writable file",
        ) from error


def _explain(factory: str, as_json: Path | None) -> None:
    with spinner(f"running {factory} …"):
        from equipoise.bench.explain import layer_paths, path_table
        from equipoise.factory import load_model

        model, inputs, kwargs = load_model(factory)
        paths = layer_paths(model, *inputs, **kwargs)
    if as_json is not None:
        _write(json.dumps([asdict(path) for path in paths], indent=2), as_json)
    elif paths:
        print_tables(path_table(paths))
    else:
        typer.echo(f"{type(model).__name__} has no graph layer")

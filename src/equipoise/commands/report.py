"""``equipoise report``: tables, figures and a page that compare the stored results with the paper's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.atomic_write import write_atomically
from equipoise.commands.figures import FigureFile, check_figures, draw_figures
from equipoise.commands.options import DEFAULT_FILES, DEFAULT_STORE, Epochs, StoreFile, check_names
from equipoise.commands.outputs import FIGURE_SUFFIXES, check_output, check_output_folder
from equipoise.commands.terminal import spinner
from equipoise.errors import ChoiceError, SpecError

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from equipoise.experiments.experiment import Experiment
    from equipoise.experiments.result import Result
    from equipoise.report.frames import FrameLoader
    from equipoise.report.tables import TableReport

Option = typer.Option


def report(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="EXPERIMENT",
            help="Experiments of the paper by name (`equipoise reproduce --list`), or your own files; by default all "
            "that have runs.",
            show_default=False,
        ),
    ] = None,
    *,
    store: StoreFile = DEFAULT_STORE,
    format_name: Annotated[
        str | None,
        Option(
            "--format",
            help="markdown, latex or csv; by default markdown, with --out all three.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None, Option(metavar="DIR", help="Write files to this folder instead of printing.", show_default=False)
    ] = None,
    epochs: Epochs = None,
    figure: FigureFile = None,
    html: Annotated[
        Path | None,
        Option(
            metavar="[FILE]",
            help="Write one HTML page with all tables and figures; without FILE to equipoise.html in the store's "
            "folder.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Compare the stored results with the paper's: mean and 95 % interval per cell, missing runs, and claims.

    `equipoise report datasets` counts nodes and edges and needs no runs.
    With --figure or --html, prints only the names of the written files.
    """
    with spinner("loading torch and PyG …"):
        from equipoise.report.formats import FORMATS
    if format_name is not None and format_name not in FORMATS:
        raise ChoiceError("format", format_name, FORMATS)
    check_names(names or ())
    if figure is not None or html is not None:
        drawn, file = ("--html", "page.html") if html is not None else ("--figure", "figure.png")
        for option, value in (("--out", out), ("--format", format_name)):
            if value is not None:
                raise SpecError(
                    f"{option} does not go with {drawn}",
                    where=f"{option} {value}",
                    remedy=f"leave it out, and name the file if you like: {drawn} {file}",
                )
        _draw(names, store, epochs, figure, html)
        return
    check_output_folder(out, "--out")
    tables = [table for _, table in _tabulate(names, store, epochs)]
    if out is not None:
        _write(tables, out, list(FORMATS) if format_name is None else [format_name])
    elif format_name == "csv" and len(tables) > 1:
        raise SpecError(
            "several experiments cannot be printed as one CSV table", remedy="name one experiment, or use --out DIR"
        )
    else:
        render, _ = FORMATS[format_name or "markdown"]
        typer.echo("\n\n".join(render(table) for table in tables), nl=False)


def _draw(names: Sequence[str] | None, path: Path, epochs: int | None, figure: Path | None, html: Path | None) -> None:
    from equipoise.experiments.store import Store
    from equipoise.report.figures import has_figure
    from equipoise.report.page import write_page

    if html != DEFAULT_FILES:
        check_output(html, "--html", (".html", ".htm"))
    if figure != DEFAULT_FILES:
        check_output(figure, "--figure", FIGURE_SUFFIXES)
    with spinner("reading the store …"), Store(path, read_only=True) as store:
        tables = _tabulate(names, path, epochs)
        files = []
        if figure is not None:
            experiments = [experiment for experiment, _ in tables if names or has_figure(experiment)]
            check_figures(experiments, figure)
            files += draw_figures(experiments, store, figure, store.results(), strict=bool(names))
        if html is not None:
            page = path.with_name("equipoise.html") if html == DEFAULT_FILES else html
            files.append(write_page(page, tables, store))
    typer.echo("\n".join(map(str, files)))


def _tabulate(names: Sequence[str] | None, path: Path, epochs: int | None) -> list[tuple[Experiment, TableReport]]:
    """Tabulate the named experiments, or all that have runs, with the number of epochs that their runs have."""
    from equipoise.experiments.parser import experiment_names, load_experiment
    from equipoise.experiments.store import Store
    from equipoise.report.frames import frame_loader

    experiments = [load_experiment(name) for name in names or experiment_names()]
    if names and all(experiment.kind == "data" for experiment in experiments):
        return [(experiment, _count_datasets(experiment)) for experiment in experiments]
    with Store(path, read_only=True) as store:
        results = list(store.results().values())
        recorded_keys, load_frame = store.recording_plans(), frame_loader(store)
        tables = [
            (experiment, _count_datasets(experiment))
            if experiment.kind == "data"
            else _tabulate_runs(experiment, results, recorded_keys, load_frame, epochs)
            for experiment in experiments
            if names or experiment.kind != "data"
        ]
    if not names:
        tables = [(experiment, table) for experiment, table in tables if any(row["n"] for row in table.records)]
        if not tables:
            raise SpecError(
                "the store has no runs of the paper's experiments",
                where=str(path),
                remedy="`equipoise reproduce --list` lists the experiments",
            )
    return tables


def _count_datasets(experiment: Experiment) -> TableReport:
    from equipoise.report.datasets import dataset_report

    with spinner("counting nodes and edges …"):
        return dataset_report(experiment)


def _tabulate_runs(
    experiment: Experiment,
    results: Sequence[Result],
    recorded_keys: Container[str],
    load_frame: FrameLoader,
    epochs: int | None,
) -> tuple[Experiment, TableReport]:
    from equipoise.experiments.recording_plan import recording_plans
    from equipoise.report.summary import match_epochs
    from equipoise.report.tables import table_report

    recorded = [result for result in results if result.key in recorded_keys] if recording_plans([experiment]) else []
    matched = match_epochs(experiment, recorded or results, epochs)
    return matched, table_report(matched, results, load_frame)


def _write(tables: Sequence[TableReport], out: Path, formats: Sequence[str]) -> None:
    from equipoise.report.formats import FORMATS, records_csv

    files: dict[Path, str] = {}
    for table in tables:
        for name in formats:
            render, suffix = FORMATS[name]
            files[out / f"{table.name}.{suffix}"] = render(table)
            if name == "csv" and table.comparisons:
                files[out / f"{table.name}-claims.csv"] = records_csv(table.comparisons)
    try:
        for file, text in files.items():
            write_atomically(file, text)
    except OSError as error:
        raise SpecError(
            f"the report cannot be written: {error.strerror}", where=f"--out {out}", remedy="free disk space"
        ) from error
    typer.echo("\n".join(map(str, files)))

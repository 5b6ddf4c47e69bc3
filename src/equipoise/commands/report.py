"""``equipoise report``: the paper's tables beside ours, the figures, and all of it on one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.commands.optional import AUTOMATIC
from equipoise.commands.pictures import FigureFile, check_figures, draw_figures
from equipoise.commands.terminal import working
from equipoise.errors import ChoiceError, SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from equipoise.experiments.experiment import Experiment
    from equipoise.experiments.result import Result
    from equipoise.report.frames import Frames
    from equipoise.report.tables import Report

Option = typer.Option


def report(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET]...",
            help="Tables and figures (`equipoise reproduce --list`), or files of your own; all that have runs if none.",
            show_default=False,
        ),
    ] = None,
    *,
    store: Annotated[Path, Option(metavar="FILE", help="Where the runs are.")] = Path("equipoise.sqlite"),
    form: Annotated[
        str | None, Option("--format", help="markdown, latex or csv; if not given, markdown, and all three with --out.")
    ] = None,
    out: Annotated[Path | None, Option(metavar="DIR", help="Write files here instead of printing.")] = None,
    epochs: Annotated[int | None, Option(min=1, help="Runs of so many epochs at most instead of the target's.")] = None,
    figure: FigureFile = None,
    html: Annotated[
        Path | None,
        Option(
            metavar="[FILE]",
            help="Write one page with everything, to be opened in a browser; without FILE equipoise.html beside the "
            "store.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Ours beside the paper's: mean and 95 % interval of every cell, what is missing, and which claims hold.

    `equipoise report datasets` counts the data and needs no run. With --figure or --html nothing is printed but the
    names of the files.
    """
    with working("loading torch and PyG …"):
        from equipoise.report.formats import FORMATS
    if form is not None and form not in FORMATS:
        raise ChoiceError("format", form, FORMATS)
    if figure is not None or html is not None:
        _draw(targets, store, epochs, figure, html)
        return
    reports = _reports(targets, store, epochs)
    if out is not None:
        _write(reports, out, list(FORMATS) if form is None else [form])
    elif form == "csv" and len(reports) > 1:
        raise SpecError("tables of several targets do not fit in one CSV", remedy="name one target, or use --out DIR")
    else:
        typer.echo("\n\n".join(FORMATS[form or "markdown"][0](made) for made in reports), nl=False)


def _reports(names: Sequence[str] | None, path: Path, epochs: int | None) -> list[Report]:
    return [made for _, made in _chosen(names, path, epochs)]


def _draw(names: Sequence[str] | None, path: Path, epochs: int | None, figure: Path | None, html: Path | None) -> None:
    from equipoise.experiments.store import Store
    from equipoise.report.gallery import is_drawn
    from equipoise.report.page import write_page

    if html is not None and html != AUTOMATIC and html.suffix.lower() not in (".html", ".htm"):
        raise SpecError(f"a page is a .html, not a {html.suffix}", where=f"--html {html}")
    with working("gathering …"), Store(path, create=False) as store:
        chosen = _chosen(names, path, epochs)
        files = []
        if figure is not None:
            drawn = [experiment for experiment, _ in chosen if names or is_drawn(experiment)]
            check_figures(drawn, figure)
            files += draw_figures(drawn, store, figure, store.results(), all_of=bool(names))
        if html is not None:
            page = path.with_name("equipoise.html") if html == AUTOMATIC else html
            files.append(write_page(page, chosen, store))
    typer.echo("\n".join(map(str, files)))


def _chosen(names: Sequence[str] | None, path: Path, epochs: int | None) -> list[tuple[Experiment, Report]]:
    """The targets named, or all that have runs, at the epochs that their runs have."""
    from equipoise.experiments.files import load, targets
    from equipoise.experiments.store import Store
    from equipoise.report.frames import frames_of

    experiments = [load(name) for name in names or targets()]
    counted = [experiment for experiment in experiments if experiment.kind == "data" and names]
    if names and len(counted) == len(experiments):
        return [(experiment, _counted(experiment)) for experiment in counted]
    with Store(path, create=False) as store:
        results = list(store.results().values())
        frames = frames_of(store)
        chosen = [
            (experiment, _counted(experiment)) if experiment in counted else _told(experiment, results, frames, epochs)
            for experiment in experiments
            if names or experiment.kind != "data"
        ]
    if not names:
        chosen = [(one, made) for one, made in chosen if any(record["n"] for record in made.records)]
        if not chosen:
            raise SpecError(
                "no run of the paper's tables and figures is there",
                where=str(path),
                remedy="equipoise reproduce --list",
            )
    return chosen


def _counted(experiment: Experiment) -> Report:
    from equipoise.report.datasets import dataset_report

    with working("counting …"):
        return dataset_report(experiment)


def _told(
    experiment: Experiment, results: Sequence[Result], frames: Frames, epochs: int | None
) -> tuple[Experiment, Report]:
    from equipoise.report.summary import fitting
    from equipoise.report.tables import report as tabulate

    fitted = fitting(experiment, results, epochs)
    return fitted, tabulate(fitted, results, frames)


def _write(reports: Sequence[Report], out: Path, forms: Sequence[str]) -> None:
    from equipoise.report.formats import FORMATS, records_csv

    files: dict[Path, str] = {}
    for made in reports:
        for form in forms:
            write, suffix = FORMATS[form]
            files[out / f"{made.name}.{suffix}"] = write(made)
            if form == "csv" and made.comparisons:
                files[out / f"{made.name}-claims.csv"] = records_csv(made.comparisons)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecError(f"the report cannot be written: {error}", where=f"--out {out}") from error
    typer.echo("\n".join(map(str, files)))

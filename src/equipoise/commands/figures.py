"""``--figure`` of ``reproduce`` and ``report``: check and draw the figures of experiments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.commands.options import DEFAULT_FILES
from equipoise.commands.outputs import FIGURE_SUFFIXES, check_output
from equipoise.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from equipoise.experiments.experiment import Experiment
    from equipoise.experiments.result import Result
    from equipoise.experiments.store import Store

FigureFile = Annotated[
    Path | None,
    typer.Option(
        "--figure",
        metavar="[FILE]",
        help="Draw the figure to FILE (.png, .svg or .pdf); without FILE to EXPERIMENT.png, .svg and .pdf in the "
        "store's folder.",
        show_default=False,
    ),
]


def check_figures(experiments: Sequence[Experiment], file: Path) -> None:
    """Check before any run that the figures can be drawn afterwards.

    Args:
        experiments: Experiments to draw.
        file: Value of ``--figure``.

    Raises:
        SpecError: If an experiment has no figure, or several figures would go to one file.
    """
    from equipoise.report.figures import check_figure

    for experiment in experiments:
        check_figure(experiment)
    if file == DEFAULT_FILES:
        return
    if len(experiments) > 1:
        raise SpecError(
            "several figures cannot be written to one file", where=f"--figure {file}", remedy="leave out the file"
        )
    check_output(file, "--figure", FIGURE_SUFFIXES)


def draw_figures(
    experiments: Iterable[Experiment], store: Store, file: Path, results: dict[str, Result], *, strict: bool = True
) -> list[Path]:
    """Draw the figures of experiments.

    Args:
        experiments: Experiments to draw.
        store: Store with their recordings.
        file: Value of ``--figure``.
        results: Results by run key.
        strict: Whether a figure that cannot be drawn is an error; otherwise it is reported and skipped.

    Returns:
        The files that were written.

    Raises:
        SpecError: If a figure cannot be drawn and ``strict`` is set.
    """
    from equipoise.report.figures import draw_figure
    from equipoise.report.frames import frame_loader
    from equipoise.report.plots.style import save_figure

    load_frame, written = frame_loader(store), []
    for experiment in experiments:
        try:
            figure = draw_figure(experiment, results, load_frame)
        except SpecError as error:
            if strict:
                raise
            typer.echo(f"not drawn: {error.what}", err=True)
            continue
        default_files = [store.path.with_name(f"{experiment.name}{suffix}") for suffix in FIGURE_SUFFIXES]
        written += [save_figure(figure, path) for path in (default_files if file == DEFAULT_FILES else [file])]
    return written

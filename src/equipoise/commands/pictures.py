"""Where figures go, for every command that draws some."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.commands.optional import AUTOMATIC
from equipoise.errors import ChoiceError, SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from equipoise.experiments.experiment import Experiment
    from equipoise.experiments.result import Result
    from equipoise.experiments.store import Store

SUFFIXES = (".png", ".svg", ".pdf")

FigureFile = Annotated[
    Path | None,
    typer.Option(
        "--figure",
        metavar="[FILE]",
        help="Draw the figure: into a .png, .svg or .pdf; without FILE into all three, TARGET.png … beside the store.",
        show_default=False,
    ),
]


def check_figures(chosen: Sequence[Experiment], figure: Path) -> None:
    """Say before any run what will not be drawn after it."""
    from equipoise.report.gallery import check_drawn

    for experiment in chosen:
        check_drawn(experiment)
    if figure == AUTOMATIC:
        return
    if len(chosen) > 1:
        raise SpecError(
            "several figures do not fit in one file", where=f"--figure {figure}", remedy="leave the file out"
        )
    if figure.suffix.lower() not in SUFFIXES:
        raise ChoiceError("kind of picture", figure.suffix, SUFFIXES)


def draw_figures(
    chosen: Iterable[Experiment], store: Store, figure: Path, results: dict[str, Result], *, all_of: bool = True
) -> list[Path]:
    """Draw and write; returns the files. Without ``all_of``, what cannot be drawn is said and passed over."""
    from equipoise.report.figures import save_figure
    from equipoise.report.frames import frames_of
    from equipoise.report.gallery import draw

    frames, written = frames_of(store), []
    for experiment in chosen:
        try:
            drawn = draw(experiment, results, frames)
        except SpecError as error:
            if all_of:
                raise
            typer.echo(f"not drawn: {error.what}", err=True)
            continue
        beside = [store.path.with_name(f"{experiment.name}{suffix}") for suffix in SUFFIXES]
        written += [save_figure(drawn, file) for file in (beside if figure == AUTOMATIC else [figure])]
    return written

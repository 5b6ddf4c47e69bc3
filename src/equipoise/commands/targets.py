"""Which runs a command is about: targets by name, and options that narrow them; the same for every command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.errors import SpecError

if TYPE_CHECKING:
    from equipoise.experiments.experiment import Experiment

Option = typer.Option

Targets = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TARGET]...",
        help="Tables and figures of the paper by name, or a file of your own: my.toml.",
        show_default=False,
    ),
]
Dataset = Annotated[str | None, Option(metavar="A,B", help="These data sets only.", show_default=False)]
Depth = Annotated[str | None, Option(metavar="10,20", help="These depths only.", show_default=False)]
Init = Annotated[str | None, Option(metavar="A,B", help="These starts only.", show_default=False)]
Seeds = Annotated[int | None, Option(min=1, help="Runs of a cell, seeds 0, 1, …", show_default=False)]
Epochs = Annotated[int | None, Option(min=1, help="Epochs at most, instead of the target's.", show_default=False)]
StoreFile = Annotated[
    Path, Option("--store", metavar="FILE", help="SQLite file with the results, in this folder if not said otherwise.")
]
Json = Annotated[bool, Option("--json", help="Print JSON instead of text.")]

DEFAULT_STORE = Path("equipoise.sqlite")


def experiments(
    names: Sequence[str],
    *,
    dataset: str | None = None,
    depth: str | None = None,
    init: str | None = None,
    seeds: int | None = None,
    epochs: int | None = None,
) -> list[Experiment]:
    """The targets of these names, narrowed to what was asked for."""
    from equipoise.experiments.files import load

    depths = None if depth is None else [_whole(text) for text in _listed(depth)]
    return [
        load(name).narrowed(
            dataset=None if dataset is None else [text.lower() for text in _listed(dataset)],
            depth=depths,
            init=None if init is None else _listed(init),
            seeds=seeds,
            epochs=epochs,
        )
        for name in names
    ]


def duration(seconds: float) -> str:
    """A time for people.

    Example:
        >>> duration(8), duration(90), duration(5 * 3600 + 60), duration(60 * 3600)
        ('8 s', '2 min', '5.0 h', '2.5 days')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise SpecError(f"{text!r} is no depth", where="--depth", remedy="whole numbers, such as 10,20") from None

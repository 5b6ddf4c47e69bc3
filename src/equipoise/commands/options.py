"""Options shared by several commands: the selection of experiments, the store, and options with an optional file."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from equipoise.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from equipoise.experiments.experiment import Experiment

Option = typer.Option

ExperimentNames = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="EXPERIMENT",
        help="Experiments of the paper by name (`equipoise reproduce --list`), or your own file: my.toml.",
        show_default=False,
    ),
]
Dataset = Annotated[str | None, Option(metavar="A,B", help="Only these data sets.", show_default=False)]
Depth = Annotated[str | None, Option(metavar="10,20", help="Only these depths.", show_default=False)]
Init = Annotated[str | None, Option(metavar="A,B", help="Only these initialisation schemes.", show_default=False)]
Variant = Annotated[
    str | None, Option(metavar="A,B", help="Only these variants, such as 'dropout = 0.6'.", show_default=False)
]
Seeds = Annotated[int | None, Option(min=1, help="Runs per cell, with seeds 0, 1, …", show_default=False)]
Epochs = Annotated[
    int | None, Option(min=1, help="Maximum number of epochs, instead of the experiment's.", show_default=False)
]
StoreFile = Annotated[Path, Option("--store", metavar="FILE", help="SQLite file with the results.")]
DataRoot = Annotated[
    Path | None,
    Option(help="Folder with the raw data; by default EQUIPOISE_DATA, otherwise the cache.", show_default=False),
]
Json = Annotated[bool, Option("--json", help="Print JSON instead of text.")]

DEFAULT_STORE = Path("equipoise.sqlite")

OPTIONAL_FILE_OPTIONS = ("--figure", "--html")
DEFAULT_FILES = Path()  # value of such an option without a file; no file has this name


def given_options(context: typer.Context) -> set[str]:
    """Names of the parameters that the command line sets."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def refuse_options(context: typer.Context, names: Iterable[str], reason: str) -> None:
    """Refuse options that would have no effect.

    Args:
        context: Context of the command.
        names: Parameters that another one makes void.
        reason: When they have no effect, and what to do instead.

    Raises:
        BadParameter: One of them is given.
    """
    flags = {str(parameter.name): parameter.opts[0] for parameter in context.command.params}
    if void := sorted(flags[name] for name in given_options(context).intersection(names)):
        raise typer.BadParameter(reason, param_hint=", ".join(void))


class OptionalFileCommand(TyperCommand):
    """A command whose ``--figure`` and ``--html`` may be followed by a file: ``--figure`` or ``--figure cora.png``.

    The next argument is the file if it has a suffix other than ``.toml`` or names a folder: ``--html tables/`` is an
    error about that folder, not about an experiment.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the default where the file was left out."""
        return super().parse_args(ctx, list(_insert_defaults(args)))


def _insert_defaults(args: Sequence[str]) -> Iterator[str]:
    for argument, following in pairwise([*args, ""]):
        if argument in OPTIONAL_FILE_OPTIONS and not _is_file(following):
            yield f"{argument}={DEFAULT_FILES}"
        else:
            yield argument


def _is_file(argument: str) -> bool:
    suffix = Path(argument).suffix
    return not argument.startswith("-") and suffix != ".toml" and (suffix != "" or "/" in argument)


def check_names(names: Iterable[str]) -> None:
    """Refuse two experiments of one name, whose tables and files could not be told apart."""
    counts = Counter(Path(name).stem for name in names)
    if twice := next((name for name, number in counts.items() if number > 1), None):
        raise SpecError(f"the experiment {twice!r} is named twice", remedy="name it once, or rename one of the files")


def check_learning_rate(lr: float | None) -> None:
    """Refuse a learning rate with which nothing can be trained; None is that of the experiments."""
    if lr is not None and not 0 < lr < math.inf:
        raise SpecError(f"the learning rate must be finite and above 0, got {lr}", where="--lr")


def select_experiments(
    names: Sequence[str],
    *,
    dataset: str | None = None,
    depth: str | None = None,
    init: str | None = None,
    variant: str | None = None,
    seeds: int | None = None,
    epochs: int | None = None,
) -> list[Experiment]:
    """Load experiments and restrict them to the given settings.

    Args:
        names: Experiments by name or file.
        dataset: Data sets, separated by commas.
        depth: Depths, separated by commas.
        init: Initialisation schemes, separated by commas.
        variant: Variants, separated by commas.
        seeds: Number of runs per cell.
        epochs: Maximum number of epochs.

    Returns:
        One experiment per name.

    Raises:
        SpecError: Two experiments have the same name, and files and tables would not tell them apart.
    """
    from equipoise.experiments.parser import load_experiment

    depths = None if depth is None else [_parse_depth(text) for text in _split(depth)]
    check_names(names)
    return [
        load_experiment(name).subset(
            dataset=None if dataset is None else [text.lower() for text in _split(dataset)],
            depth=depths,
            init=None if init is None else _split(init),
            variant=None if variant is None else _split(variant),
            seeds=seeds,
            epochs=epochs,
        )
        for name in names
    ]


def format_duration(seconds: float) -> str:
    """Format a duration for reading.

    Args:
        seconds: The duration.

    Returns:
        The duration in seconds, minutes, hours, days or years.

    Example:
        >>> format_duration(8), format_duration(90), format_duration(5 * 3600 + 60), format_duration(60 * 3600)
        ('8 s', '2 min', '5.0 h', '2.5 days')
        >>> format_duration(1e18)
        '3.17e+10 years'
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days" if seconds < 2 * 365 * 86400 else f"{seconds / 86400 / 365:.3g} years"


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _parse_depth(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise SpecError(f"{text!r} is not a depth", where="--depth", remedy="write whole numbers: 10,20") from None

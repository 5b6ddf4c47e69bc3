"""An experiment: a grid of runs, the published numbers of its cells, and the claims made about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, StrictBool, StrictFloat
from pydantic.dataclasses import dataclass as validated_dataclass

from equipoise.errors import ChoiceError, SpecError
from equipoise.experiments.spec import RunSpec

Value = str | int | float | bool | None
Coordinates = tuple[Value, ...]  # position of a cell in the grid: one value per axis, in the order of the axes
ExperimentKind = Literal["table", "figure", "data"]
Measure = Literal["accuracy", "epochs"]


MAX_RUNS = 100_000  # of an experiment: more is a slip, and listing them would take minutes


def check_number_of_runs(count: int) -> None:
    """Raise a :class:`SpecError` if an experiment would have too many runs."""
    if count > MAX_RUNS:
        raise SpecError(
            f"that would be {count} runs; an experiment has at most {MAX_RUNS}", remedy="choose fewer values"
        )


def expand_lists(table: Any) -> Any:
    """Turn ``{a = 1, b = [2, 3]}`` into ``{a: 1, b: 2}, {a: 1, b: 3}``: one row per entry of the lists.

    Args:
        table: values or lists of values by name; anything but a mapping is returned as it is.

    Returns:
        A tuple with one mapping per row.

    Raises:
        ValueError: If the lists have different lengths.

    Example:
        >>> expand_lists({"a": 1, "b": [2, 3]})
        ({'a': 1, 'b': 2}, {'a': 1, 'b': 3})
    """
    if not isinstance(table, Mapping):
        return table
    lengths = {len(value) for value in table.values() if isinstance(value, list)}
    if len(lengths) > 1:
        raise ValueError(f"lists of {' and '.join(map(str, sorted(lengths)))} entries do not match")
    return tuple(
        {name: value[row] if isinstance(value, list) else value for name, value in table.items()}
        for row in range(lengths.pop() if lengths else 1)
    )


def _listed(table: Any) -> Any:
    """Turn single values into tuples of one value."""
    if not isinstance(table, Mapping):
        return table
    return {name: tuple(value) if isinstance(value, list | tuple) else (value,) for name, value in table.items()}


Rows = Annotated[tuple[dict[str, Value], ...], BeforeValidator(expand_lists)]
AllowedValues = Annotated[dict[str, tuple[Value, ...]], BeforeValidator(_listed)]


@dataclass(frozen=True)
class Cell:
    """One cell of a table: runs that differ only in their seed.

    Attributes:
        coordinates: values of the axes.
        specs: its runs; empty in tables of data sets.
    """

    coordinates: Coordinates
    specs: tuple[RunSpec, ...]


@validated_dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Claim:
    """A published statement about a table, as comparisons in each of which ``better`` must beat ``worse``.

    Attributes:
        say: the claim in words.
        source: where it was published.
        better, worse: the two sides of each comparison, as values of some axes. Both sides have equal values of all
            other axes.
        where: allowed values of the other axes; all if an axis is not listed.
        measure: ``"accuracy"`` (higher is better) or ``"epochs"`` to the best model (lower is better).
        by: required lead of ``better``, in percentage points or epochs; negative for *not worse than*.
        most: the claim is about most comparisons, not all.
        narrow, wide: the claim is that the lead of ``better`` is larger at ``wide`` than at ``narrow``.
    """

    say: str
    better: Rows
    worse: Rows
    source: str = ""
    where: AllowedValues = field(default_factory=dict)
    measure: Measure = "accuracy"
    by: StrictFloat = 0.0
    most: StrictBool = False
    narrow: dict[str, Value] = field(default_factory=dict)
    wide: dict[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """A table or figure: its runs, the published numbers, and the source of every setting.

    Attributes:
        name: identifier on the command line.
        title: one line.
        kind: ``"table"`` or ``"figure"`` of runs, or ``"data"`` for a table of data sets, which has no runs.
        source: where it was published.
        axes: the settings that vary (and ``variant``) with their values. The seed is not an axis.
        cells: one cell per combination of these values.
        compare: the axis whose best value is marked; it is the last axis.
        published: published numbers by coordinates and measure. Measures of runs are ``accuracy``, ``ci``, ``epochs``
            and ``epochs_ci``.
        provenance: source of each setting's value.
        claims: published claims about the numbers.
        notes: remarks for the reader.
        draws: quantities that the figure shows.
        figure: name of the figure in the registry of :mod:`equipoise.report.figures`; ``None`` without a figure.
        every: epochs between two samples of these quantities.
        load_options: options of :func:`~equipoise.load_dataset` by data set, for ``"data"``.
        runs_per_cell: number of runs per cell in the experiment's file; :meth:`subset` does not change it.
        truncated: whether runs end after fewer epochs than in the experiment's file.
        target: how the experiment is named on the command line, with the path of its file; by default its name.
        remark: how the runs differ from those of the experiment's file; empty if they do not.
    """

    name: str
    title: str
    kind: ExperimentKind
    source: str
    axes: Mapping[str, tuple[Value, ...]]
    cells: tuple[Cell, ...]
    compare: str
    published: Mapping[Coordinates, Mapping[str, float]] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    notes: tuple[str, ...] = ()
    draws: tuple[str, ...] = ()
    figure: str | None = None
    every: int = 25
    load_options: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    runs_per_cell: int = 1
    truncated: bool = False
    target: str = ""
    remark: str = ""

    @property
    def specs(self) -> list[RunSpec]:
        """All runs without duplicates, in the order of the cells."""
        return list(dict.fromkeys(spec for cell in self.cells for spec in cell.specs))

    def coordinates(self, values: Mapping[str, Value]) -> Coordinates:
        """Return the coordinates of the cell with these values of the axes."""
        return tuple(values[axis] for axis in self.axes)

    def combinations(
        self, where: Mapping[str, Sequence[Value]], without: Sequence[str] = ()
    ) -> Iterator[dict[str, Value]]:
        """Iterate over the combinations of axis values.

        Args:
            where: allowed values by axis; all if an axis is not listed.
            without: axes to leave out.

        Yields:
            Values by axis.
        """
        names = [axis for axis in self.axes if axis not in without]
        allowed = [[value for value in self.axes[axis] if value in where.get(axis, (value,))] for axis in names]
        for values in product(*allowed):
            yield dict(zip(names, values, strict=True))

    def subset(
        self,
        *,
        dataset: Sequence[str] | None = None,
        depth: Sequence[int] | None = None,
        init: Sequence[str] | None = None,
        variant: Sequence[str] | None = None,
        seeds: int | None = None,
        epochs: int | None = None,
    ) -> Experiment:
        """Return the experiment with fewer cells, or with another number of runs per cell or of epochs.

        Claims and published numbers stay those of the whole experiment.

        Args:
            dataset: data sets to keep; all by default.
            depth: depths to keep; all by default.
            init: schemes to keep; all by default.
            variant: variants to keep; all by default.
            seeds: runs per cell. Additional runs continue from the last seed of the cell.
            epochs: maximum number of epochs of every run.

        Returns:
            A new experiment.

        Raises:
            ChoiceError: If the experiment has no such data set, depth, scheme or variant.
            SpecError: If it has no variants, no cell matches all of them, or there would be too many runs.

        Example:
            >>> from equipoise.experiments.parser import load_experiment
            >>> len(load_experiment("sgd").subset(dataset=["texas", "cornell"], seeds=2, epochs=200).specs)
            60
        """
        cells = self.cells
        for name, values in {"dataset": dataset, "depth": depth, "init": init, "variant": variant}.items():
            if values is not None:
                cells = self._select(cells, name, values)
        max_epochs = sorted({spec.epochs for spec in self.specs})
        if seeds is not None:
            check_number_of_runs(len(cells) * seeds)
        remark, truncated = self.remark, self.truncated
        if epochs is not None and max_epochs not in ([], [epochs]):
            remark = f"of at most {epochs} epochs instead of {' and '.join(map(str, max_epochs))}"
            truncated = truncated or epochs < max_epochs[-1]
        cells = tuple(_resize(cell, seeds, epochs) for cell in cells)
        return replace(self, cells=cells, remark=remark, truncated=truncated)

    def _select(self, cells: tuple[Cell, ...], name: str, values: Sequence[Value]) -> tuple[Cell, ...]:
        """Keep the cells that have one of these values of a setting."""
        known = {cell.coordinates: self._setting(cell, name) for cell in self.cells}
        for value in values:
            if value not in known.values():
                raise ChoiceError(f"{name} for {self.name}", value, dict.fromkeys(map(str, known.values())))
        selected = tuple(cell for cell in cells if known[cell.coordinates] in values)
        if not selected:
            raise SpecError(f"no run of {self.name} matches all options", where=f"{name}={list(values)}")
        return selected

    def _setting(self, cell: Cell, name: str) -> Value:
        coordinates = dict(zip(self.axes, cell.coordinates, strict=True))
        if name in coordinates:
            return coordinates[name]
        if not cell.specs or not hasattr(cell.specs[0], name):
            raise SpecError(f"{self.name} has no {name}", where=f"--{name}", remedy="leave the option out")
        value: Value = getattr(cell.specs[0], name)
        return value


def _resize(cell: Cell, seeds: int | None, epochs: int | None) -> Cell:
    """Change the number of runs of a cell, and their epochs."""
    specs = cell.specs
    if seeds is not None and specs:
        last = specs[-1]
        more = (replace(last, seed=last.seed + extra) for extra in range(1, seeds - len(specs) + 1))
        specs = (*specs[:seeds], *more)
    if epochs is not None:
        specs = tuple(replace(spec, epochs=epochs) for spec in specs)
    return replace(cell, specs=specs)

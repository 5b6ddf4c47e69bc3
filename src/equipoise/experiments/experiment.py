"""An experiment: a grid of runs, what was published about each of its cells, and what was claimed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Literal

from equipoise.errors import ChoiceError, SpecError
from equipoise.experiments.spec import RunSpec

Value = str | int | float | bool | None
At = tuple[Value, ...]  # a cell's place: one value for each axis, in the order of the axes
Measure = Literal["accuracy", "epochs"]


@dataclass(frozen=True)
class Cell:
    """One cell of a table: runs that differ in nothing but the seed.

    Attributes:
        at: its place.
        specs: its runs; none where there is nothing to train.
    """

    at: At
    specs: tuple[RunSpec, ...]


@dataclass(frozen=True)
class Claim:
    """What is said about a table, in a form that numbers can decide: in each comparison, ``better`` beats ``worse``.

    Attributes:
        say: the claim in words.
        source: where it is said.
        better, worse: pairs of places, by some of the axes; compared at equal values of the others.
        where: the values of an axis for which it is claimed, where that is not all of them.
        measure: ``"accuracy"``, where more is better, or ``"epochs"`` to the best model, where less is.
        by: how far ahead ``better`` must be, in points or epochs; below 0 for *not worse than*.
        most: claimed of most comparisons only, not of each.
        narrow, wide: the claim is that ``better`` is ahead by more at ``wide`` than at ``narrow``.
    """

    say: str
    source: str
    better: tuple[Mapping[str, Value], ...]
    worse: tuple[Mapping[str, Value], ...]
    where: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    measure: Measure = "accuracy"
    by: float = 0.0
    most: bool = False
    narrow: Mapping[str, Value] = field(default_factory=dict)
    wide: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """A table or a figure: what to run for it, what was published, where every setting comes from.

    Attributes:
        name: what it is asked for by.
        title: one line.
        kind: ``"table"`` or ``"figure"`` of runs, or ``"data"``, which needs no run.
        source: where it was published.
        axes: the settings that vary, and ``variant``, with their values, in order; the seed is not one of them.
        cells: one for each combination of these values.
        compare: the axis whose best value is looked for; the last one.
        published: measure → number, for each cell that has one; for runs ``accuracy``, ``ci``, ``epochs``,
            ``epochs_ci``.
        provenance: setting → where its value comes from.
        claims: what was said about the numbers.
        notes: what a reader should know.
        draws: the quantities that a figure shows.
        every: epochs from one sample of these to the next.
        load: data set → options of ``load_dataset``, for ``"data"``.
        remark: how its runs differ from those of its file, where they do.
    """

    name: str
    title: str
    kind: Literal["table", "figure", "data"]
    source: str
    axes: Mapping[str, tuple[Value, ...]]
    cells: tuple[Cell, ...]
    compare: str
    published: Mapping[At, Mapping[str, float]] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    notes: tuple[str, ...] = ()
    draws: tuple[str, ...] = ()
    every: int = 25
    load: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    remark: str = ""

    @property
    def specs(self) -> list[RunSpec]:
        """All runs, each once, in the order of the cells."""
        return list(dict.fromkeys(spec for cell in self.cells for spec in cell.specs))

    def at(self, place: Mapping[str, Value]) -> At:
        """The place of the cell with these values of the axes."""
        return tuple(place[axis] for axis in self.axes)

    def places(self, where: Mapping[str, Sequence[Value]], without: Sequence[str] = ()) -> Iterator[dict[str, Value]]:
        """Every combination of the axes' values that ``where`` allows, leaving out the axes named in ``without``."""
        names = [axis for axis in self.axes if axis not in without]
        allowed = [[value for value in self.axes[axis] if value in where.get(axis, (value,))] for axis in names]
        for values in product(*allowed):
            yield dict(zip(names, values, strict=True))

    def narrowed(
        self,
        *,
        dataset: Sequence[str] | None = None,
        depth: Sequence[int] | None = None,
        init: Sequence[str] | None = None,
        seeds: int | None = None,
        epochs: int | None = None,
    ) -> Experiment:
        """The same with fewer cells, another number of runs each, or other epochs; claims stay about all of it.

        Args:
            dataset: the data sets to keep; all if not given.
            depth: the depths to keep.
            init: the schemes to keep.
            seeds: runs of a cell; more than the experiment has go on counting from its last seed.
            epochs: how many at most, in every run.

        Example:
            >>> from equipoise.experiments.files import load
            >>> len(load("sgd").narrowed(dataset=["texas", "cornell"], seeds=2, epochs=200).specs)
            60
        """
        cells = self.cells
        for name, wanted in {"dataset": dataset, "depth": depth, "init": init}.items():
            if wanted is not None:
                cells = self._kept(cells, name, wanted)
        own = sorted({spec.epochs for spec in self.specs})
        remark = self.remark
        if epochs is not None and own not in ([], [epochs]):
            remark = f"of at most {epochs} epochs instead of {' and '.join(map(str, own))}"
        return replace(self, cells=tuple(_with(cell, seeds, epochs) for cell in cells), remark=remark)

    def _kept(self, cells: tuple[Cell, ...], name: str, wanted: Sequence[Value]) -> tuple[Cell, ...]:
        there = {cell.at: self._setting(cell, name) for cell in self.cells}
        for value in wanted:
            if value not in there.values():
                known = dict.fromkeys(str(value) for value in there.values())
                raise ChoiceError(f"{name} for {self.name}", value, known)
        kept = tuple(cell for cell in cells if there[cell.at] in wanted)
        if not kept:
            raise SpecError(f"no run of {self.name} has all of that at once", where=f"{name}={list(wanted)}")
        return kept

    def _setting(self, cell: Cell, name: str) -> Value:
        value: Value = getattr(cell.specs[0], name) if cell.specs else dict(zip(self.axes, cell.at, strict=True))[name]
        return value


def _with(cell: Cell, seeds: int | None, epochs: int | None) -> Cell:
    specs = cell.specs
    if seeds is not None and specs:
        last = specs[-1]
        more = (replace(last, seed=last.seed + extra) for extra in range(1, seeds - len(specs) + 1))
        specs = (*specs[:seeds], *more)
    if epochs is not None:
        specs = tuple(replace(spec, epochs=epochs) for spec in specs)
    return replace(cell, specs=specs)

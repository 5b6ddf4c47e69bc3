"""Statistics of the runs of an experiment: cell summaries, comparison with published numbers, grouping by scheme.

A cell is summarised by mean and 95 % confidence interval of its test accuracy and of its epochs to the best model.
:func:`table_rows` pairs each summary with the published numbers, in the order of the grid.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final, Protocol

import numpy as np
from scipy import stats

from equipoise.data.catalog import Metric, dataset_info
from equipoise.experiments.experiment import Cell, Coordinates, Experiment
from equipoise.experiments.spec import FIELDS, RunSpec

EXCLUDED_OUTCOMES = ("failed", "interrupted")
OTHER_SETTINGS = attrgetter(*(name for name in FIELDS if name != "epochs"))  # all settings but the number of epochs
TIE: Final = 1e-6  # means that differ by less are equal: a rounding error, far below one node or one epoch
REFERENCE_SCHEME: Final = "xav"  # other schemes are compared with it
MISSING: Final = "missing"  # printed for the accuracy of a cell without runs


class RunResult(Protocol):
    """Attributes of a run's result that a summary needs.

    Accuracies are in [0, 1]; None or NaN if the run has no evaluation.
    """

    @property
    def spec(self) -> RunSpec: ...
    @property
    def outcome(self) -> str: ...
    @property
    def test_accuracy(self) -> float | None: ...
    @property
    def best_epoch(self) -> int | None: ...


@dataclass(frozen=True)
class Estimate:
    """A mean over ``n`` runs with the half-width of its 95 % confidence interval (NaN if there is none)."""

    mean: float
    ci: float = math.nan
    n: int = 1

    def text(self, digits: int) -> str:
        """Format as ``79.5 ± 1.3``, or as the mean alone if there is no interval."""
        interval = "" if math.isnan(self.ci) else f" ± {self.ci:.{digits}f}"
        return f"{self.mean:.{digits}f}{interval}"


def estimate_text(estimate: Estimate | None, digits: int, default: str = "") -> str:
    """Format an estimate; ``default`` if there is none."""
    return estimate.text(digits) if estimate else default


def signed_text(number: float, digits: int = 1) -> str:
    """Format a number with its sign; without one if it rounds to zero."""
    text = f"{number:+.{digits}f}"
    return text.replace("-", "−") if float(text) else text[1:]


@dataclass(frozen=True)
class CellSummary:
    """Statistics of the runs of one cell.

    Attributes:
        accuracy: test accuracy of the best model, or another metric of the data set, in percent; None without runs.
        epochs: epochs to the best model.
        expected: number of runs that the cell has when complete.
        diverged: number of included runs that ended with a non-finite loss.
        failed: number of runs that failed, were interrupted or were never evaluated; they are excluded.
        metric: metric of the data set.
        constant: highest score of a constant prediction on the data set, in percent; NaN without runs planned.
    """

    accuracy: Estimate | None
    epochs: Estimate | None
    expected: int
    diverged: int = 0
    failed: int = 0
    metric: Metric = "accuracy"
    constant: float = math.nan

    @property
    def n(self) -> int:
        """Number of runs included in the means."""
        return self.accuracy.n if self.accuracy else 0


@dataclass(frozen=True)
class TableRow:
    """One cell of an experiment with the published numbers.

    Attributes:
        coordinates: coordinates of the cell.
        ours: summary of our runs.
        paper: published accuracy, if there is one.
        paper_epochs: published epochs to the best model, if there are any.
        best: whether our mean is the highest of its group; False while a cell of the group has no runs.
        paper_best: the same for the published accuracies.
        digits: number of decimals of the published numbers.
    """

    coordinates: Coordinates
    ours: CellSummary
    paper: Estimate | None
    paper_epochs: Estimate | None
    best: bool
    paper_best: bool
    digits: int = 1

    @property
    def difference(self) -> float | None:
        """Our accuracy minus the published one, in percentage points."""
        return self.ours.accuracy.mean - self.paper.mean if self.ours.accuracy and self.paper else None

    @property
    def overlap(self) -> bool | None:
        """Whether the confidence intervals overlap; None if ours has no interval.

        A published number without an interval counts as a point. Published means and intervals are rounded, each by up
        to half a unit of the last digit, so that 56.757 overlaps 56.76 ± 0.
        """
        if self.difference is None or self.ours.accuracy is None or self.paper is None:
            return None
        if math.isnan(self.ours.accuracy.ci):
            return None
        paper_ci = 0.0 if math.isnan(self.paper.ci) else self.paper.ci
        return abs(self.difference) <= self.ours.accuracy.ci + paper_ci + 10.0**-self.digits


def estimate(values: Sequence[float]) -> Estimate | None:
    r"""Mean and 95 % confidence interval, :math:`t_{0.975,\,n-1}\, s / \sqrt n` (Student).

    Args:
        values: one value per run.

    Returns:
        The estimate, without an interval for a single value; None for no values.

    Example:
        >>> estimate([1.0, 2.0, 3.0]).text(2)
        '2.00 ± 2.48'
    """
    n = len(values)
    if n == 0:
        return None
    if n == 1:
        return Estimate(float(values[0]))
    half_width = float(stats.t.ppf(0.975, n - 1)) * float(np.std(values, ddof=1)) / math.sqrt(n)
    return Estimate(float(np.mean(values)), half_width, n)


def summarize(experiment: Experiment, results: Iterable[RunResult]) -> dict[Coordinates, CellSummary]:
    """Summarise every cell of an experiment.

    A run that diverged counts with what it reached: the epoch of its highest validation accuracy and the test accuracy
    at that epoch. A run that failed, was interrupted, or diverged before its first evaluation is excluded.

    Args:
        experiment: experiment with the cells.
        results: results of any runs; those of other experiments are ignored.

    Returns:
        Coordinates of a cell → its summary.
    """
    by_key = {result.spec.key: result for result in results}
    return {cell.coordinates: _summarize_cell(cell, by_key) for cell in experiment.cells}


def _summarize_cell(cell: Cell, by_key: dict[str, RunResult]) -> CellSummary:
    results = [by_key[spec.key] for spec in cell.specs if spec.key in by_key]
    included = [result for result in results if result.outcome not in EXCLUDED_OUTCOMES and _has_accuracy(result)]
    return CellSummary(
        accuracy=estimate([100 * (result.test_accuracy or 0.0) for result in included]),
        epochs=estimate([float(result.best_epoch or 0) for result in included]),
        expected=len(cell.specs),
        diverged=sum(result.outcome == "diverged" for result in included),
        failed=len(results) - len(included),
        metric=cell.specs[0].metric if cell.specs else "accuracy",
        constant=dataset_info(cell.specs[0].dataset).constant_score if cell.specs else math.nan,
    )


def _has_accuracy(result: RunResult) -> bool:
    return result.test_accuracy is not None and not math.isnan(result.test_accuracy)


def match_epochs(experiment: Experiment, results: Iterable[RunResult], epochs: int | None = None) -> Experiment:
    """Adapt an experiment to the number of epochs that its runs in the store have.

    Args:
        experiment: experiment as its file describes it.
        results: results of any runs.
        epochs: number of epochs to use. By default the experiment's own, if it has runs with that number or no runs
            with any other; otherwise the most frequent one, as after ``equipoise reproduce sgd --epochs 200``.

    Returns:
        The experiment with that number of epochs.
    """
    specs = experiment.specs
    own = {spec.epochs for spec in specs}
    if epochs is None and len(own) == 1:
        runs = {OTHER_SETTINGS(spec) for spec in specs}
        counts = Counter(result.spec.epochs for result in results if OTHER_SETTINGS(result.spec) in runs)
        epochs = counts.most_common(1)[0][0] if counts and not own & counts.keys() else None
    return experiment.subset(epochs=epochs)


def group_by_scheme(specs: Iterable[RunSpec], *, split_seeds: bool = False) -> list[dict[str, list[RunSpec]]]:
    """Group runs that differ only in initialisation scheme and seed.

    Args:
        specs: runs to group.
        split_seeds: put runs with different seeds into different groups.

    Returns:
        One mapping per group, scheme → its runs; groups, schemes and runs keep the order of ``specs``.

    Example:
        >>> specs = [RunSpec(dataset="cora", depth=d, init=i, lr=0.1, seed=0) for d in (2, 5) for i in ("xav", "bal-o")]
        >>> [list(group) for group in group_by_scheme(specs)]
        [['xav', 'bal-o'], ['xav', 'bal-o']]
    """
    groups: dict[RunSpec, dict[str, list[RunSpec]]] = {}
    for spec in specs:
        common = replace(spec, init=REFERENCE_SCHEME, seed=spec.seed if split_seeds else 0)
        groups.setdefault(common, {}).setdefault(spec.init, []).append(spec)
    return list(groups.values())


def published_estimates(experiment: Experiment, measure: str = "accuracy") -> dict[Coordinates, Estimate]:
    """Published means of a measure (``"accuracy"`` or ``"epochs"``) with their intervals, by coordinates."""
    ci = {"accuracy": "ci", "epochs": "epochs_ci"}[measure]
    return {
        coordinates: Estimate(numbers[measure], numbers.get(ci, math.nan), 0)
        for coordinates, numbers in experiment.published.items()
        if measure in numbers
    }


def published_digits(experiment: Experiment) -> int:
    """Number of decimals of the published numbers; 1 if none are published."""
    numbers = [cell[name] for cell in experiment.published.values() for name in ("accuracy", "ci") if name in cell]
    return max((len(repr(float(number)).split(".")[1]) for number in numbers), default=1)


def table_rows(experiment: Experiment, summaries: Mapping[Coordinates, CellSummary]) -> list[TableRow]:
    """Pair the summary of every cell with its published numbers; one row per cell."""
    paper, paper_epochs = published_estimates(experiment), published_estimates(experiment, "epochs")
    ours = {coordinates: summary.accuracy for coordinates, summary in summaries.items() if summary.accuracy}
    best, paper_best = _best_cells(experiment, ours), _best_cells(experiment, paper)
    digits = published_digits(experiment)
    return [
        TableRow(at, summaries[at], paper.get(at), paper_epochs.get(at), at in best, at in paper_best, digits)
        for at in (cell.coordinates for cell in experiment.cells)
    ]


def _best_cells(experiment: Experiment, estimates: Mapping[Coordinates, Estimate]) -> set[Coordinates]:
    """Cells with the highest mean of each complete group; all of them if several are equal but for rounding."""
    axis = list(experiment.axes).index(experiment.compare)
    groups: dict[Coordinates, list[Coordinates]] = {}
    for cell in experiment.cells:
        at = cell.coordinates
        groups.setdefault(at[:axis] + at[axis + 1 :], []).append(at)
    complete = [group for group in groups.values() if all(at in estimates for at in group)]
    highest = [(group, max(estimates[at].mean for at in group)) for group in complete]
    return {at for group, mean in highest for at in group if estimates[at].mean > mean - TIE}

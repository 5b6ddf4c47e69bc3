"""From runs to cells: mean and 95 % confidence interval of accuracy and of epochs to the best model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from scipy import stats

from equipoise.experiments.experiment import At, Cell, Experiment
from equipoise.experiments.spec import RunSpec

NOT_COUNTED = ("failed", "interrupted")


class Finished(Protocol):
    """What is read of a run's result; accuracies in [0, 1], ``None`` or not a number where there is none."""

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
    """A mean, the half-width of its 95 % confidence interval (not a number where there is none), and of how many."""

    mean: float
    ci: float = math.nan
    n: int = 1

    def text(self, digits: int) -> str:
        """``79.5 ± 1.3``; the mean alone where there is no interval."""
        spread = "" if math.isnan(self.ci) else f" ± {self.ci:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread}"


@dataclass(frozen=True)
class Summary:
    """What the runs of one cell came to.

    Attributes:
        accuracy: test accuracy at the best model, in percent; ``None`` without a run.
        epochs: epochs to the best model.
        wanted: how many runs the cell is to have.
        diverged: how many of those counted ended with a loss that is not finite.
        failed: how many ended in an error or were interrupted, and are not counted.
    """

    accuracy: Estimate | None
    epochs: Estimate | None
    wanted: int
    diverged: int = 0
    failed: int = 0

    @property
    def n(self) -> int:
        """How many runs were counted."""
        return self.accuracy.n if self.accuracy else 0


def estimate(values: Sequence[float]) -> Estimate | None:
    r"""Mean and 95 % confidence interval, :math:`t_{0.975,\,n-1}\, s / \sqrt n` (Student); one value has no interval.

    Example:
        >>> estimate([1.0, 2.0, 3.0]).text(2)
        '2.00 ± 2.48'
    """
    n = len(values)
    if n == 0:
        return None
    if n == 1:
        return Estimate(float(values[0]))
    spread = float(stats.t.ppf(0.975, n - 1)) * float(np.std(values, ddof=1)) / math.sqrt(n)
    return Estimate(float(np.mean(values)), spread, n)


def summarize(experiment: Experiment, results: Iterable[Finished]) -> dict[At, Summary]:
    """One summary for each cell of the experiment; results of other runs are passed over.

    A run that diverged counts as what it reached: the test accuracy at the epoch of its highest validation accuracy
    up to then, and that epoch. One that failed, was interrupted, or diverged before its first evaluation has no number.
    """
    by_key = {result.spec.key: result for result in results}
    return {cell.at: _summary(cell, by_key) for cell in experiment.cells}


def _summary(cell: Cell, by_key: dict[str, Finished]) -> Summary:
    found = [by_key[spec.key] for spec in cell.specs if spec.key in by_key]
    counted = [result for result in found if result.outcome not in NOT_COUNTED and _has_number(result)]
    return Summary(
        accuracy=estimate([100 * (result.test_accuracy or 0.0) for result in counted]),
        epochs=estimate([float(result.best_epoch or 0) for result in counted]),
        wanted=len(cell.specs),
        diverged=sum(result.outcome == "diverged" for result in counted),
        failed=len(found) - len(counted),
    )


def _has_number(result: Finished) -> bool:
    return result.test_accuracy is not None and not math.isnan(result.test_accuracy)


def fitting(experiment: Experiment, results: Iterable[Finished], epochs: int | None = None) -> Experiment:
    """The experiment at the number of epochs that its runs have.

    It is the number asked for; else the experiment's own, if it has runs of that or there are none of any other; else
    the one that most of its runs have, as after ``equipoise reproduce sgd --epochs 200``.
    """
    specs = experiment.specs
    own = {spec.epochs for spec in specs}
    if epochs is None and len(own) == 1:
        runs = {replace(spec, epochs=1) for spec in specs}
        found = Counter(result.spec.epochs for result in results if replace(result.spec, epochs=1) in runs)
        epochs = found.most_common(1)[0][0] if found and not own & found.keys() else None
    return experiment.narrowed(epochs=epochs)

"""Our cells beside the published ones: numbers only, in the order of the grid."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from equipoise.experiments.experiment import At, Experiment
from equipoise.report.summary import Estimate, Summary


@dataclass(frozen=True)
class Row:
    """One cell.

    Attributes:
        at: its place.
        ours: what our runs came to.
        paper: the published accuracy, if there is one.
        paper_epochs: the published epochs to the best model, if there are any.
        best: whether ours is the best of its group, of which every cell has a run.
        paper_best: the same of the published accuracies.
        digits: how many the published numbers have.
    """

    at: At
    ours: Summary
    paper: Estimate | None
    paper_epochs: Estimate | None
    best: bool
    paper_best: bool
    digits: int = 1

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's accuracy, in points."""
        return self.ours.accuracy.mean - self.paper.mean if self.ours.accuracy and self.paper else None

    @property
    def overlap(self) -> bool | None:
        """Whether the intervals overlap; a published number without one is a point, ours without one is no answer.

        Published means and intervals are rounded, each by up to half a unit of the last digit: 56.757 is in 56.76 ± 0.
        """
        if self.difference is None or self.ours.accuracy is None or self.paper is None:
            return None
        if math.isnan(self.ours.accuracy.ci):
            return None
        paper_ci = 0.0 if math.isnan(self.paper.ci) else self.paper.ci
        return abs(self.difference) <= self.ours.accuracy.ci + paper_ci + 10.0**-self.digits


def published(experiment: Experiment, measure: str = "accuracy") -> dict[At, Estimate]:
    """The published means of a measure, with their intervals."""
    spread = {"accuracy": "ci", "epochs": "epochs_ci"}[measure]
    return {
        at: Estimate(numbers[measure], numbers.get(spread, math.nan), 0)
        for at, numbers in experiment.published.items()
        if measure in numbers
    }


def digits_published(experiment: Experiment) -> int:
    """How many digits the published numbers have after the point; 1 where there are none."""
    numbers = [cell[name] for cell in experiment.published.values() for name in ("accuracy", "ci") if name in cell]
    return max((len(repr(float(number)).split(".")[1]) for number in numbers), default=1)


def compare(experiment: Experiment, summaries: Mapping[At, Summary]) -> list[Row]:
    """One row for each cell."""
    paper, paper_epochs = published(experiment), published(experiment, "epochs")
    ours = {at: summary.accuracy for at, summary in summaries.items() if summary.accuracy}
    best, paper_best = _best(experiment, ours), _best(experiment, paper)
    digits = digits_published(experiment)
    return [
        Row(at, summaries[at], paper.get(at), paper_epochs.get(at), at in best, at in paper_best, digits)
        for at in (cell.at for cell in experiment.cells)
    ]


def _best(experiment: Experiment, estimates: Mapping[At, Estimate]) -> set[At]:
    """The best cell of every group that is complete; of equal means, all."""
    axis = list(experiment.axes).index(experiment.compare)
    groups: dict[At, list[At]] = {}
    for cell in experiment.cells:
        groups.setdefault(cell.at[:axis] + cell.at[axis + 1 :], []).append(cell.at)
    complete = [group for group in groups.values() if all(at in estimates for at in group)]
    highest = [(group, max(estimates[at].mean for at in group)) for group in complete]
    return {at for group, mean in highest for at in group if estimates[at].mean == mean}

"""What is recorded of a run, where a figure shows more than its result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from equipoise.experiments.experiment import Experiment
from equipoise.train.recorder import GROUPS

RECORDED = ("delta", "c", "change", "relative-gradient", "loss")  # what figures draw that no result has
BALANCE = {"delta", "c"}  # one number a neuron, and many more bytes than all the others: only where it is drawn
SAMPLES = 40  # a short run is looked at so often, if not every epoch


@dataclass(frozen=True)
class Watch:
    """When a run is looked at, and at what. It has no part in the run's numbers, nor in its key.

    Attributes:
        every: epochs from one look to the next, if the run is as long as it may be; if not, there are as many looks.
        quantities: groups of the :class:`~equipoise.train.recorder.Recorder`.

    Example:
        >>> Watch(5, ("gradient", "change")).covers(Watch(25, ("gradient",)))
        True
    """

    every: int
    quantities: tuple[str, ...]

    def covers(self, other: Watch) -> bool:
        """Whether all that the other would have seen is seen."""
        return self.every <= other.every and set(other.quantities) <= set(self.quantities)

    def union(self, other: Watch) -> Watch:
        """One that covers both."""
        both = (*self.quantities, *other.quantities)
        return Watch(min(self.every, other.every), tuple(sorted(set(both))))


def watches(experiments: Iterable[Experiment]) -> dict[str, Watch]:
    """Key of a run → what to record of it, for the runs of which a figure asks for more than a result.

    Example:
        >>> from equipoise.experiments.files import load
        >>> len(watches([load("sgd"), load("dynamics-10")]))
        2
    """
    wanted: dict[str, Watch] = {}
    for experiment in experiments:
        if not set(experiment.draws) & set(RECORDED):
            continue
        groups = [name for name in GROUPS if name != "balance" or BALANCE & set(experiment.draws)]
        for spec in experiment.specs:
            every = min(experiment.every, max(1, spec.epochs // SAMPLES))
            watch = Watch(every, tuple(sorted(groups)))
            wanted[spec.key] = wanted[spec.key].union(watch) if spec.key in wanted else watch
    return wanted


def unseen(wanted: Mapping[str, Watch], recorded: Mapping[str, Watch]) -> set[str]:
    """Keys of the runs whose recording is not there, or shows less than is wanted."""
    return {key for key, watch in wanted.items() if key not in recorded or not recorded[key].covers(watch)}

"""Recording plans: which quantities to record during a run, and how often, for figures that show more than results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from equipoise.experiments.experiment import Experiment

# Quantity groups of ``equipoise.training.recorder.Recorder``, repeated here because importing it imports torch.
GROUPS = ("gradient", "balance", "change", "update", "representation", "attention")
RECORDED_QUANTITIES = ("delta", "c", "change", "relative-gradient", "loss")  # drawn quantities that need a recording
# These need the group "balance": one value per neuron, many more bytes than all other groups together.
NEURON_QUANTITIES = {"delta", "c"}
MIN_SAMPLES = 40  # samples of a short run, unless it has fewer epochs


@dataclass(frozen=True)
class RecordingPlan:
    """The sampling interval and the quantities of a recording. Neither affects the run's numbers or its key.

    Attributes:
        every: epochs between two samples of a run of maximum length; a run that stops early has as many samples.
        quantities: groups of the :class:`~equipoise.Recorder`.

    Example:
        >>> RecordingPlan(5, ("gradient", "change")).covers(RecordingPlan(25, ("gradient",)))
        True
    """

    every: int
    quantities: tuple[str, ...]

    def covers(self, other: RecordingPlan) -> bool:
        """Check whether this plan records everything that ``other`` records, at least as often."""
        return self.every <= other.every and set(other.quantities) <= set(self.quantities)

    def union(self, other: RecordingPlan) -> RecordingPlan:
        """Return the smallest plan that covers both."""
        quantities = {*self.quantities, *other.quantities}
        return RecordingPlan(min(self.every, other.every), tuple(sorted(quantities)))


def recording_plans(experiments: Iterable[Experiment]) -> dict[str, RecordingPlan]:
    """Plan the recordings that the figures of these experiments need.

    Args:
        experiments: tables and figures; only figures of recorded quantities need recordings, of one run per cell.

    Returns:
        Recording plans by run key.

    Example:
        >>> from equipoise.experiments.parser import load_experiment
        >>> len(recording_plans([load_experiment("sgd"), load_experiment("dynamics-10")]))
        2
    """
    plans: dict[str, RecordingPlan] = {}
    for experiment in experiments:
        if not set(experiment.draws) & set(RECORDED_QUANTITIES):
            continue
        groups = [name for name in GROUPS if name != "balance" or NEURON_QUANTITIES & set(experiment.draws)]
        for spec in dict.fromkeys(cell.specs[0] for cell in experiment.cells if cell.specs):
            every = min(experiment.every, max(1, spec.epochs // MIN_SAMPLES))
            plan = RecordingPlan(every, tuple(sorted(groups)))
            plans[spec.key] = plans[spec.key].union(plan) if spec.key in plans else plan
    return plans


def missing_recordings(wanted: Mapping[str, RecordingPlan], available: Mapping[str, RecordingPlan]) -> set[str]:
    """Return the keys of runs whose recording is missing, or does not cover the wanted plan."""
    return {key for key, plan in wanted.items() if key not in available or not available[key].covers(plan)}

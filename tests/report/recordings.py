"""The paper's figures of training dynamics, shrunk to narrow networks and few epochs on a synthetic graph."""

from __future__ import annotations

from dataclasses import replace

from equipoise.experiments.experiment import Experiment
from equipoise.experiments.parser import load_experiment
from equipoise.experiments.recording_plan import recording_plans
from equipoise.experiments.run import run
from equipoise.experiments.store import Store

DYNAMICS = (
    *("conservation", "dynamics-5", "dynamics-10", "relative-gradients"),
    *("zero-change", "parameter-change", "adam-gradients"),
)
MAX_DEPTH = 6


def shrink_experiment(name: str, epochs: int = 3) -> Experiment:
    """The experiment with one run of some milliseconds per cell; different depths remain different."""
    experiment = load_experiment(name).subset(seeds=1)
    settings = {"dataset": "synthetic-citation", "width": 4, "epochs": epochs}
    cells = (
        replace(
            cell,
            specs=tuple(
                replace(spec, depth=min(spec.depth, MAX_DEPTH + spec.depth // 10), **settings) for spec in cell.specs
            ),
        )
        for cell in experiment.cells
    )
    return replace(experiment, cells=tuple(cells))


def run_experiments(store: Store, *experiments: Experiment) -> None:
    """Run and record the experiments into a store."""
    plans = recording_plans(experiments)
    for spec in dict.fromkeys(spec for experiment in experiments for spec in experiment.specs):
        store.put(run(spec, recording_plan=plans.get(spec.key)))

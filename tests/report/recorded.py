"""The paper's figures in small: the same grids, on the built-in graph, a few neurons wide and a few epochs long."""

from __future__ import annotations

from dataclasses import replace

from equipoise.experiments.experiment import Experiment
from equipoise.experiments.files import load
from equipoise.experiments.run import run
from equipoise.experiments.store import Store
from equipoise.experiments.watch import watches

DYNAMICS = (
    *("conservation", "dynamics-5", "dynamics-10", "relative-gradients"),
    *("zero-change", "parameter-change", "adam-gradients"),
)
DEEPEST = 6  # stands for every greater depth


def in_small(name: str, epochs: int = 3) -> Experiment:
    """A target whose runs take a blink each."""
    experiment = load(name)
    tiny = {"dataset": "synthetic-citation", "width": 4, "epochs": epochs}
    cells = (
        replace(cell, specs=tuple(replace(s, depth=min(s.depth, DEEPEST + s.depth // 10), **tiny) for s in cell.specs))
        for cell in experiment.cells
    )
    return replace(experiment, cells=tuple(cells))


def fill(store: Store, *experiments: Experiment) -> None:
    """Do all runs, recorded as the experiments ask."""
    watch = watches(experiments)
    for spec in dict.fromkeys(spec for experiment in experiments for spec in experiment.specs):
        store.put(run(spec, watch=watch.get(spec.key)))

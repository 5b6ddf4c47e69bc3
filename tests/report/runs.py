"""A small experiment and made-up results of its runs."""

from __future__ import annotations

from equipoise.experiments.experiment import Cell, Experiment
from equipoise.experiments.parser import parse_experiment
from equipoise.experiments.result import Result
from equipoise.report.tables import table_report

SMALL = """
title = "A small_table"
source = "Table 9"
notes = ["50 % of it"]

[grid]
dataset = ["cora", "texas"]
depth = [2, 10]
init = ["xav", "bal-o"]
seed = [0, 1]
lr = 0.1
width = 16

[[published]]
dataset = "cora"
depth = 10
init = ["xav", "bal-o"]
accuracy = [25.48, 79.4]
ci = [18.13, 1.34]

[[claims]]
say = "At L ≥ 10, bal-o is better"
source = "Section 3"
better = { init = "bal-o" }
worse = { init = "xav" }
where = { depth = 10 }

[[claims]]
say = "and its lead grows"
better = { init = "bal-o" }
worse = { init = "xav" }
narrow = { depth = 2 }
wide = { depth = 10 }

[[claims]]
say = "mostly faster"
measure = "epochs"
most = true
better = { init = "bal-o" }
worse = { init = "xav" }
"""

COMPLETE = {  # coordinates → accuracies in percent, epochs to the best model
    ("cora", 2, "xav"): ([70.9, 71.1], 300),
    ("cora", 2, "bal-o"): ([74.9, 75.1], 200),
    ("cora", 10, "xav"): ([24.9, 25.1], 300),
    ("cora", 10, "bal-o"): ([78.9, 79.1], 200),
    ("texas", 2, "xav"): ([55, 55], 300),
    ("texas", 2, "bal-o"): ([56, 56], 200),
    ("texas", 10, "xav"): ([50.9, 51.1], 100),
    ("texas", 10, "bal-o"): ([57.9, 58.1], 200),
}


def small_experiment() -> Experiment:
    return parse_experiment(SMALL, "small", "small.toml")


def cell_results(cell: Cell, accuracies: list[float], epochs: int = 100, outcome: str = "finished") -> list[Result]:
    """One result per accuracy (in percent), for the first runs of a cell."""
    return [
        Result(spec=spec, outcome=outcome, test_accuracy=accuracy / 100, val_accuracy=0.5, best_epoch=epochs)
        for spec, accuracy in zip(cell.specs, accuracies, strict=False)
    ]


def make_results(experiment: Experiment, numbers: dict[tuple, tuple[list[float], int]]) -> list[Result]:
    """Results from a mapping like ``COMPLETE``."""
    cells = {cell.coordinates: cell for cell in experiment.cells}
    return [result for at, (values, epochs) in numbers.items() for result in cell_results(cells[at], values, epochs)]


def small_report(numbers=COMPLETE):
    """Report on the small experiment with these results."""
    experiment = small_experiment()
    return table_report(experiment, make_results(experiment, numbers))

"""Report on the data sets: counts of nodes, edges, features, classes and splits next to the published ones."""

from __future__ import annotations

from collections.abc import Callable

from torch_geometric.data import Data

from equipoise.data.files import Root
from equipoise.data.load import load_dataset
from equipoise.experiments.experiment import Experiment
from equipoise.report.tables import COLUMN_TITLES, TableReport

COUNTS: dict[str, Callable[[Data], int]] = {
    "nodes": lambda data: int(data.num_nodes),
    "edges": lambda data: int(data.num_edges),
    "features": lambda data: int(data.num_features),
    "classes": lambda data: int(data.y.unique().numel()),
    "train": lambda data: int(data.train_mask.sum()),
    "val": lambda data: int(data.val_mask.sum()),
    "test": lambda data: int(data.test_mask.sum()),
}


def dataset_report(experiment: Experiment, root: Root = None) -> TableReport:
    """Count the data sets of an experiment; needs no runs.

    Args:
        experiment: experiment of kind ``"data"``.
        root: folder with the raw files, see :func:`load_dataset`.

    Returns:
        The report; its cells read ``2708 = 2708`` or ``494 ≠ 500``, ours first.
    """
    rows: list[list[str]] = []
    records: list[dict[str, object]] = []
    for cell in experiment.cells:
        name = str(dict(zip(experiment.axes, cell.coordinates, strict=True))["dataset"])
        data = load_dataset(name, root, **experiment.load_options.get(name, {}))  # type: ignore[arg-type]
        paper = experiment.published.get(cell.coordinates, {})
        counts = {quantity: count(data) for quantity, count in COUNTS.items()}
        rows.append([name, *(_compare(ours, paper.get(quantity)) for quantity, ours in counts.items())])
        records += [
            {
                "dataset": name,
                "count": quantity,
                "ours": ours,
                "paper": paper.get(quantity),
                "equal": ours == paper.get(quantity),
            }
            for quantity, ours in counts.items()
        ]
    equal = sum(bool(record["equal"]) for record in records)
    return TableReport(
        name=experiment.name,
        title=experiment.title,
        source=experiment.source,
        status=f"ours = published; {equal} of {len(records)} numbers are equal",
        columns=[COLUMN_TITLES["dataset"], *COUNTS],
        rows=rows,
        bold=frozenset(),
        claims=(),
        notes=experiment.notes,
        records=records,
    )


def _compare(ours: int, paper: float | None) -> str:
    return str(ours) if paper is None else f"{ours} {'=' if ours == paper else '≠'} {paper:.0f}"

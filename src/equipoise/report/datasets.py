"""The table of data sets, counted from the data: no run is needed."""

from __future__ import annotations

from collections.abc import Callable

from torch_geometric.data import Data

from equipoise.data.folders import Root
from equipoise.data.load import load_dataset
from equipoise.experiments.experiment import Experiment
from equipoise.report.tables import TITLES, Report

COUNTS: dict[str, Callable[[Data], int]] = {
    "nodes": lambda data: int(data.num_nodes),
    "edges": lambda data: int(data.num_edges),
    "features": lambda data: int(data.num_features),
    "classes": lambda data: int(data.y.unique().numel()),
    "train": lambda data: int(data.train_mask.sum()),
    "val": lambda data: int(data.val_mask.sum()),
    "test": lambda data: int(data.test_mask.sum()),
}


def dataset_report(experiment: Experiment, root: Root = None) -> Report:
    """Each count beside the published one: ``2708 = 2708``, or ``494 ≠ 500``."""
    rows: list[list[str]] = []
    records: list[dict[str, object]] = []
    for cell in experiment.cells:
        name = str(dict(zip(experiment.axes, cell.at, strict=True))["dataset"])
        data = load_dataset(name, root, **experiment.load.get(name, {}))  # type: ignore[arg-type]
        counts = {count: of(data) for count, of in COUNTS.items()}
        paper = experiment.published.get(cell.at, {})
        rows.append([name, *(_beside(counts[count], paper.get(count)) for count in COUNTS)])
        records += [
            {
                "dataset": name,
                "count": count,
                "ours": ours,
                "paper": paper.get(count),
                "equal": ours == paper.get(count),
            }
            for count, ours in counts.items()
        ]
    equal = sum(bool(record["equal"]) for record in records)
    return Report(
        name=experiment.name,
        title=experiment.title,
        source=experiment.source,
        status=f"ours = paper's; {equal} of {len(records)} numbers are equal",
        columns=[TITLES["dataset"], *COUNTS],
        rows=rows,
        bold=frozenset(),
        claims=(),
        notes=experiment.notes,
        records=records,
    )


def _beside(ours: int, paper: float | None) -> str:
    return str(ours) if paper is None else f"{ours} {'=' if ours == paper else '≠'} {paper:.0f}"

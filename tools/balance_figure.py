"""Draw ``when-balance-helps`` as heat maps: ``python tools/balance_figure.py [FILE]``.

Each cell is the mean test score of a scheme minus that of PyG's initialisation, in percentage points, from
``results/runs.csv``. Cells that lack runs are empty. Cells in which neither score exceeds that of a constant prediction
by two standard errors are hatched: both networks may have learnt nothing. The default file is
docs/images/when-balance-helps.png.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from equipoise.data.catalog import dataset_info
from equipoise.experiments.parser import load_experiment
from equipoise.experiments.result import Result
from equipoise.experiments.results_csv import read_csv
from equipoise.report.tables import table_report

ROOT = Path(__file__).parent.parent
EXPERIMENT = load_experiment("when-balance-helps")
BASELINE, SCHEMES = "default", ("bal-o", "rebalanced")
LIMIT = 20.0  # percentage points at the ends of the colour scale
HATCH = "0.75"

Map = NDArray[np.float64]


def chance_limit(dataset: str) -> float:
    """Two standard errors above the score of a constant prediction, in percent: below, a network may not have learnt.

    The standard error of an accuracy p on n nodes is √(p(1−p)/n); that of the ROC AUC of random scores, with a and b
    nodes in the two classes, √((a+b+1)/(12ab)).

    Args:
        dataset: name of a data set.

    Returns:
        The score in percent.
    """
    info = dataset_info(dataset)
    nodes, share = info.split[2], info.constant_score / 100
    error = math.sqrt(share * (1 - share) / nodes)
    if info.metric == "roc_auc":
        error = math.sqrt((nodes + 1) / (12 * info.majority * (nodes - info.majority)))
    return 100 * (share + 2 * error)


def score_maps(results: Sequence[Result]) -> Mapping[str, Map]:
    """Mean test scores by scheme.

    Args:
        results: results of any runs.

    Returns:
        Percent; rows are variants and optimizers, columns data sets and depths. NaN where runs are missing.
    """
    axes = EXPERIMENT.axes
    scores = {
        tuple(record[axis] for axis in ("variant", "optimizer", "dataset", "depth", "init")): record["accuracy"]
        for record in table_report(EXPERIMENT, results).records
        if record["n"]
    }

    rows = [(variant, optimizer) for optimizer in axes["optimizer"] for variant in axes["variant"]]
    columns = [(dataset, depth) for dataset in axes["dataset"] for depth in axes["depth"]]
    return {
        scheme: np.array([[scores.get((*row, *column, scheme), np.nan) for column in columns] for row in rows], float)
        for scheme in (BASELINE, *SCHEMES)
    }


def draw(scores: Mapping[str, Map]) -> Figure:
    """Draw one heat map of leads over PyG's initialisation per scheme, with the numbers in the cells."""
    axes = EXPERIMENT.axes
    limits = np.repeat([chance_limit(str(dataset)) for dataset in axes["dataset"]], len(axes["depth"]))
    depths, variants = axes["depth"], axes["variant"]
    figure = Figure(figsize=(11, 8.6), layout="constrained")
    panels = figure.subplots(len(SCHEMES), 1, squeeze=False)[:, 0]
    for panel, scheme in zip(panels, SCHEMES, strict=True):
        leads = scores[scheme] - scores[BASELINE]
        for row, column in np.argwhere(np.fmax(scores[scheme], scores[BASELINE]) <= limits):
            corner = (column - 0.5, row - 0.5)
            panel.add_patch(Rectangle(corner, 1, 1, fill=False, hatch="////", edgecolor=HATCH, linewidth=0))
        image = panel.imshow(leads, cmap="PuOr", vmin=-LIMIT, vmax=LIMIT, aspect="auto")
        for (row, column), value in np.ndenumerate(leads):
            if np.isfinite(value):
                colour = "white" if abs(value) > 0.7 * LIMIT else "black"
                text = f"{round(value):+d}".replace("-", "\N{MINUS SIGN}") if round(value) else "0"
                panel.text(column, row, text, ha="center", va="center", fontsize=8, color=colour)
        panel.set_title(f"{scheme} minus PyG's initialisation (percentage points)", loc="left", pad=20, fontsize=11)
        panel.set_yticks(range(len(leads)), [*map(str, variants)] * len(axes["optimizer"]), fontsize=8)
        panel.set_xticks(range(leads.shape[1]), [f"L={depth}" for _ in axes["dataset"] for depth in depths], fontsize=8)
        for number, optimizer in enumerate(axes["optimizer"]):
            middle = (number + 0.5) * len(variants) - 0.5
            panel.text(leads.shape[1] - 0.4, middle, optimizer, rotation=270, va="center", fontsize=10)
            panel.axhline(number * len(variants) - 0.5, color="black", linewidth=1)
        for number, dataset in enumerate(axes["dataset"]):
            panel.text((number + 0.5) * len(depths) - 0.5, -0.6, str(dataset), ha="center", va="bottom", fontsize=9)
            panel.axvline(number * len(depths) - 0.5, color="black", linewidth=1)
        panel.tick_params(length=0)
    figure.colorbar(image, ax=panels, shrink=0.5, extend="both", label="percentage points")
    return figure


def main(arguments: Sequence[str]) -> None:
    """Draw the figure from the committed results."""
    target = Path(arguments[0]) if arguments else ROOT / "docs" / "images" / "when-balance-helps.png"
    draw(score_maps(list(read_csv(ROOT / "results" / "runs.csv")))).savefig(target, dpi=150)


if __name__ == "__main__":
    main(sys.argv[1:])

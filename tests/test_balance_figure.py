"""The heat maps of *When does balance help?* show differences of the committed results."""

import math
import sys
from dataclasses import replace
from pathlib import Path

from equipoise.experiments.results_csv import read_csv

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import balance_figure  # noqa: E402

RESULTS = list(read_csv(ROOT / "results" / "runs.csv"))


def test_leads_are_differences_to_the_default():
    axes = balance_figure.EXPERIMENT.axes
    assert [axes[axis][0] for axis in ("variant", "optimizer", "dataset")] == ["plain", "sgd", "cora"]
    assert axes["depth"][1] == 10
    specs = {cell.specs[0].init: cell.specs[0].key for cell in balance_figure.EXPERIMENT.cells if is_plain_cora(cell)}
    scores = {"default": 0.2, "bal-o": 0.75, "rebalanced": 0.1}
    given = {specs[init]: score for init, score in scores.items()}
    results = [replace(run, test_accuracy=given[run.key]) for run in RESULTS if run.key in given]
    assert len(results) == 3
    maps = balance_figure.lead_maps(results)
    assert math.isclose(maps["bal-o"][0, 1], 55.0)
    assert math.isclose(maps["rebalanced"][0, 1], -10.0)
    assert sum(math.isfinite(lead) for leads in maps.values() for lead in leads.flat) == 2


def is_plain_cora(cell):
    spec = cell.specs[0]
    plain = (spec.norm, spec.skip, spec.jk) == (None, None, None)
    return plain and (spec.dataset, spec.optimizer, spec.depth) == ("cora", "sgd", 10)


def test_the_figure_has_a_number_in_each_cell_with_runs(tmp_path):
    maps = balance_figure.lead_maps(RESULTS)
    figure = balance_figure.draw(maps)
    texts = [text.get_text() for axes in figure.axes[:2] for text in axes.texts]
    numbers = [text for text in texts if text.lstrip("+\N{MINUS SIGN}").isdigit()]
    assert len(numbers) == sum(math.isfinite(lead) for leads in maps.values() for lead in leads.flat)
    balance_figure.main([str(tmp_path / "map.png")])
    assert (tmp_path / "map.png").stat().st_size > 10_000

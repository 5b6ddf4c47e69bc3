"""The heat maps of *When does balance help?* show differences of the committed results."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.experiments.results_csv import read_csv

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import balance_figure  # noqa: E402

RESULTS = list(read_csv(ROOT / "results" / "runs.csv"))


def plain_cora(scores):
    """Results of the plain network with 10 layers on Cora, trained by gradient descent, with these scores."""
    specs = {cell.specs[0].init: cell.specs[0].key for cell in balance_figure.EXPERIMENT.cells if is_plain_cora(cell)}
    given = {specs[init]: score for init, score in scores.items()}
    return [replace(run, test_accuracy=given[run.key]) for run in RESULTS if run.key in given]


def test_scores_are_in_the_cells_of_their_settings():
    axes = balance_figure.EXPERIMENT.axes
    assert [axes[axis][0] for axis in ("variant", "optimizer", "dataset")] == ["plain", "sgd", "cora"]
    assert axes["depth"][1] == 10
    results = plain_cora({"default": 0.2, "bal-o": 0.75, "rebalanced": 0.1})
    assert len(results) == 3
    maps = balance_figure.score_maps(results)
    assert [maps[scheme][0, 1] for scheme in ("default", "bal-o", "rebalanced")] == pytest.approx([20, 75, 10])
    assert sum(math.isfinite(score) for scores in maps.values() for score in scores.flat) == 3


def is_plain_cora(cell):
    spec = cell.specs[0]
    plain = (spec.norm, spec.skip, spec.jk) == (None, None, None)
    return plain and (spec.dataset, spec.optimizer, spec.depth) == ("cora", "sgd", 10)


def number_texts(figure):
    texts = [text.get_text() for axes in figure.axes[:2] for text in axes.texts]
    return [text for text in texts if text.lstrip("+\N{MINUS SIGN}").isdigit()]


def test_numbers_are_differences_to_the_default_and_hatched_at_chance():
    figure = balance_figure.draw(
        balance_figure.score_maps(plain_cora({"default": 0.2, "bal-o": 0.75, "rebalanced": 0.1}))
    )
    assert number_texts(figure) == ["+55", "\N{MINUS SIGN}10"]
    assert [len(axes.patches) for axes in figure.axes[:2]] == [0, 1], "of 31.9 % for the largest class"


def test_limit_of_chance_is_two_standard_errors_above_a_constant_prediction():
    assert balance_figure.chance_limit("cora") == pytest.approx(31.9 + 2 * 1.474, abs=0.01)
    assert balance_figure.chance_limit("minesweeper") == pytest.approx(50 + 2 * 1.444, abs=0.01)


def test_the_figure_has_a_number_in_each_cell_with_runs(tmp_path):
    maps = balance_figure.score_maps(RESULTS)
    leads = [maps[scheme] - maps["default"] for scheme in ("bal-o", "rebalanced")]
    assert len(number_texts(balance_figure.draw(maps))) == sum(
        math.isfinite(one) for lead in leads for one in lead.flat
    )
    balance_figure.main([str(tmp_path / "map.png")])
    assert (tmp_path / "map.png").stat().st_size > 10_000

import math

import numpy as np
import pytest

from equipoise.experiments.files import load
from equipoise.experiments.run import run
from equipoise.experiments.store import Store
from equipoise.report import explore
from equipoise.report.explore import explored, rounded
from tests.experiments.workloads import spec
from tests.report.recorded import fill, in_small


def test_what_is_not_finite_is_left_out():
    assert rounded(np.array([1.23456, math.nan, math.inf, 1e-12])) == [1.235, None, None, 1e-12]


def test_long_curves_are_thinned_out(tmp_path, monkeypatch):
    monkeypatch.setattr(explore, "MOST", 10)
    experiment = in_small("dynamics-5", epochs=31)
    with Store(tmp_path / "runs.sqlite") as store:
        fill(store, experiment)
        store.put(run(spec()))
        made = explored([experiment], store)
        curves = store.curves(experiment.specs[0].key)
    assert len(made["runs"]) == 2, "a run of nothing that is shown"
    first = made["runs"][0]
    assert first["epochs"] == [1, 2, 4, 7, 10, 14, 19, 25, 31], "closer together at the start"
    places = np.array(first["epochs"]) - 1
    np.testing.assert_allclose(first["curves"]["loss"], curves["loss"][places], rtol=1e-3)
    np.testing.assert_allclose(first["curves"]["test_accuracy"], 100 * curves["test_accuracy"][places], rtol=1e-3)


def test_of_neurons_the_largest(tmp_path):
    experiment = in_small("conservation").narrowed()
    with Store(tmp_path / "runs.sqlite") as store:
        fill(store, experiment)
        made = explored([experiment], store)
        frame = store.recording(experiment.specs[2].key).unpack().frame()
    grid = next(one for one in made["layers"] if made["runs"][one["run"]]["key"] == experiment.specs[2].key)
    grid = grid["quantities"]["balance/c"]
    mine = frame[(frame.quantity == "balance/c") & (frame.layer == 2) & (frame.epoch == 3)].value
    assert grid["values"][1][2] == pytest.approx(mine.abs().max(), rel=1e-3)


def test_nothing_to_explore(tmp_path):
    with Store(tmp_path / "runs.sqlite") as store:
        made = explored([load("sgd")], store)
    assert (made["runs"], made["targets"], made["layers"]) == ([], [], [])

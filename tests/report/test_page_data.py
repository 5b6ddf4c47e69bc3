import math

import numpy as np
import pytest

from equipoise.experiments.parser import load_experiment
from equipoise.experiments.run import run
from equipoise.experiments.spec import RunSpec
from equipoise.experiments.store import Store
from equipoise.report import page_data as module
from equipoise.report.page_data import page_data, round_values
from tests.report.recordings import run_experiments, shrink_experiment


def test_non_finite_values_become_none():
    assert round_values(np.array([1.23456, math.nan, math.inf, 1e-12])) == [1.235, None, None, 1e-12]


def test_long_curves_are_downsampled(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_POINTS", 10)
    experiment = shrink_experiment("dynamics-5", epochs=31)
    unrelated = RunSpec(dataset="synthetic-citation", depth=2, width=8, lr=0.1, epochs=6)
    with Store(tmp_path / "runs.sqlite") as store:
        run_experiments(store, experiment)
        store.put(run(unrelated))
        data = page_data([experiment], store)
        curves = store.curves(experiment.specs[0].key)
    assert len(data["runs"]) == 2, "runs of other experiments are left out"
    first = data["runs"][0]
    assert first["epochs"] == [1, 2, 4, 7, 10, 14, 19, 25, 31], "denser at the beginning"
    index = np.array(first["epochs"]) - 1
    np.testing.assert_allclose(first["curves"]["loss"], curves["loss"][index], rtol=1e-3)
    np.testing.assert_allclose(first["curves"]["test_accuracy"], 100 * curves["test_accuracy"][index], rtol=1e-3)


def test_recorded_runs_of_another_length_are_shown(tmp_path):
    recorded, tabulated = shrink_experiment("dynamics-5", epochs=4), shrink_experiment("dynamics-5", epochs=6)
    with Store(tmp_path / "runs.sqlite") as store:
        run_experiments(store, recorded)
        data = page_data([tabulated], store)
    assert [entry["name"] for entry in data["experiments"]] == ["other recorded runs"]
    assert [len(data["runs"][entry["run"]]["epochs"]) for entry in data["layers"]] == [4, 4]


def test_heat_map_shows_the_largest_magnitude_over_neurons(tmp_path):
    experiment = shrink_experiment("conservation")
    key = experiment.specs[2].key
    with Store(tmp_path / "runs.sqlite") as store:
        run_experiments(store, experiment)
        data = page_data([experiment], store)
        frame = store.recording(key).unpack().frame()
    entry = next(entry for entry in data["layers"] if data["runs"][entry["run"]]["key"] == key)
    values = frame[(frame.quantity == "balance/c") & (frame.layer == 2) & (frame.epoch == 3)].value
    assert entry["quantities"]["balance/c"]["values"][1][2] == pytest.approx(values.abs().max(), rel=1e-3)


def test_store_without_runs_gives_empty_lists(tmp_path):
    with Store(tmp_path / "runs.sqlite") as store:
        data = page_data([load_experiment("sgd")], store)
    assert (data["runs"], data["experiments"], data["layers"]) == ([], [], [])

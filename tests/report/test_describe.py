from dataclasses import replace

import pandas as pd
import pytest

from equipoise.experiments.parser import load_experiment
from equipoise.experiments.store import Store
from equipoise.report.describe import describe_recordings
from equipoise.report.formats import as_latex, as_markdown
from equipoise.report.frames import frame_loader
from equipoise.report.tables import table_report
from tests.report.recordings import DYNAMICS, run_experiments, shrink_experiment


def make_frame(*rows):
    columns = ["epoch", "quantity", "layer", "neuron", "value"]
    return pd.DataFrame([(*row[:3], row[3] if len(row) > 4 else None, row[-1]) for row in rows], columns=columns)


def gradient_frame(values):
    rows = ((epoch, "gradient/features", layer, v * layer) for epoch, v in values.items() for layer in (1, 2))
    return make_frame(*rows)


def loader(experiment, **frames):
    """A frame loader that returns one frame per scheme."""
    by_key = {cell.specs[0].key: frames.get(cell.specs[0].init.replace("-", "_")) for cell in experiment.cells}
    return by_key.get


def test_gradients_are_compared_with_the_reference_scheme():
    experiment = replace(load_experiment("dynamics-10"), draws=("relative-gradient",))
    xav = gradient_frame({1: 2e-5, 25: 2e-5, 50: 1e-6})
    bal_o = gradient_frame({1: 4e-4, 20: 9.0, 25: 1e-3, 50: 3e-3, 75: 9.0})
    (sentence,) = describe_recordings(experiment, loader(experiment, xav=xav, bal_o=bal_o))
    assert sentence == (
        "cora, L = 10, sgd 0.05: ‖∇W‖/‖W‖ of the first layer at epoch 25: xav 2.0e-05, "
        "bal-o 1.0e-03 (50 ×, at most 3000 × at epoch 50)."
    )
    (sentence,) = describe_recordings(experiment, loader(experiment, bal_o=bal_o))
    assert sentence.endswith("at epoch 25: bal-o 1.0e-03.")


def test_zero_reference_gradient_gives_no_ratio():
    experiment = replace(load_experiment("dynamics-10"), draws=("relative-gradient",))
    xav, bal_o = gradient_frame({1: 0.0, 25: 0.0}), gradient_frame({1: 1.0, 25: 1.0})
    (sentence,) = describe_recordings(experiment, loader(experiment, xav=xav, bal_o=bal_o))
    assert sentence.endswith("xav 0.0e+00, bal-o 1.0e+00.")


def test_changes_are_given_as_ranges_over_layers():
    experiment = load_experiment("zero-change").subset(depth=[20])

    def change_frame(unchanged, moved):
        rows = [(9, "best/features_unchanged", layer, v) for layer, v in enumerate(unchanged, start=1)]
        return make_frame(*rows, *((9, "best/moved", layer, v) for layer, v in enumerate(moved, start=1)))

    frames = {"xav": change_frame([0.97, 0.99], [0, 0]), "bal_o": change_frame([0, 0.021], [0.3, 0.5])}
    (sentence,) = describe_recordings(experiment, loader(experiment, **frames))
    assert "xav 97 … 99 % unchanged, 0 % changed by more than 5 %; bal-o 0 … 2 % unchanged, 30 … 50 %" in sentence


def test_conservation_reports_residual_and_unpredicted_drift():
    experiment = load_experiment("conservation")
    rows = [(epoch, "balance/terms", 1, 0.02) for epoch in (1, 25)]
    for epoch, c, drift in ((1, 1.0, 1e-3), (25, 1.5, -4e-3)):
        for neuron, sign in enumerate((1.0, -1.0)):
            rows += [
                (epoch, "balance/c", 1, neuron, sign * c),
                (epoch, "balance/delta", 1, neuron, sign * 1e-9 * epoch),
                (epoch, "balance/drift", 1, neuron, drift),
                (epoch, "balance/predicted_drift", 1, neuron, drift + 2e-7 * neuron),
            ]
    sgd, adam = make_frame(*rows), make_frame(*(row for row in rows if "drift" not in row[1]))
    frames = {spec.key: sgd if spec.optimizer == "sgd" else adam for spec in experiment.specs}
    sentences = describe_recordings(experiment, frames.get)
    assert len(sentences) == 4
    with_adam = next(sentence for sentence in sentences if "adam" in sentence)
    assert with_adam == "cora L=3 xav seed 0, adam 0.1: largest |δ| 2.5e-08, with terms up to 2.0e-02."
    drift = "c drifts by at most 5.0e-01, in one step by at most 4.0e-03, of which 2.0e-07 is not predicted"
    assert all(drift in sentence for sentence in sentences if sentence != with_adam)


def test_no_sentences_without_recordings():
    for name in ("conservation", "dynamics-10", "sgd"):
        assert describe_recordings(load_experiment(name), lambda key: None) == []


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with Store(tmp_path_factory.mktemp("describe") / "runs.sqlite") as opened:
        run_experiments(opened, *map(shrink_experiment, DYNAMICS))
        yield opened


@pytest.mark.parametrize("name", DYNAMICS)
def test_real_recordings_are_described_in_every_format(store, name):
    report = table_report(shrink_experiment(name), store.results().values(), frame_loader(store))
    assert report.observations
    assert not any("nan" in sentence for sentence in report.observations)
    assert "Observations:" in as_markdown(report)
    assert as_latex(report).count(r"\item") >= len(report.observations) + len(report.notes)

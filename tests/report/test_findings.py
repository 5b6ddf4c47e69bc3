from dataclasses import replace

import pandas as pd
import pytest

from equipoise.experiments.files import load
from equipoise.experiments.store import Store
from equipoise.report.findings import findings
from equipoise.report.formats import as_latex, as_markdown
from equipoise.report.frames import frames_of
from equipoise.report.tables import report
from tests.report.recorded import DYNAMICS, fill, in_small


def frame(*rows):
    columns = ["epoch", "quantity", "layer", "neuron", "value"]
    return pd.DataFrame([(*row[:3], row[3] if len(row) > 4 else None, row[-1]) for row in rows], columns=columns)


def gradients(values):
    return frame(*((epoch, "gradient/features", layer, v * layer) for epoch, v in values.items() for layer in (1, 2)))


def recorded(experiment, **by_start):
    """Frames of the cells by their start."""
    keys = {cell.specs[0].key: by_start.get(cell.specs[0].init.replace("-", "_")) for cell in experiment.cells}
    return keys.get


def test_gradients_as_multiples_of_those_from_xavier():
    experiment = replace(load("dynamics-10"), draws=("relative-gradient",))
    xav, bal_o = gradients({1: 2e-5, 25: 2e-5, 50: 1e-6}), gradients({1: 4e-4, 20: 9.0, 25: 1e-3, 50: 3e-3, 75: 9.0})
    (said,) = findings(experiment, recorded(experiment, xav=xav, bal_o=bal_o))
    assert said == (
        "cora, L = 10, sgd 0.05: ‖∇W‖/‖W‖ of the first layer at epoch 25: xav 2.0e-05, "
        "bal-o 1.0e-03 (50 ×, at most 3000 × at epoch 50)."
    )
    (alone,) = findings(experiment, recorded(experiment, bal_o=bal_o))
    assert alone.endswith("at epoch 25: bal-o 1.0e-03.")


def test_which_weights_changed():
    experiment = load("zero-change").narrowed(depth=[20])

    def best(same, moved):
        rows = [(9, "best/features_unchanged", layer, v) for layer, v in enumerate(same, start=1)]
        return frame(*rows, *((9, "best/moved", layer, v) for layer, v in enumerate(moved, start=1)))

    frames = recorded(experiment, xav=best([0.97, 0.99], [0, 0]), bal_o=best([0, 0.021], [0.3, 0.5]))
    (said,) = findings(experiment, frames)
    assert "xav 97 … 99 % unchanged, 0 % changed by more than 5 %; bal-o 0 … 2 % unchanged, 30 … 50 %" in said


def test_what_is_conserved_and_what_of_its_drift_was_not_predicted():
    experiment = load("conservation")
    rows = [(epoch, "balance/terms", 1, 0.02) for epoch in (1, 25)]
    for epoch, c, drift in ((1, 1.0, 1e-3), (25, 1.5, -4e-3)):
        for neuron, sign in enumerate((1.0, -1.0)):
            rows += [
                (epoch, "balance/c", 1, neuron, sign * c),
                (epoch, "balance/delta", 1, neuron, sign * 1e-9 * epoch),
            ]
            rows += [(epoch, "balance/drift", 1, neuron, drift)]
            rows += [(epoch, "balance/predicted_drift", 1, neuron, drift + 2e-7 * neuron)]
    sgd, adam = frame(*rows), frame(*(row for row in rows if "drift" not in row[1]))
    frames = {spec.key: sgd if spec.optimizer == "sgd" else adam for spec in experiment.specs}
    said = findings(experiment, frames.get)
    assert len(said) == 4
    by_adam = next(sentence for sentence in said if "adam" in sentence)
    assert by_adam == "cora L=3 xav seed 0, adam 0.1: largest |δ| 2.5e-08, of terms up to 2.0e-02."
    assert all(
        "c moved by 5.0e-01 at most, in one step by 4.0e-03, of it not predicted 2.0e-07" in s
        for s in said
        if s != by_adam
    )


def test_without_recordings_nothing_is_said():
    for name in ("conservation", "dynamics-10", "sgd"):
        assert findings(load(name), lambda key: None) == []


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with Store(tmp_path_factory.mktemp("findings") / "runs.sqlite") as opened:
        fill(opened, *map(in_small, DYNAMICS))
        yield opened


@pytest.mark.parametrize("name", DYNAMICS)
def test_real_recordings_are_told_in_every_format(store, name):
    made = report(in_small(name), store.results().values(), frames_of(store))
    assert made.findings
    assert not any("nan" in sentence for sentence in made.findings)
    assert "What the runs show:" in as_markdown(made)
    assert as_latex(made).count(r"\item") >= len(made.findings) + len(made.notes)


def test_a_start_without_gradients_has_no_ratio():
    experiment = replace(load("dynamics-10"), draws=("relative-gradient",))
    xav = gradients({1: 0.0, 25: 0.0})
    (said,) = findings(experiment, recorded(experiment, xav=xav, bal_o=gradients({1: 1.0, 25: 1.0})))
    assert said.endswith("xav 0.0e+00, bal-o 1.0e+00.")

import numpy as np
import pandas as pd
import pytest
import torch

from equipoise.data.load import load_dataset
from equipoise.errors import EquipoiseError
from equipoise.init.schemes import initialize_
from equipoise.laws.discover import discover
from equipoise.nn.stack import Stack
from equipoise.report.changes import boxes, draw_parameter_change, draw_zero_change
from equipoise.report.dynamics import (
    bands,
    by_layer,
    draw_adam_gradients,
    draw_conservation,
    draw_dynamics,
    draw_relative_gradients,
)
from equipoise.report.figures import save_figure
from equipoise.train.protocol import train
from equipoise.train.recorder import Recorder

SETTINGS = {"data set": "synthetic", "layers": 4, "SGD": 0.2}


@pytest.fixture(scope="module")
def runs():
    """Four layers from two starts, six epochs each."""
    data, frames = load_dataset("synthetic-citation"), {}
    for scheme in ("xav", "bal-o"):
        model = Stack("gatv2", [data.num_features, 8, 8, 8, data.classes])
        initialize_(model, scheme, generator=torch.Generator().manual_seed(0))
        laws = discover(model, torch.rand(12, data.num_features), torch.randint(0, 12, (2, 40)))
        record = Recorder(model, laws, every=2)
        train(model, data, lr=0.2, epochs=6, record=record)
        frames[scheme] = record.frame()
    return frames


def drawings(runs):
    return {
        "conservation": draw_conservation({"GD": runs["xav"]}, runs, SETTINGS),
        "dynamics": draw_dynamics(runs, SETTINGS, "moved_half"),
        "relative-gradients": draw_relative_gradients(runs, SETTINGS),
        "adam-gradients": draw_adam_gradients({4: runs}, SETTINGS),
        "zero-change": draw_zero_change({4: runs}, SETTINGS),
        "parameter-change": draw_parameter_change({4: runs}, SETTINGS),
    }


def test_numbers_are_gathered_first(runs):
    table = by_layer(runs["bal-o"], "gradient/features")
    assert table.index.tolist() == [1, 2, 4, 6]
    assert table.columns.tolist() == [1, 2, 3, 4]
    found = bands(runs["xav"], "balance/c")
    rows = runs["xav"]
    mine = rows[(rows.quantity == "balance/c") & (rows.epoch == 2) & (rows.layer == 3)].value
    (band,) = found[(found.epoch == 2) & (found.layer == 3)].to_dict("records")
    assert (band["low"], band["median"], band["high"]) == (mine.min(), mine.median(), mine.max())


def test_boxes_are_what_matplotlib_takes(runs):
    stats = boxes(runs["bal-o"], "features")
    assert sorted(stats) == [1, 2, 3, 4]
    for box in stats.values():
        assert box["whislo"] <= box["q1"] <= box["med"] <= box["q3"] <= box["whishi"]


def test_lines_are_the_recorded_numbers(runs):
    figure = draw_dynamics(runs, SETTINGS)
    table = by_layer(runs["xav"], "gradient/features")
    drawn = [line.get_ydata() for line in figure.axes[1].get_lines()]
    np.testing.assert_allclose(np.stack(drawn, axis=1), table.to_numpy())
    figure = draw_zero_change({4: runs}, SETTINGS)
    first = figure.axes[0].get_lines()[0].get_ydata()
    np.testing.assert_allclose(first, by_layer(runs["xav"], "best/features_unchanged").iloc[-1])


def test_every_figure_has_its_settings_and_axes(runs):
    for name, figure in drawings(runs).items():
        text = figure.get_supxlabel()
        assert "data set synthetic, layers 4, SGD 0.2" in text, name
        assert all(ax.get_xlabel() for ax in figure.axes if ax.lines and ax.get_title()), name


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_every_format(runs, tmp_path, ending):
    for name, figure in drawings(runs).items():
        assert save_figure(figure, tmp_path / f"{name}.{ending}").stat().st_size > 1000


def test_what_is_not_recorded_is_named():
    empty = pd.DataFrame(columns=["epoch", "quantity", "layer", "neuron", "value"])
    with pytest.raises(EquipoiseError, match="nothing is recorded of gradient/features"):
        by_layer(empty, "gradient/features")

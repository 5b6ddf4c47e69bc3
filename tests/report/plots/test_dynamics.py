import numpy as np
import pandas as pd
import pytest

from equipoise.errors import EquipoiseError
from equipoise.report.frames import layer_table, neuron_bands
from equipoise.report.plots.dynamics import (
    draw_adam_gradients,
    draw_conservation,
    draw_dynamics,
    draw_relative_gradients,
)
from equipoise.report.plots.style import save_figure

SETTINGS = {"data set": "synthetic", "layers": 4, "SGD": 0.2}


def draw_all(runs):
    return {
        "conservation": draw_conservation({"GD": runs["xav"]}, runs, SETTINGS),
        "dynamics": draw_dynamics(runs, SETTINGS, "moved_half"),
        "relative-gradients": draw_relative_gradients(runs, SETTINGS),
        "adam-gradients": draw_adam_gradients({4: runs}, SETTINGS),
    }


def test_layer_table_has_one_row_per_epoch_and_one_column_per_layer(runs):
    table = layer_table(runs["bal-o"], "gradient/features")
    assert table.index.tolist() == [1, 2, 4, 6]
    assert table.columns.tolist() == [1, 2, 3, 4]


def test_bands_span_the_neurons_of_a_layer(runs):
    frame, bands = runs["xav"], neuron_bands(runs["xav"], "balance/c")
    values = frame[(frame.quantity == "balance/c") & (frame.epoch == 2) & (frame.layer == 3)].value
    (band,) = bands[(bands.epoch == 2) & (bands.layer == 3)].to_dict("records")
    assert (band["low"], band["median"], band["high"]) == (values.min(), values.median(), values.max())


def test_missing_quantity_is_named():
    empty = pd.DataFrame(columns=["epoch", "quantity", "layer", "neuron", "value"])
    with pytest.raises(EquipoiseError, match="gradient/features was not recorded"):
        layer_table(empty, "gradient/features")


def test_lines_are_the_recorded_gradients(runs):
    figure = draw_dynamics(runs, SETTINGS)
    table = layer_table(runs["xav"], "gradient/features")
    lines = [line.get_ydata() for line in figure.axes[1].get_lines()]
    np.testing.assert_allclose(np.stack(lines, axis=1), table.to_numpy())


def test_relative_gradients_of_chosen_layers(runs):
    figure = draw_relative_gradients(runs, SETTINGS, layers=(1, 2, 3, 4))
    labels = [line.get_label() for line in figure.axes[0].get_lines()]
    assert labels == [f"W, layer {layer}" for layer in (1, 2, 3, 4)]


def test_captions_and_axis_labels(runs):
    for name, figure in draw_all(runs).items():
        assert "data set synthetic, layers 4, SGD 0.2" in figure.get_supxlabel(), name
        assert all(ax.get_xlabel() for ax in figure.axes if ax.lines and ax.get_title()), name


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_all_formats(runs, tmp_path, suffix):
    for name, figure in draw_all(runs).items():
        assert save_figure(figure, tmp_path / f"{name}.{suffix}").stat().st_size > 1000

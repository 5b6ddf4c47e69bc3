import numpy as np
import pytest
import torch
from torch import nn

from equipoise.laws.discover import discover
from equipoise.report.plots.imbalance import draw_imbalance, gather_imbalance


@pytest.fixture
def laws():
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3))
    return discover(model, torch.randn(6, 5))


def test_panel_has_the_imbalance_of_every_law(laws):
    panel = gather_imbalance(laws, "a title")
    assert panel.labels == ("0.weight", "2.weight")
    np.testing.assert_allclose(panel.values[0], laws[0].imbalance().numpy())


def test_every_neuron_is_drawn_once(laws):
    panel = gather_imbalance(laws, "a title")
    figure = draw_imbalance([panel, panel])
    for ax in figure.axes:
        markers = np.concatenate(
            [points.get_offsets()[:, 1] for points in ax.collections if hasattr(points, "get_sizes")]
        )
        np.testing.assert_allclose(np.sort(markers), np.sort(np.concatenate(panel.values)))
        assert ax.get_title() == "a title"

import numpy as np
import pytest
import torch
from torch import nn

from equipoise.errors import EquipoiseError
from equipoise.laws.discover import discover
from equipoise.report.figures import draw_imbalance, gather_imbalance, save_figure


@pytest.fixture
def laws():
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3))
    return discover(model, torch.randn(6, 5))


def test_numbers_come_first(laws):
    panel = gather_imbalance(laws, "a title")
    assert panel.labels == ("0.weight", "2.weight")
    np.testing.assert_allclose(panel.values[0], laws[0].imbalance().numpy())


def test_every_neuron_is_drawn_once(laws):
    panel = gather_imbalance(laws, "a title")
    figure = draw_imbalance([panel, panel])
    for ax in figure.axes:
        drawn = np.concatenate(
            [points.get_offsets()[:, 1] for points in ax.collections if hasattr(points, "get_sizes")]
        )
        np.testing.assert_allclose(np.sort(drawn), np.sort(np.concatenate(panel.values)))
        assert ax.get_title() == "a title"


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_saves_what_the_ending_says(laws, tmp_path, ending):
    path = save_figure(draw_imbalance([gather_imbalance(laws, "")]), tmp_path / "new" / f"c.{ending}")
    starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    assert path.read_bytes().startswith(starts[ending])


def test_what_cannot_be_written_is_an_error(laws, tmp_path):
    figure = draw_imbalance([gather_imbalance(laws, "")])
    with pytest.raises(EquipoiseError, match=r"cannot be written(.|\n)*name a .png"):
        save_figure(figure, tmp_path / "c.nonsense")
    (tmp_path / "file").write_text("")
    with pytest.raises(EquipoiseError, match="cannot be written"):
        save_figure(figure, tmp_path / "file" / "c.png")

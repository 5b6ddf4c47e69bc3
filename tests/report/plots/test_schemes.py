import pytest
from rich.console import Console

from equipoise.report.plots.schemes import SchemeRun, draw_schemes, scheme_table
from equipoise.training.history import History


@pytest.fixture
def runs():
    curves = {"loss": [2.0, 1.0], "val_metric": [0.2, 0.7], "test_metric": [0.25, 0.75]}
    return [
        SchemeRun("xav", History(**curves), 0.0, [1e-9, 1e-3]),
        SchemeRun("bal-o", History(**curves), 0.5, [0.0, 1e-3]),
    ]


def test_draws_curves_and_gradients_of_every_scheme(runs):
    accuracy, loss, gradients = draw_schemes(runs, "a title", gradient_epoch=2).axes
    assert [line.get_label() for line in accuracy.get_lines()] == ["xav", "bal-o"]
    assert accuracy.get_lines()[0].get_ydata().tolist() == [25.0, 75.0]
    assert loss.get_lines()[1].get_ydata().tolist() == [2.0, 1.0]
    assert gradients.get_lines()[1].get_ydata()[0] > 0, "zero is clipped on the logarithmic axis"


def test_table_has_one_row_per_scheme(runs):
    console = Console(width=120, record=True)
    console.print(scheme_table(runs))
    text = console.export_text()
    assert "init" in text
    assert any("bal-o" in line and "50 %" in line for line in text.splitlines())

import pandas as pd
import pytest

from equipoise.errors import EquipoiseError
from equipoise.report.results import draw_results


@pytest.fixture
def summary():
    rows = [
        {"width": width, "depth": depth, "scheme": scheme, "accuracy": 80.0 - depth - place, "epochs": 100.0 * depth}
        for width in (64, 128)
        for depth in (2, 5, 10)
        for place, scheme in enumerate(("xav", "bal-o"))
    ]
    return pd.DataFrame(rows).assign(accuracy_ci=1.5, epochs_ci=20.0)


def test_a_row_of_panels_for_every_measure(summary):
    figure = draw_results(summary, {"data set": "Cora"}, panel="width")
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == ["width 64", "width 128", "", ""]
    assert figure.axes[0].get_ylabel() == "test accuracy (%)"
    assert figure.axes[2].get_ylabel() == "epochs to the best model"
    assert "Cora" in figure.get_supxlabel()


def test_means_and_intervals_are_drawn(summary):
    figure = draw_results(summary[summary.width == 64], {}, measures=("accuracy",))
    (ax,) = figure.axes
    line, _, (interval,) = ax.containers[0]
    assert line.get_ydata().tolist() == [78.0, 75.0, 70.0]
    low, high = interval.get_segments()[0][:, 1]
    assert high - low == pytest.approx(3.0)


def test_columns_that_are_missing_are_named(summary):
    with pytest.raises(EquipoiseError, match="the summary has no epochs_ci"):
        draw_results(summary.drop(columns="epochs_ci"), {})

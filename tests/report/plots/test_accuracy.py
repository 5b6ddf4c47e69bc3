import pandas as pd
import pytest

from equipoise.errors import EquipoiseError
from equipoise.report.plots.accuracy import draw_accuracy


@pytest.fixture
def summary():
    rows = [
        {"width": width, "depth": depth, "scheme": scheme, "accuracy": 80.0 - depth - number, "epochs": 100.0 * depth}
        for width in (64, 128)
        for depth in (2, 5, 10)
        for number, scheme in enumerate(("xav", "bal-o"))
    ]
    return pd.DataFrame(rows).assign(accuracy_ci=1.5, epochs_ci=20.0)


def test_one_row_of_panels_per_measure(summary):
    figure = draw_accuracy(summary, {"data set": "Cora"}, panel="width")
    assert [ax.get_title() for ax in figure.axes] == ["width 64", "width 128", "", ""]
    assert figure.axes[0].get_ylabel() == "test accuracy (%)"
    assert figure.axes[2].get_ylabel() == "epochs to the best model"
    assert "Cora" in figure.get_supxlabel()


def test_means_and_intervals_are_drawn(summary):
    figure = draw_accuracy(summary[summary.width == 64], {}, measures=("accuracy",))
    (ax,) = figure.axes
    line, _, (interval,) = ax.containers[0]
    assert line.get_ydata().tolist() == [78.0, 75.0, 70.0]
    low, high = interval.get_segments()[0][:, 1]
    assert high - low == pytest.approx(3.0)


def test_panels_of_one_measure_fill_rows_of_equal_length(summary):
    wide = pd.concat([summary.assign(width=width) for width in range(5)])
    wide = wide[(wide.width < 4) | (wide.depth == 2)]
    figure = draw_accuracy(wide, {}, panel="width", measures=("accuracy",))
    assert [ax.get_visible() for ax in figure.axes] == [True] * 5 + [False]
    assert [ax.get_ylabel() != "" for ax in figure.axes] == [True, False, False] * 2
    assert figure.axes[4].get_xlim() == figure.axes[0].get_xlim()
    assert figure.axes[4].get_ylim() == figure.axes[0].get_ylim()


def test_published_numbers_are_open_markers(summary):
    one = summary[summary.width == 64].assign(paper_accuracy=70.0, paper_accuracy_ci=2.0)
    figure = draw_accuracy(one, {}, measures=("accuracy",))
    (ax,) = figure.axes
    ours, paper, *_ = (container[0] for container in ax.containers)
    assert ours.get_markerfacecolor() != "none"
    assert paper.get_markerfacecolor() == "none"
    assert paper.get_ydata().tolist() == [70.0] * 3
    assert "open markers: published" in figure.get_supxlabel()
    assert ax.get_legend_handles_labels()[1] == ["xav", "bal-o"]


def test_score_of_a_constant_prediction_is_a_line_where_there_is_one(summary):
    text = "thin line: a constant prediction"
    figure = draw_accuracy(summary.assign(constant=31.9), {}, panel="width")
    assert text in figure.get_supxlabel()
    lines = [[line for line in ax.lines if list(line.get_ydata()) == [31.9, 31.9]] for ax in figure.axes]
    assert [len(line) for line in lines] == [1, 1, 0, 0], "in the panels of accuracy, not in those of epochs"
    two = draw_accuracy(summary.assign(constant=summary.width / 4), {}, measures=("accuracy",))
    assert not any(list(line.get_ydata()) == [16.0, 16.0] for line in two.axes[0].lines)
    assert text not in draw_accuracy(summary, {}, panel="width").get_supxlabel()


def test_missing_columns_are_named(summary):
    with pytest.raises(EquipoiseError, match="the summary has no epochs_ci"):
        draw_accuracy(summary.drop(columns="epochs_ci"), {})

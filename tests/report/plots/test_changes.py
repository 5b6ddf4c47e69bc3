import numpy as np

from equipoise.report.frames import layer_table
from equipoise.report.plots.changes import box_stats, draw_parameter_change, draw_zero_change

SETTINGS = {"data set": "synthetic"}


def test_box_statistics_are_ordered(runs):
    stats = box_stats(runs["bal-o"], "features")
    assert sorted(stats) == [1, 2, 3, 4]
    for box in stats.values():
        assert box["whislo"] <= box["q1"] <= box["med"] <= box["q3"] <= box["whishi"]


def test_zero_change_draws_the_recorded_shares(runs):
    figure = draw_zero_change({4: runs}, SETTINGS)
    features, attention = (line.get_ydata() for line in figure.axes[0].get_lines()[:2])
    np.testing.assert_allclose(features, layer_table(runs["xav"], "best/features_unchanged").iloc[-1])
    np.testing.assert_allclose(attention, layer_table(runs["xav"], "best/attention_unchanged").iloc[-1])
    assert "data set synthetic" in figure.get_supxlabel()


def test_parameter_change_has_two_rows_per_depth(runs):
    figure = draw_parameter_change({4: runs}, SETTINGS)
    assert [ax.get_title() for ax in figure.axes] == ["L = 4: features", "L = 4: attention"]
    assert len(figure.axes[0].patches) == 4 * len(runs)
    assert "data set synthetic" in figure.get_supxlabel()

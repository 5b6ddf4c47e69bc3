import pandas as pd

from equipoise.report.plots.depth import draw_depth


def test_one_line_per_scheme_and_hollow_markers_for_short_runs():
    rows = [
        {"depth": depth, "scheme": scheme, "gradient": gradient, "imbalance": 0.5, "distance": 0.1, "loss_end": 1.0}
        for scheme, gradients in {"default": (1e-3, 0.0), "bal-o": (1e-2, 1e-2)}.items()
        for depth, gradient in zip((2, 20), gradients, strict=True)
    ]
    summary = pd.DataFrame(rows).assign(note=["", "ended early", "", ""])
    figure = draw_depth(summary, "a title")
    default, hollow, balanced, none = figure.axes[0].get_lines()
    assert (default.get_label(), balanced.get_label()) == ("default", "bal-o")
    assert default.get_ydata()[1] > 0, "zero is clipped on the logarithmic axis"
    assert hollow.get_xdata().tolist() == [20]
    assert none.get_xdata().tolist() == []
    assert "ended early" in figure.axes[3].get_xlabel()

import json

import numpy as np
import pytest

from equipoise.bench.report import (
    BenchReport,
    FirstCall,
    ScalingCurve,
    SkippedTask,
    Timing,
    linear_fit,
    report_tables,
)


def test_linear_fit_recovers_a_line():
    x = [1000, 2000, 5000, 9000]
    fit = linear_fit(x, [4.0 + 0.003 * value for value in x])
    assert (fit.offset, fit.slope, fit.r2) == pytest.approx((4.0, 0.003, 1.0))
    assert fit(10_000) == pytest.approx(34.0)


def test_r2_is_the_squared_correlation():
    x = np.linspace(0, 10, 200)
    y = 2 * x + np.random.default_rng(0).normal(size=200)
    fit = linear_fit(x, y)
    assert fit.slope == pytest.approx(2, abs=0.1)
    assert fit.r2 == pytest.approx(np.corrcoef(x, y)[0, 1] ** 2)


def test_r2_of_a_parabola_is_zero():
    x = np.arange(-5, 6)
    assert linear_fit(x, x**2).r2 == pytest.approx(0.0, abs=1e-9)


def test_report_survives_json():
    report = BenchReport(
        {"cores": "2"},
        [Timing("a", 1, {"equipoise": [1.0]})],
        skipped=[SkippedTask("b", "reason", failed=True)],
    )
    assert BenchReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report


def test_width_has_no_linear_fit():
    values = [1.0, 2.0, 3.0]
    assert ScalingCurve("width", "ms", [16, 32, 64], values, values).fits() == {}
    assert ScalingCurve("depth", "ms", [2, 4, 6], values, values).fits()["PyG"].slope == pytest.approx(0.5)


def test_first_call_has_a_table():
    (table,) = report_tables(BenchReport(first_call=FirstCall(12.0, 0.5)))
    assert [row[1] for row in table.rows] == ["12.0", "0.50"]

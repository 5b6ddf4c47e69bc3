import numpy as np
import pytest

from equipoise.bench.scaling import fit


def test_a_line_is_found_again():
    x = [1000, 2000, 5000, 9000]
    line = fit(x, [4.0 + 0.003 * value for value in x])
    assert (line.offset, line.slope, line.r2) == pytest.approx((4.0, 0.003, 1.0))
    assert line(10_000) == pytest.approx(34.0)


def test_noise_lowers_r2_as_it_should():
    generator = np.random.default_rng(0)
    x = np.linspace(0, 10, 200)
    line = fit(x, 2 * x + generator.normal(size=200))
    assert line.slope == pytest.approx(2, abs=0.1)
    assert line.r2 == pytest.approx(np.corrcoef(x, 2 * x + np.random.default_rng(0).normal(size=200))[0, 1] ** 2)


def test_a_parabola_is_no_line():
    x = np.arange(-5, 6)
    assert fit(x, x**2).r2 == pytest.approx(0.0, abs=1e-9)

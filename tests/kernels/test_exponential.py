import numpy as np
import pytest

from equipoise.kernels.compiled import compiled
from equipoise.kernels.exponential import exponential


@compiled
def each(x):
    out = np.empty_like(x)
    for k in range(len(x)):
        out[k] = exponential(x[k])
    return out


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 3e-7), (np.float64, 1e-15)])
def test_is_the_exponential_up_to_zero(dtype, tolerance):
    x = np.concatenate([-np.logspace(-9, np.log10(87), 20_000), [0.0, -1.0, -np.log(2) / 2]]).astype(dtype)
    np.testing.assert_allclose(each(x), np.exp(x.astype(np.float64)), rtol=tolerance)


def test_far_below_zero_it_is_next_to_nothing_and_nan_stays():
    x = np.array([-88.0, -1e4, -np.inf, np.nan], np.float32)
    values = each(x)
    assert (values[:3] < 2e-38).all()
    assert (values[:3] >= 0).all()
    assert np.isnan(values[3])

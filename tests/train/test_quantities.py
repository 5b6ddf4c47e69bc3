import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from equipoise.train.quantities import (
    absolute_change,
    box,
    changes,
    distances,
    relative_change,
    relative_gradient_norm,
    share,
    update_size,
)

SEEDS = st.integers(0, 10_000)


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_relative_gradient_norm_is_of_all_parameters_together():
    a, b = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(5))
    (3 * a).pow(2).sum().backward()
    expected = a.grad.norm() / torch.cat([a.detach().flatten(), b.detach()]).norm()
    assert relative_gradient_norm([a, b]) == pytest.approx(float(expected))


def test_relative_gradient_norm_at_zero():
    zero = nn.Parameter(torch.zeros(3))
    assert relative_gradient_norm([zero]) == 0.0
    zero.sum().backward()
    assert math.isinf(relative_gradient_norm([zero]))


def test_insignificant_weights_do_not_count():
    now, start = torch.tensor([1.0, 1.0, 5e-5, -2.0]), torch.tensor([1.0, 0.5, 1.0, -1.0])
    assert relative_change(now, start).tolist() == [0.0, 0.5, 0.5]
    assert changes([now], [start]) == pytest.approx((1 / 3, 2 / 3, 0.0, 1 / 3))
    assert changes([torch.zeros(3)], [torch.ones(3)]) == (0.0, 0.0, 0.0, 0.0)
    assert changes([], []) == (0.0, 0.0, 0.0, 0.0)
    assert distances([], []) == (0.0, 0.0)


@given(SEEDS)
def test_update_size_against_one_long_vector(seed):
    before = [draw(seed, 3, 2), draw(seed + 1, 4)]
    after = [value + 0.1 * draw(seed + 2, *value.shape) for value in before]
    old, new = (torch.cat([value.flatten() for value in values]) for values in (before, after))
    assert update_size(after, before) == pytest.approx(float((new - old).norm() / old.norm()), rel=1e-12)


def test_update_size_from_zero():
    assert update_size([torch.zeros(2)], [torch.zeros(2)]) == 0.0
    assert math.isinf(update_size([torch.ones(2)], [torch.zeros(2)]))


@given(SEEDS, st.floats(0.01, 2.0))
def test_changes_entry_by_entry(seed, significant):
    now, start = draw(seed, 5, 4), draw(seed + 1, 5, 4)
    pairs = list(zip(now.flatten().tolist(), start.flatten().tolist(), strict=True))
    relative = [abs((w - w0) / w) for w, w0 in pairs if abs(w) >= significant]
    np.testing.assert_allclose(relative_change(now, start, significant), relative, rtol=1e-12)
    np.testing.assert_allclose(absolute_change(now, start), [abs(a - b) for a, b in pairs], rtol=1e-12)
    now[0] = start[0]
    long = np.concatenate([absolute_change(now, start), absolute_change(start, start)])
    assert distances([now, start], [start, start]) == pytest.approx((long.mean(), 24 / 40), rel=1e-12)


@given(SEEDS, st.floats(0.01, 2.0), st.sampled_from([torch.float32, torch.float64]))
def test_changes_are_those_of_the_long_row(seed, significant, dtype):
    start = [draw(seed, 7, 5).to(dtype), draw(seed + 1, 9).to(dtype)]
    now = [value * (1 + draw(seed + 2, *value.shape).to(dtype).relu()) for value in start]
    long = np.concatenate([relative_change(new, old, significant) for new, old in zip(now, start, strict=True)])
    expected = [long.mean() if len(long) else 0.0, share(long > 0.05), share(long > 0.5), share(long == 0)]
    assert changes(now, start, significant) == pytest.approx(expected, rel=1e-5 if dtype == torch.float32 else 1e-12)


def test_share_of_nothing_is_zero():
    assert share(np.zeros(0, dtype=bool)) == 0.0


@given(SEEDS, st.integers(1, 40))
def test_box_against_numpy_and_a_slow_rule(seed, count):
    numbers = draw(seed, count).exp().numpy()
    q1, median, q3 = np.percentile(numbers, [25, 50, 75])
    inside = [v for v in numbers if q1 - 1.5 * (q3 - q1) <= v <= q3 + 1.5 * (q3 - q1)]
    expected = {"low": min(inside), "q1": q1, "median": median, "q3": q3, "high": max(inside), "mean": numbers.mean()}
    assert box(numbers) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_any_kind_of_number(dtype):
    now, start = torch.tensor([2.0, 4.0], dtype=dtype), torch.tensor([1.0, 4.0], dtype=dtype)
    assert relative_change(now, start).tolist() == [0.5, 0.0]
    assert update_size([now], [start]) == pytest.approx(1 / 17**0.5)

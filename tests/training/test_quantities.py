import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from equipoise.training.quantities import (
    absolute_change,
    absolute_change_stats,
    box_stats,
    fraction,
    relative_change,
    relative_change_stats,
    relative_gradient_norm,
    smoothness,
    update_size,
)

SEEDS = st.integers(0, 10_000)


def random_tensor(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_relative_gradient_norm_of_all_parameters_together():
    a, b = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(5))
    (3 * a).pow(2).sum().backward()
    expected = a.grad.norm() / torch.cat([a.detach().flatten(), b.detach()]).norm()
    assert relative_gradient_norm([a, b]) == pytest.approx(float(expected))


def test_relative_gradient_norm_of_zero_weights():
    zero = nn.Parameter(torch.zeros(3))
    assert relative_gradient_norm([zero]) == 0.0
    zero.sum().backward()
    assert math.isinf(relative_gradient_norm([zero]))


def test_insignificant_weights_are_ignored():
    now, initial = torch.tensor([1.0, 1.0, 5e-5, -2.0]), torch.tensor([1.0, 0.5, 1.0, -1.0])
    assert relative_change(now, initial).tolist() == [0.0, 0.5, 0.5]
    assert relative_change_stats([now], [initial]) == pytest.approx((1 / 3, 2 / 3, 0.0, 1 / 3))
    assert relative_change_stats([torch.zeros(3)], [torch.ones(3)]) == (0.0, 0.0, 0.0, 0.0)
    assert relative_change_stats([], []) == (0.0, 0.0, 0.0, 0.0)
    assert absolute_change_stats([], []) == (0.0, 0.0)


@given(SEEDS)
def test_update_size_against_concatenated_parameters(seed):
    before = [random_tensor(seed, 3, 2), random_tensor(seed + 1, 4)]
    after = [value + 0.1 * random_tensor(seed + 2, *value.shape) for value in before]
    old, new = (torch.cat([value.flatten() for value in values]) for values in (before, after))
    assert update_size(after, before) == pytest.approx(float((new - old).norm() / old.norm()), rel=1e-12)


def test_update_size_from_zero():
    assert update_size([torch.zeros(2)], [torch.zeros(2)]) == 0.0
    assert math.isinf(update_size([torch.ones(2)], [torch.zeros(2)]))


@given(SEEDS, st.floats(0.01, 2.0))
def test_changes_against_a_loop_over_entries(seed, significant):
    now, initial = random_tensor(seed, 5, 4), random_tensor(seed + 1, 5, 4)
    pairs = list(zip(now.flatten().tolist(), initial.flatten().tolist(), strict=True))
    relative = [abs((w - w0) / w) for w, w0 in pairs if abs(w) >= significant]
    np.testing.assert_allclose(relative_change(now, initial, significant), relative, rtol=1e-12)
    np.testing.assert_allclose(absolute_change(now, initial), [abs(a - b) for a, b in pairs], rtol=1e-12)
    now[0] = initial[0]
    changes = np.concatenate([absolute_change(now, initial), absolute_change(initial, initial)])
    stats = absolute_change_stats([now, initial], [initial, initial])
    assert stats == pytest.approx((changes.mean(), 24 / 40), rel=1e-12)


@given(SEEDS, st.floats(0.01, 2.0), st.sampled_from([torch.float32, torch.float64]))
def test_relative_change_stats_against_concatenated_changes(seed, significant, dtype):
    initial = [random_tensor(seed, 7, 5).to(dtype), random_tensor(seed + 1, 9).to(dtype)]
    now = [value * (1 + random_tensor(seed + 2, *value.shape).to(dtype).relu()) for value in initial]
    changes = np.concatenate([relative_change(new, old, significant) for new, old in zip(now, initial, strict=True)])
    mean = changes.mean() if len(changes) else 0.0
    expected = [mean, fraction(changes > 0.05), fraction(changes > 0.5), fraction(changes == 0)]
    rel = 1e-5 if dtype == torch.float32 else 1e-12
    assert relative_change_stats(now, initial, significant) == pytest.approx(expected, rel=rel)


def test_fraction():
    assert fraction(np.array([True, False, False, True])) == 0.5
    assert fraction(np.zeros(0, dtype=bool)) == 0.0


@given(SEEDS, st.integers(1, 40))
def test_box_stats_against_numpy_percentiles(seed, count):
    values = random_tensor(seed, count).exp().numpy()
    q1, median, q3 = np.percentile(values, [25, 50, 75])
    inliers = [v for v in values if q1 - 1.5 * (q3 - q1) <= v <= q3 + 1.5 * (q3 - q1)]
    expected = {"low": min(inliers), "q1": q1, "median": median, "q3": q3, "high": max(inliers), "mean": values.mean()}
    assert box_stats(values) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_any_floating_point_dtype(dtype):
    now, initial = torch.tensor([2.0, 4.0], dtype=dtype), torch.tensor([1.0, 4.0], dtype=dtype)
    assert relative_change(now, initial).tolist() == [0.5, 0.0]
    assert update_size([now], [initial]) == pytest.approx(1 / 17**0.5)


NODES = 7


@st.composite
def graphs(draw):
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    edges = draw(st.integers(1, 25))
    h = torch.randn(NODES, 3, generator=generator, dtype=torch.float64)
    return h, torch.randint(0, NODES, (2, edges), generator=generator)


def neighbours(edge_index, i):
    return [j for j, target in edge_index.t().tolist() if target == i]


@given(graphs())
def test_dirichlet_energy_against_a_loop_over_nodes(sample):
    h, edge_index = sample
    total = sum(float((h[i] - h[j]).pow(2).sum()) for i in range(NODES) for j in neighbours(edge_index, i))
    assert smoothness(h, edge_index).dirichlet == pytest.approx(total / NODES, rel=1e-12)
    assert smoothness(h, edge_index, num_targets=2).dirichlet == pytest.approx(total / 2, rel=1e-12)


@given(graphs())
def test_mean_average_distance_against_a_loop_over_nodes(sample):
    h, edge_index = sample
    means = []
    for i in range(NODES):
        sources = neighbours(edge_index, i)
        if sources:
            cosines = [float(torch.cosine_similarity(h[i], h[j], dim=0)) for j in sources]
            means.append(sum(1 - cosine for cosine in cosines) / len(sources))
    assert smoothness(h, edge_index).mad == pytest.approx(sum(means) / len(means), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_dtypes_and_a_non_contiguous_view(dtype):
    wide, edge_index = torch.randn(NODES, 8).to(dtype), torch.randint(0, NODES, (2, 12))
    expected = smoothness(wide[:, :3].double().contiguous(), edge_index)
    assert smoothness(wide[:, :3], edge_index) == pytest.approx(expected, rel=1e-6)


def test_zero_vectors_have_distance_zero():
    edge_index = torch.tensor([[0, 1], [1, 0]])
    assert smoothness(torch.zeros(2, 3), edge_index).mad == 0.0
    same_direction = torch.tensor([[1.0, 2.0], [10.0, 20.0]])
    assert smoothness(same_direction, edge_index).mad == pytest.approx(0.0, abs=1e-12)
    assert smoothness(same_direction, edge_index).dirichlet > 100

"""The cost model against partitions on disk and against simulated random partitions."""

import numpy as np
import pytest

import equipoise as eq
from equipoise.distributed.cost import exchange_bytes, exchange_cost, expected_halo
from equipoise.distributed.parts.summary import read_summary


def test_bytes_are_those_of_the_rows_that_a_rank_receives(tmp_path):
    summary = eq.partition(eq.load_dataset("synthetic-citation"), 3, tmp_path / "parts", method="blocks")
    for rank, rows in enumerate(summary.receive):
        part = eq.load_part(tmp_path / "parts", rank)
        halo = part.x.new_empty(len(part.halo), 64)
        assert exchange_bytes(rows, 64) == halo.numel() * halo.element_size()
    assert read_summary(tmp_path / "parts") == summary


@pytest.mark.parametrize("parts", [2, 5])
@pytest.mark.parametrize("degree", [1, 4])
def test_expected_halo_of_a_random_partition(parts, degree):
    """Equal degrees: the estimate is the mean. Unequal degrees with the same mean: an upper bound."""
    rng = np.random.default_rng(0)
    nodes = 20_000

    def halo(source):
        owner = rng.integers(parts, size=nodes)
        target = rng.integers(nodes, size=len(source))
        remote = owner[source] != owner[target]
        return len(np.unique(source[remote] * parts + owner[target[remote]]))

    estimate = expected_halo(nodes, nodes * degree, parts)
    assert halo(np.repeat(np.arange(nodes), degree)) == pytest.approx(estimate, rel=0.02)
    assert halo(np.repeat(np.arange(nodes // 2), 2 * degree)) < estimate


def test_one_part_exchanges_nothing():
    assert expected_halo(1000, 5000, 1) == 0
    assert expected_halo(0, 0, 4) == 0


def test_time_is_bytes_over_bandwidth_plus_latency():
    cost = exchange_cost(1000, width=125, layers=2, gbits=1, latency=0.5)
    assert cost.rank_bytes == 500_000
    assert cost.epoch_bytes == 4 * 500_000
    assert cost.epoch_seconds == pytest.approx(4 * (0.004 + 0.5))

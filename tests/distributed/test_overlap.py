"""The order of work on a part."""

import numpy as np
import pytest
import torch

from equipoise.distributed.overlap import MAX_NODES, plan_overlap
from equipoise.kernels.csr import CHUNK, build_graph

OWN, HALO, READERS = 2000, 300, 290


def part_edges(*, symmetric):
    """Edges between own nodes, and edges from the halo to the last own nodes."""
    generator = torch.Generator().manual_seed(0)
    inside = torch.randint(OWN, (2, 6000), generator=generator)
    if symmetric:
        inside = torch.cat([inside, inside.flip(0)], dim=1)
    halo = OWN + torch.randint(HALO, (READERS,), generator=generator)
    edges = torch.cat([inside, torch.stack([halo, torch.arange(OWN - READERS, OWN)])], dim=1)
    return edges[:, torch.randperm(edges.shape[1], generator=generator)]


def nodes_of(ranges, order):
    return sorted(np.concatenate([order[lo:hi] for lo, hi in ranges]))


@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
def test_whole_chunks_without_halo_are_inner(symmetric, self_loops):
    plan = plan_overlap(build_graph(part_edges(symmetric=symmetric), (OWN + HALO, OWN), self_loops))
    assert plan.symmetric == symmetric
    inner = (OWN - READERS) // CHUNK * CHUNK
    assert nodes_of(plan.inner, plan.by_target.order) == list(range(inner))
    assert nodes_of(plan.boundary, plan.by_target.order) == list(range(inner, OWN))


@pytest.mark.parametrize("symmetric", [False, True])
def test_sources_are_own_nodes_then_the_halo(symmetric):
    plan = plan_overlap(build_graph(part_edges(symmetric=symmetric), (OWN + HALO, OWN), self_loops=True))
    assert nodes_of(plan.own, plan.by_source.order) == list(range(OWN))
    assert nodes_of(plan.halo, plan.by_source.order) == list(range(OWN, OWN + HALO))


def test_ranges_are_short_enough_to_share():
    nodes = 2 * MAX_NODES + 5
    plan = plan_overlap(build_graph(torch.empty(2, 0, dtype=torch.long), (nodes, nodes), self_loops=True))
    assert plan.inner == [(0, MAX_NODES), (MAX_NODES, 2 * MAX_NODES), (2 * MAX_NODES, nodes)]
    assert plan.boundary == []


def test_part_without_nodes():
    plan = plan_overlap(build_graph(torch.empty(2, 0, dtype=torch.long), (0, 0), self_loops=True))
    assert (plan.inner, plan.boundary, plan.own, plan.halo) == ([], [], [], [])

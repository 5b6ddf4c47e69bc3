import gc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.kernels.csr import CHUNK, GraphCache, build_graph, build_matrix, reachable_sources


@st.composite
def edge_indices(draw):
    nodes = draw(st.integers(1, 8))
    edges = draw(st.lists(st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)), max_size=20))
    return torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T, nodes


@given(edge_indices(), st.booleans())
def test_csr_and_csc_hold_the_same_edges(edge_index_and_nodes, self_loops):
    edge_index, nodes = edge_index_and_nodes
    graph = build_graph(edge_index, nodes, self_loops)
    edges = [tuple(edge) for edge in edge_index.T.tolist()]
    expected = [e for e in edges if not (self_loops and e[0] == e[1])] + [(v, v) for v in range(nodes) if self_loops]
    by_target = [(int(graph.src[k]), v) for v in range(nodes) for k in range(graph.ptr[v], graph.ptr[v + 1])]
    by_source = [(u, int(graph.dst[k])) for u in range(nodes) for k in range(graph.tptr[u], graph.tptr[u + 1])]
    assert sorted(by_target) == sorted(by_source) == sorted(expected)
    assert [by_target[e] for e in graph.position] == by_source


def test_cache_rebuilds_only_after_in_place_change():
    cache, edge_index = GraphCache(), torch.tensor([[0, 1], [1, 2]])
    first = cache.get(edge_index, 3, True)
    assert cache.get(edge_index, 3, True) is first
    assert cache.get(edge_index, 3, False) is not first
    assert cache.get(edge_index, 4, True).nodes == 4
    assert cache.get(edge_index.clone(), 3, True) is not first
    edge_index[0, 0] = 2
    second = cache.get(edge_index, 3, True)
    assert second is not first
    assert 2 in second.src[second.ptr[1] : second.ptr[2]]


def test_cache_entries_die_with_their_tensor():
    cache, edge_index = GraphCache(), torch.tensor([[0, 1], [1, 2]])
    cache.get(edge_index, 3, True)
    assert len(cache._entries) == 1
    del edge_index
    gc.collect()
    assert len(cache._entries) == 0


def random_graph(nodes, edges, self_loops=False):
    return build_graph(
        torch.randint(0, nodes, (2, edges), generator=torch.Generator().manual_seed(0)), nodes, self_loops
    )


def test_order_sorts_nodes_of_a_chunk_by_degree():
    graph = random_graph(3 * CHUNK + 7, 5000)
    for ptr, order in ((graph.ptr, graph.order), (graph.tptr, graph.torder)):
        for first in range(0, graph.nodes, CHUNK):
            nodes = order[first : first + CHUNK]
            assert sorted(nodes) == list(range(first, min(first + CHUNK, graph.nodes)))
            degrees = ptr[nodes + 1] - ptr[nodes]
            assert (degrees[1:] >= degrees[:-1]).all()


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("probability", [0.0, 0.05, 0.3])
def test_reachable_sources_are_active_or_have_an_edge_to_an_active_node(heads, probability):
    graph = random_graph(200, 300)
    active = np.random.default_rng(0).random((200, heads)) < probability
    expected = active.any(axis=1)
    for v in np.flatnonzero(active.any(axis=1)):
        expected[graph.src[graph.ptr[v] : graph.ptr[v + 1]]] = True
    assert (reachable_sources(graph, active.reshape(-1)) == expected).all()


def test_all_sources_count_as_reachable_if_most_nodes_are_active():
    graph = random_graph(20, 1)
    assert reachable_sources(graph, np.arange(20) < 15).all()


def test_build_matrix():
    x = torch.tensor([[0.0, 2, 0, 3], [0, 0, 0, 0], [1, 0, 0, 5]])
    matrix = build_matrix(x.to_sparse_csr())
    assert matrix.src.tolist() == [1, 3, 0, 3]
    assert matrix.tptr.tolist() == [0, 1, 2, 2, 4]
    assert matrix.dst.tolist() == [2, 0, 0, 2]
    assert matrix.position.tolist() == [2, 0, 1, 3]

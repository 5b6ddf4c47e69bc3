import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.errors import EdgeIndexError
from equipoise.kernels.csr import CHUNK, build_graph, build_matrix, edge_permutation, reachable_sources


@st.composite
def bipartite_edges(draw):
    """An edge_index with duplicates and self-loops, and its numbers of sources and targets."""
    sources = draw(st.integers(1, 8))
    targets = draw(st.one_of(st.just(sources), st.integers(1, 8)))
    edge = st.tuples(st.integers(0, sources - 1), st.integers(0, targets - 1))
    return torch.tensor(draw(st.lists(edge, max_size=20)), dtype=torch.long).reshape(-1, 2).T, sources, targets


def edges_by_target(graph):
    return [(int(graph.src[k]), v) for v in range(graph.targets) for k in range(graph.ptr[v], graph.ptr[v + 1])]


@given(bipartite_edges(), st.booleans())
def test_csr_and_csc_hold_the_same_edges(edges_and_sizes, self_loops):
    edge_index, sources, targets = edges_and_sizes
    graph = build_graph(edge_index, (sources, targets), self_loops)
    assert (graph.sources, graph.targets, graph.edges) == (sources, targets, len(graph.dst))
    expected = [tuple(edge) for edge in edge_index.T.tolist()]
    if self_loops:
        loops = [(v, v) for v in range(min(sources, targets))]
        expected = [edge for edge in expected if edge[0] != edge[1]] + loops
    by_target = edges_by_target(graph)
    by_source = [(u, int(graph.dst[k])) for u in range(sources) for k in range(graph.tptr[u], graph.tptr[u + 1])]
    assert by_target == sorted(expected, key=lambda edge: edge[::-1])
    assert by_source == sorted(expected)
    assert [by_target[k] for k in graph.position] == by_source
    assert graph.symmetric == (sources == targets and sorted(expected) == sorted(edge[::-1] for edge in expected))


def test_one_number_of_nodes_is_that_of_sources_and_targets():
    graph = build_graph(torch.tensor([[0], [1]]), nodes=3, self_loops=True)
    assert (graph.sources, graph.targets, graph.edges) == (3, 3, 4)


@given(bipartite_edges())
def test_edge_permutation(edges_and_sizes):
    edge_index, sources, targets = edges_and_sizes
    graph = build_graph(edge_index, (sources, targets), self_loops=False)
    edges, positions = edge_permutation(edge_index, graph)
    assert [tuple(edge) for edge in edge_index[:, edges].T.tolist()] == edges_by_target(graph)
    assert torch.equal(positions[edges], torch.arange(graph.edges))


@pytest.mark.parametrize(("row", "name", "nodes"), [(0, "source", 3), (1, "target", 2)])
@pytest.mark.parametrize("offset", [0, -10])
def test_indices_out_of_range_are_named(row, name, nodes, offset):
    edge_index = torch.tensor([[0, 1, 2], [0, 1, 1]])
    edge_index[row, 1] = nodes + offset
    with pytest.raises(EdgeIndexError, match=rf"{name} node {nodes + offset}, but x has {nodes} {name} nodes") as error:
        build_graph(edge_index, (3, 2), self_loops=False)
    assert f"edge_index[{row}, 1]" in str(error.value)


def random_graph(nodes, edges, self_loops=False):
    return build_graph(
        torch.randint(0, nodes, (2, edges), generator=torch.Generator().manual_seed(0)), nodes, self_loops
    )


def test_order_sorts_nodes_of_a_chunk_by_degree():
    graph = random_graph(3 * CHUNK + 7, 5000)
    for ptr, order in ((graph.ptr, graph.order), (graph.tptr, graph.torder)):
        for first in range(0, graph.targets, CHUNK):
            nodes = order[first : first + CHUNK]
            assert sorted(nodes) == list(range(first, min(first + CHUNK, graph.targets)))
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

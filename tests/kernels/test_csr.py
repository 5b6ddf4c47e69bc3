import gc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.kernels.csr import CHUNK, Graphs, build_graph, build_matrix, reached


@st.composite
def edge_lists(draw):
    nodes = draw(st.integers(1, 8))
    edges = draw(st.lists(st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)), max_size=20))
    return torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T, nodes


@given(edge_lists(), st.booleans())
def test_both_orders_hold_the_same_edges(case, self_loops):
    edge_index, nodes = case
    graph = build_graph(edge_index, nodes, self_loops)
    given = [tuple(edge) for edge in edge_index.T.tolist()]
    expected = [e for e in given if not (self_loops and e[0] == e[1])] + [(v, v) for v in range(nodes) if self_loops]
    by_target = [(int(graph.src[k]), v) for v in range(nodes) for k in range(graph.ptr[v], graph.ptr[v + 1])]
    by_source = [(u, int(graph.dst[k])) for u in range(nodes) for k in range(graph.tptr[u], graph.tptr[u + 1])]
    assert sorted(by_target) == sorted(by_source) == sorted(expected)
    assert [by_target[e] for e in graph.edge] == by_source


def test_a_graph_is_built_once_and_again_when_written_to():
    graphs, edge_index = Graphs(), torch.tensor([[0, 1], [1, 2]])
    first = graphs.get(edge_index, 3, True)
    assert graphs.get(edge_index, 3, True) is first
    assert graphs.get(edge_index, 3, False) is not first
    assert graphs.get(edge_index, 4, True).nodes == 4
    assert graphs.get(edge_index.clone(), 3, True) is not first
    edge_index[0, 0] = 2
    second = graphs.get(edge_index, 3, True)
    assert second is not first
    assert 2 in second.src[second.ptr[1] : second.ptr[2]]


def test_graphs_go_with_their_tensors():
    graphs, edge_index = Graphs(), torch.tensor([[0, 1], [1, 2]])
    graphs.get(edge_index, 3, True)
    assert len(graphs._built) == 1
    del edge_index
    gc.collect()
    assert len(graphs._built) == 0


def random_graph(nodes, edges, self_loops=False):
    return build_graph(
        torch.randint(0, nodes, (2, edges), generator=torch.Generator().manual_seed(0)), nodes, self_loops
    )


def test_orders_hold_every_node_once_in_its_chunk_by_number_of_edges():
    graph = random_graph(3 * CHUNK + 7, 5000)
    for ptr, order in ((graph.ptr, graph.order), (graph.tptr, graph.torder)):
        for first in range(0, graph.nodes, CHUNK):
            nodes = order[first : first + CHUNK]
            assert sorted(nodes) == list(range(first, min(first + CHUNK, graph.nodes)))
            degrees = ptr[nodes + 1] - ptr[nodes]
            assert (degrees[1:] >= degrees[:-1]).all()


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.3])
def test_reached_is_what_is_active_or_sends_to_it(heads, share):
    graph = random_graph(200, 300)
    active = np.random.default_rng(0).random((200, heads)) < share
    expected = active.any(axis=1)
    for v in np.flatnonzero(active.any(axis=1)):
        expected[graph.src[graph.ptr[v] : graph.ptr[v + 1]]] = True
    assert (reached(graph, active.reshape(-1)) == expected).all()


def test_where_most_are_active_all_count_as_reached():
    graph = random_graph(20, 1)
    assert reached(graph, np.arange(20) < 15).all()


def test_a_sparse_matrix_both_ways():
    x = torch.tensor([[0.0, 2, 0, 3], [0, 0, 0, 0], [1, 0, 0, 5]])
    matrix = build_matrix(x.to_sparse_csr())
    assert matrix.src.tolist() == [1, 3, 0, 3]
    assert matrix.tptr.tolist() == [0, 1, 2, 2, 4]
    assert matrix.dst.tolist() == [2, 0, 0, 2]
    assert matrix.edge.tolist() == [2, 0, 1, 3]

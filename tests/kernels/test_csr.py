import gc

import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.kernels.csr import Graphs, build_graph


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
    for k, column in enumerate(graph.given.tolist()):
        assert by_target[k] == (given[column] if column >= 0 else (by_target[k][1],) * 2)


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

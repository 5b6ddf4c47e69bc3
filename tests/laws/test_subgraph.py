"""Large graphs are searched on a small induced subgraph."""

import logging

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn
from torch_geometric.data import Batch, Data, HeteroData

from equipoise.laws.discover import discover
from equipoise.laws.explain import explain
from equipoise.laws.probe import Probe
from equipoise.laws.subgraph import sample_subgraph
from tests.networks import CLASSES, FEATURES, gatv2

NODES, EDGES = 3000, 9000


@pytest.fixture(scope="module")
def data():
    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(NODES, FEATURES, generator=generator),
        edge_index=torch.randint(NODES, (2, EDGES), generator=generator),
        edge_attr=torch.randn(EDGES, 4, generator=generator),
        edge_type=torch.randint(5, (EDGES,), generator=generator),
    )


def test_subgraph_is_induced(data):
    nodes = torch.arange(NODES)
    sample = sample_subgraph(((nodes, data.edge_index, data.edge_attr), {}), ["x", "edge_index", "edge_attr"], 32)
    kept, edge_index, edge_attr = sample.inputs[0]
    inside = torch.isin(data.edge_index, kept).all(dim=0)
    assert 32 <= len(kept) == sample.nodes[0] < 64
    assert torch.equal(kept[edge_index], data.edge_index[:, inside])
    assert torch.equal(edge_attr, data.edge_attr[inside])
    assert edge_index.shape[1] >= len(kept) // 2


def test_every_category_and_several_graphs_stay(data):
    batch = torch.arange(NODES) // 10
    inputs = ((data.x, data.edge_index), {"edge_type": data.edge_type, "batch": batch})
    sample = sample_subgraph(inputs, ["x", "edge_index"], 32)
    assert sample.inputs[1]["edge_type"].unique().tolist() == [0, 1, 2, 3, 4]
    assert len(sample.inputs[1]["batch"].unique()) >= 4
    assert int(sample.inputs[1]["batch"].max()) + 1 == len(sample.inputs[1]["batch"].unique())


def test_inputs_without_a_large_graph_stay(data):
    assert sample_subgraph(((data.x,), {}), ["x"], 32) is None
    small = data.subgraph(torch.arange(40))
    assert sample_subgraph(((small.x, small.edge_index), {}), ["x", "edge_index"], 32) is None


def test_laws_are_those_of_the_whole_graph(data, caplog):
    model = gatv2([FEATURES, 8, 8, CLASSES])
    caplog.set_level(logging.INFO, logger="equipoise")
    laws = discover(model, data.x, data.edge_index)
    assert "induced subgraph" in caplog.text
    assert laws == discover(model, data.x, data.edge_index, sample=False)
    text = str(explain(model, data.x, data.edge_index))
    assert "of 3000 nodes" in text
    assert "sample=False" in text


def adjacency(data, layout):
    values = torch.ones(data.edge_index.shape[1])
    matrix = torch.sparse_coo_tensor(data.edge_index, values, (NODES, NODES)).coalesce()
    return matrix if layout == torch.sparse_coo else matrix.to_sparse(layout=layout)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_adjacency(data, layout):
    model = pyg.GCN(FEATURES, 8, 2, CLASSES, normalize=False)
    probe = Probe(model, (data.x, adjacency(data, layout)), {}, None)
    assert probe.subgraph is not None
    assert [law.neurons for law in discover(model, data.x, adjacency(data, layout))] == [8]


def test_data_object_for_a_model_of_tensors(data):
    model = pyg.GAT(FEATURES, 8, 2, CLASSES, edge_dim=4)
    laws = discover(model, data)
    assert [law.neurons for law in laws] == [8, 8, 3]  # lin_edge and att_edge of each layer have laws of their own
    assert laws == discover(model, data.x, data.edge_index, edge_attr=data.edge_attr)


def test_data_object_for_a_model_of_data(data):
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = gatv2([FEATURES, 8, CLASSES])

        def forward(self, data):
            return pyg.global_add_pool(self.net(data.x, data.edge_index), data.batch)

    graphs = [Data(x=torch.randn(9, FEATURES), edge_index=torch.randint(9, (2, 30))) for _ in range(50)]
    probe = Probe(Pooled(), (Batch.from_data_list(graphs),), {}, None)
    assert probe.subgraph is not None
    assert probe.subgraph.nodes[0] < 64
    assert [law.neurons for law in discover(Pooled(), Batch.from_data_list(graphs))] == [8]


def test_heterogeneous_graph():
    data = HeteroData()
    data["paper"].x, data["author"].x = torch.randn(2000, 6), torch.randn(1000, 5)
    data["author", "writes", "paper"].edge_index = torch.stack(
        [torch.randint(1000, (5000,)), torch.randint(2000, (5000,))]
    )
    data["paper", "cites", "paper"].edge_index = torch.randint(2000, (2, 5000))
    data["paper", "rev_writes", "author"].edge_index = data["author", "writes", "paper"].edge_index.flip(0)

    class SAGE(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = pyg.SAGEConv((-1, -1), 8), pyg.SAGEConv((-1, -1), 3)

        def forward(self, x, edge_index):
            return self.b(self.a(x, edge_index).relu(), edge_index)

    model = pyg.to_hetero(SAGE(), data.metadata())
    laws = discover(model, data.x_dict, data.edge_index_dict, output=lambda out: out["paper"])
    probe = Probe(model, (data.x_dict, data.edge_index_dict), {}, lambda out: out["paper"])
    assert probe.subgraph is not None
    assert probe.subgraph.nodes[0] < 100
    assert sorted(law.neurons for law in laws) == [8, 8]


def test_model_that_needs_the_whole_graph(data):
    class FixedSize(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = gatv2([FEATURES, 8, CLASSES])
            self.register_buffer("mask", torch.ones(NODES, 1))

        def forward(self, x, edge_index):
            return self.mask * self.net(x, edge_index)

    assert [law.neurons for law in discover(FixedSize(), data.x, data.edge_index)] == [8]

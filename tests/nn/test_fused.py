"""Fused layers against PyG's own: same parameters, outputs and gradients; and PyG's path where they do not apply."""

import copy
import tracemalloc

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import nn
from torch_geometric import EdgeIndex

from equipoise.data.load import load_dataset
from equipoise.errors import ChoiceError, ModelError
from equipoise.init.schemes import initialize_
from equipoise.nn import engine, functions
from equipoise.nn.engine import obstacle
from equipoise.nn.fuse import fuse_
from equipoise.nn.gat import FusedGATConv
from equipoise.nn.gatv2 import FusedGATv2Conv
from equipoise.nn.gcn import FusedGCNConv
from tests.real_data import require

FUSED = (FusedGATv2Conv, FusedGATConv, FusedGCNConv)


@pytest.fixture
def graph():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 5, generator=generator, dtype=torch.float64)
    return x, torch.randint(
        0, 11, (2, 30), generator=generator
    )  # directed, with loops and doubles; node 11 is isolated


@pytest.fixture
def kernel_calls(monkeypatch):
    """How often the kernels were used."""
    calls = []
    original = functions.run
    monkeypatch.setattr(functions, "run", lambda *arguments: (calls.append(1), original(*arguments)))
    return calls


LAYERS = {
    "gatv2": lambda: pyg.GATv2Conv(5, 4),
    "gatv2 shared": lambda: pyg.GATv2Conv(5, 4, share_weights=True, bias=False),
    "gatv2 heads": lambda: pyg.GATv2Conv(5, 3, heads=4),
    "gatv2 averaged": lambda: pyg.GATv2Conv(5, 3, heads=4, concat=False, residual=True),
    "gatv2 without loops": lambda: pyg.GATv2Conv(5, 4, add_self_loops=False, negative_slope=0.5),
    "gat": lambda: pyg.GATConv(5, 4),
    "gat heads": lambda: pyg.GATConv(5, 3, heads=4, residual=True),
    "gat averaged": lambda: pyg.GATConv(5, 3, heads=4, concat=False, bias=False),
    "gat without loops": lambda: pyg.GATConv(5, 4, add_self_loops=False),
    "gcn": lambda: pyg.GCNConv(5, 4),
    "gcn improved": lambda: pyg.GCNConv(5, 4, improved=True, bias=False),
    "gcn without loops": lambda: pyg.GCNConv(5, 4, add_self_loops=False),
}


def results(conv, x, edge_index):
    x = x.clone().requires_grad_()
    out = conv(x, edge_index)
    cotangent = torch.sin(torch.arange(out.numel(), dtype=out.dtype)).reshape(out.shape)
    parameters = list(conv.parameters())
    return [out, *torch.autograd.grad(out, [x, *parameters], cotangent)]


@pytest.mark.parametrize("case", LAYERS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_outputs_and_gradients_are_those_of_pyg(case, dtype, tolerance, graph, kernel_calls):
    stock = LAYERS[case]().to(dtype)
    fused = fuse_(copy.deepcopy(stock))
    assert isinstance(fused, FUSED)
    x, edge_index = graph[0].to(dtype), graph[1]
    for a, b in zip(results(fused, x, edge_index), results(stock, x, edge_index), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    assert kernel_calls, "PyG's path was taken: the test shows nothing"
    stock.load_state_dict(fused.state_dict())


@pytest.mark.parametrize("case", LAYERS)
def test_edge_index_in_pygs_own_class_and_sparse_features(case, graph, kernel_calls):
    x, edge_index = graph
    fused = fuse_(LAYERS[case]().double())
    expected = fused(x, edge_index)
    torch.testing.assert_close(fused(x, EdgeIndex(edge_index, sparse_size=(12, 12))), expected)
    torch.testing.assert_close(fused(x.to_sparse_csr(), edge_index), expected)
    torch.testing.assert_close(fused(x.to_sparse_coo(), edge_index), expected)
    assert kernel_calls


def test_a_changed_edge_index_is_noticed(graph):
    x, edge_index = graph
    fused, stock = FusedGATv2Conv(5, 4).double(), pyg.GATv2Conv(5, 4).double()
    stock.load_state_dict(fused.state_dict())
    first = fused(x, edge_index)
    edge_index[0, :10] = 3
    second = fused(x, edge_index)
    assert not torch.allclose(first, second)
    torch.testing.assert_close(second, stock(x, edge_index))


def test_layers_with_other_edge_weights_share_an_edge_index(graph, kernel_calls):
    x, edge_index = graph
    for options in ({}, {"improved": True}, {"add_self_loops": False}):
        stock = pyg.GCNConv(5, 4, **options).double()
        torch.testing.assert_close(fuse_(copy.deepcopy(stock))(x, edge_index), stock(x, edge_index))
    assert kernel_calls


@pytest.mark.parametrize("make", [pyg.GATv2Conv, pyg.GATConv])
def test_attention_dropout(make, graph, kernel_calls):
    x, edge_index = graph
    fused = fuse_(make(5, 4, dropout=0.5).double())
    whole = fused.eval()(x, edge_index)
    fused.train()
    torch.manual_seed(0)
    first = fused(x, edge_index)
    torch.manual_seed(0)
    torch.testing.assert_close(fused(x, edge_index), first)
    assert not torch.allclose(first, whole)
    mean = torch.stack([fused(x, edge_index).detach() for _ in range(2000)]).mean(0)
    assert float((mean - whole).norm() / whole.norm()) < 0.05
    assert kernel_calls


FALLBACKS = {
    "edge features": lambda x, e: (pyg.GATv2Conv(5, 4, edge_dim=2), (x, e, torch.ones(30, 2, dtype=x.dtype))),
    "two kinds of nodes": lambda x, e: (pyg.GATv2Conv((5, 5), 4, add_self_loops=False), ((x, x), e)),
    "edge weights": lambda x, e: (pyg.GCNConv(5, 4), (x, e, torch.rand(30, dtype=x.dtype))),
    "attention weights": lambda x, e: (pyg.GATConv(5, 4), (x, e, None, None, True)),
    "a sparse adjacency": lambda x, e: (
        pyg.GATv2Conv(5, 4, add_self_loops=False),
        (x, torch.sparse_coo_tensor(e.flip(0), torch.ones(30, dtype=x.dtype), (12, 12)).coalesce()),
    ),
    "no normalisation": lambda x, e: (pyg.GCNConv(5, 4, normalize=False), (x, e)),
}


@pytest.mark.parametrize("case", FALLBACKS)
def test_what_the_kernels_do_not_serve_takes_pygs_path(case, graph, kernel_calls):
    stock, inputs = FALLBACKS[case](*graph)
    stock = stock.double()
    fused = fuse_(copy.deepcopy(stock))
    a, b = fused(*inputs), stock(*inputs)
    torch.testing.assert_close(a[0] if isinstance(a, tuple) else a, b[0] if isinstance(b, tuple) else b)
    assert not kernel_calls


def test_the_reference_engine_can_be_forced(graph, kernel_calls, monkeypatch):
    conv = FusedGATv2Conv(5, 4).double()
    expected = conv(*graph)
    assert kernel_calls
    kernel_calls.clear()
    monkeypatch.setenv("EQUIPOISE_ENGINE", "reference")
    torch.testing.assert_close(conv(*graph), expected)
    assert not kernel_calls
    assert obstacle(conv, *graph) == "EQUIPOISE_ENGINE=reference"
    monkeypatch.setenv("EQUIPOISE_ENGINE", "fast")
    with pytest.raises(ChoiceError, match=r"EQUIPOISE_ENGINE(.|\n)*fused, reference"):
        conv(*graph)


def test_function_transforms_take_pygs_path(graph):
    x, edge_index = graph
    conv = FusedGATv2Conv(5, 4).double()
    jacobian = torch.func.jacrev(lambda x: conv(x, edge_index).sum(0))(x)
    torch.testing.assert_close(jacobian, torch.autograd.functional.jacobian(lambda x: conv(x, edge_index).sum(0), x))


def test_fuse_swaps_stock_layers_in_any_model():
    class Mine(pyg.GCNConv):
        pass

    model = nn.ModuleDict(
        {"gat": pyg.GAT(5, 8, 2, 3, v2=True), "deep": nn.ModuleList([pyg.GATConv(3, 3)]), "own": Mine(3, 3)}
    )
    parameters, state = list(model.parameters()), copy.deepcopy(model.state_dict())
    assert fuse_(model) is model
    assert [type(conv) for conv in model["gat"].convs] == [FusedGATv2Conv] * 2
    assert type(model["deep"][0]) is FusedGATConv
    assert type(model["own"]) is Mine
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert state.keys() == model.state_dict().keys()
    with pytest.raises(ModelError):
        fuse_("model")


def test_nothing_of_size_edges_times_width_is_made():
    """100 000 edges × 64 channels would be 24 MiB in one tensor; everything that torch allocates is looked at."""
    nodes, edges, width = 2000, 100_000, 64
    conv = FusedGATv2Conv(width, width, share_weights=True, bias=False)
    x, edge_index = torch.randn(nodes, width), torch.randint(0, nodes, (2, edges))
    conv(x, edge_index)  # the graph is built
    tracemalloc.start()  # numpy's arrays; torch's are seen by its profiler
    with torch.profiler.profile(profile_memory=True) as profile:
        conv(x, edge_index).sum().backward()
    _, arrays = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    largest = max(abs(event.self_cpu_memory_usage) for event in profile.events())
    assert largest < edges * width * 4 / 10
    assert arrays < edges * width * 4 / 4


def test_agrees_with_pyg_over_fifty_steps_on_cora():
    data = load_dataset("cora", require("cora"))
    losses = []
    for fused in (False, True):
        model = pyg.GAT(1433, 16, num_layers=3, out_channels=7, v2=True, act="relu")
        initialize_(model, "bal-o", generator=torch.Generator().manual_seed(0))
        if fused:
            fuse_(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        curve = []
        for _ in range(50):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask])
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
        losses.append(torch.tensor(curve))
    assert float(losses[0][0] - losses[0][-1]) > 0.01, "nothing was learnt: the test shows nothing"
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)
    assert engine.GRAPHS

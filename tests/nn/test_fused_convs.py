"""Fused layers against PyG's: equal parameters, outputs and gradients; and the fallback on PyG."""

import copy
import tracemalloc

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import nn
from torch_geometric import EdgeIndex
from torch_geometric.nn import GCNConv

from equipoise.data.load import load_dataset
from equipoise.errors import ChoiceError, ModelError
from equipoise.init.schemes import initialize_
from equipoise.nn.dispatch import fallback_reason
from equipoise.nn.fused_convs import FusedGATConv, FusedGATv2Conv, fuse_
from equipoise.nn.fused_gcn import FusedGCNConv, ResidualGCNConv
from tests.real_data import require

FUSED_LAYERS = (FusedGATv2Conv, FusedGATConv, FusedGCNConv)


@pytest.fixture
def graph():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 5, generator=generator, dtype=torch.float64)
    return x, torch.randint(
        0, 11, (2, 30), generator=generator
    )  # directed, with self-loops and duplicates; node 11 is isolated


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


def outputs_and_gradients(conv, x, edge_index):
    x = x.clone().requires_grad_()
    out = conv(x, edge_index)
    cotangent = torch.sin(torch.arange(out.numel(), dtype=out.dtype)).reshape(out.shape)
    parameters = list(conv.parameters())
    return [out, *torch.autograd.grad(out, [x, *parameters], cotangent)]


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_outputs_and_gradients_equal_pygs(layer, dtype, tolerance, graph, kernel_calls):
    stock = LAYERS[layer]().to(dtype)
    fused = fuse_(copy.deepcopy(stock))
    assert isinstance(fused, FUSED_LAYERS)
    x, edge_index = graph[0].to(dtype), graph[1]
    for a, b in zip(
        outputs_and_gradients(fused, x, edge_index), outputs_and_gradients(stock, x, edge_index), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    assert kernel_calls, "fell back on PyG"
    stock.load_state_dict(fused.state_dict())


@pytest.mark.parametrize("layer", LAYERS)
def test_edge_index_class_and_sparse_features(layer, graph, kernel_calls):
    x, edge_index = graph
    fused = fuse_(LAYERS[layer]().double())
    expected = fused(x, edge_index)
    torch.testing.assert_close(fused(x, EdgeIndex(edge_index, sparse_size=(12, 12))), expected)
    torch.testing.assert_close(fused(x.to_sparse_csr(), edge_index), expected)
    torch.testing.assert_close(fused(x.to_sparse_coo(), edge_index), expected)
    assert kernel_calls


def test_in_place_change_of_edge_index_rebuilds_the_graph(graph):
    x, edge_index = graph
    fused, stock = FusedGATv2Conv(5, 4).double(), pyg.GATv2Conv(5, 4).double()
    stock.load_state_dict(fused.state_dict())
    first = fused(x, edge_index)
    edge_index[0, :10] = 3
    second = fused(x, edge_index)
    assert not torch.allclose(first, second)
    torch.testing.assert_close(second, stock(x, edge_index))


def test_layers_with_different_normalisation_share_an_edge_index(graph, kernel_calls):
    x, edge_index = graph
    for options in ({}, {"improved": True}, {"add_self_loops": False}):
        stock = pyg.GCNConv(5, 4, **options).double()
        torch.testing.assert_close(fuse_(copy.deepcopy(stock))(x, edge_index), stock(x, edge_index))
    assert kernel_calls


@pytest.mark.parametrize("conv_class", [pyg.GATv2Conv, pyg.GATConv])
def test_attention_dropout(conv_class, graph, kernel_calls):
    x, edge_index = graph
    fused = fuse_(conv_class(5, 4, dropout=0.5).double())
    expected = fused.eval()(x, edge_index)
    fused.train()
    torch.manual_seed(0)
    first = fused(x, edge_index)
    torch.manual_seed(0)
    torch.testing.assert_close(fused(x, edge_index), first)
    assert not torch.allclose(first, expected)
    mean = torch.stack([fused(x, edge_index).detach() for _ in range(2000)]).mean(0)
    assert float((mean - expected).norm() / expected.norm()) < 0.05
    assert kernel_calls


FALLBACKS = {
    "edge features for an int32 graph": lambda x, e: (
        pyg.GATv2Conv(5, 4, edge_dim=2),
        (x, e.int(), torch.ones(30, 2, dtype=x.dtype)),
    ),
    "sparse adjacency": lambda x, e: (
        pyg.GATv2Conv(5, 4, add_self_loops=False),
        (x, torch.sparse_coo_tensor(e.flip(0), torch.ones(30, dtype=x.dtype), (12, 12)).coalesce()),
    ),
    "flow": lambda x, e: (pyg.GCNConv(5, 4, flow="target_to_source"), (x, e)),
}


@pytest.mark.parametrize("reason", FALLBACKS)
def test_unsupported_calls_fall_back_on_pyg(reason, graph, kernel_calls):
    stock, inputs = FALLBACKS[reason](*graph)
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
    assert fallback_reason(conv, *graph) == "EQUIPOISE_ENGINE=reference"
    monkeypatch.setenv("EQUIPOISE_ENGINE", "fast")
    with pytest.raises(ChoiceError, match=r"EQUIPOISE_ENGINE(.|\n)*fused, reference"):
        conv(*graph)


def test_function_transforms_fall_back_on_pyg(graph):
    x, edge_index = graph
    conv = FusedGATv2Conv(5, 4).double()
    jacobian = torch.func.jacrev(lambda x: conv(x, edge_index).sum(0))(x)
    torch.testing.assert_close(jacobian, torch.autograd.functional.jacobian(lambda x: conv(x, edge_index).sum(0), x))


def test_fuse_replaces_stock_layers_in_any_model():
    class CustomGCNConv(pyg.GCNConv):
        pass

    model = nn.ModuleDict(
        {"gat": pyg.GAT(5, 8, 2, 3, v2=True), "deep": nn.ModuleList([pyg.GATConv(3, 3)]), "custom": CustomGCNConv(3, 3)}
    )
    parameters, state = list(model.parameters()), copy.deepcopy(model.state_dict())
    assert fuse_(model) is model
    assert [type(conv) for conv in model["gat"].convs] == [FusedGATv2Conv] * 2
    assert type(model["deep"][0]) is FusedGATConv
    assert type(model["custom"]) is CustomGCNConv
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert state.keys() == model.state_dict().keys()
    with pytest.raises(ModelError):
        fuse_("model")


def test_no_allocation_of_size_edges_times_width():
    """A tensor of 100 000 edges × 64 channels would take 24 MiB."""
    nodes, edges, width = 2000, 100_000, 64
    conv = FusedGATv2Conv(width, width, share_weights=True, bias=False)
    x, edge_index = torch.randn(nodes, width), torch.randint(0, nodes, (2, edges))
    conv(x, edge_index)  # builds the graph
    tracemalloc.start()  # NumPy arrays; torch's profiler records tensors
    with torch.profiler.profile(profile_memory=True) as profile:
        conv(x, edge_index).sum().backward()
    _, arrays = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    largest = max(abs(event.self_cpu_memory_usage) for event in profile.events())
    assert largest < edges * width * 4 / 10
    assert arrays < edges * width * 4 / 4


def test_agrees_with_pyg_over_fifty_steps_on_cora(kernel_calls):
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
        assert bool(kernel_calls) == fused
    assert float(losses[0][0] - losses[0][-1]) > 0.01, "the loss did not decrease"
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)


EDGES = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 3]])


def test_residual_gcn_is_gcn_plus_linear_skip() -> None:
    conv, stock, x = ResidualGCNConv(3, 2), GCNConv(3, 2), torch.randn(4, 3)
    keys = stock.load_state_dict(conv.state_dict(), strict=False)
    assert keys.missing_keys == []
    assert keys.unexpected_keys == ["res.weight"]
    weight = torch.rand(4)
    torch.testing.assert_close(conv(x, EDGES), stock(x, EDGES) + x @ conv.res.weight.t())
    torch.testing.assert_close(conv(x, EDGES, weight), stock(x, EDGES, weight) + x @ conv.res.weight.t())


def test_reset_parameters_includes_the_skip() -> None:
    conv = ResidualGCNConv(3, 2)
    torch.manual_seed(0)
    conv.reset_parameters()
    first = {name: value.clone() for name, value in conv.state_dict().items()}
    conv.reset_parameters()
    assert not torch.equal(conv.res.weight, first["res.weight"])
    torch.manual_seed(0)
    conv.reset_parameters()
    assert all(torch.equal(value, first[name]) for name, value in conv.state_dict().items())

"""Fused SAGEConv, GraphConv, GINConv and TransformerConv against PyG's: outputs, gradients, fallbacks, errors, laws."""

import copy
import pickle
import tracemalloc

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch_geometric import EdgeIndex

from equipoise import discover, fuse_, residual, verify
from equipoise.errors import GraphError
from equipoise.nn.dispatch import fallback_reason
from equipoise.nn.fused_aggregations import FusedGINConv, FusedGraphConv, FusedSAGEConv
from equipoise.nn.fused_convs import unfuse_
from equipoise.nn.fused_transformer import FusedTransformerConv

SOURCES, TARGETS, EDGES = 12, 7, 40


def mlp(width, out=4):
    return nn.Sequential(nn.Linear(width, 6), nn.ReLU(), nn.Linear(6, out))


# Layers from 5 features; bipartite ones take 5 source and 3 target features.
LAYERS = {
    "sage": lambda i: pyg.SAGEConv(i, 4),
    "sage wider": lambda i: pyg.SAGEConv(i, 9, bias=False),
    "sage sum": lambda i: pyg.SAGEConv(i, 4, aggr="sum", root_weight=False),
    "sage projected": lambda i: pyg.SAGEConv(i, 4, project=True, normalize=True),
    "graph": lambda i: pyg.GraphConv(i, 4),
    "graph wider": lambda i: pyg.GraphConv(i, 17, bias=False),
    "graph mean": lambda i: pyg.GraphConv(i, 4, aggr="mean"),
    "transformer": lambda i: pyg.TransformerConv(i, 4),
    "transformer heads": lambda i: pyg.TransformerConv(i, 3, heads=4, bias=False),
    "transformer averaged": lambda i: pyg.TransformerConv(i, 3, heads=4, concat=False, beta=True),
    "transformer gated": lambda i: pyg.TransformerConv(i, 9, heads=2, beta=True),
    "transformer without root": lambda i: pyg.TransformerConv(i, 4, heads=2, root_weight=False, beta=True),
}
GIN_LAYERS = {
    "gin": lambda i: pyg.GINConv(mlp(5)),
    "gin learned": lambda i: pyg.GINConv(mlp(5), eps=0.3, train_eps=True),
    "gin mean": lambda i: pyg.GINConv(mlp(5), eps=0.3, aggr="mean"),
}
PRECISIONS = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])


@pytest.fixture
def graph():
    """Features of one kind of nodes, and a graph with self-loops, duplicates and an isolated node."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SOURCES, 5, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, SOURCES - 1, (2, EDGES), generator=generator)


@pytest.fixture
def bipartite():
    """Source features, target features and a graph between them."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SOURCES, 5, generator=generator, dtype=torch.float64)
    y = torch.randn(TARGETS, 3, generator=generator, dtype=torch.float64)
    source, target = (torch.randint(0, n, (EDGES,), generator=generator) for n in (SOURCES, TARGETS - 1))
    return x, y, torch.stack([source, target])


def fused_pair(layer, dtype=torch.float64):
    torch.manual_seed(0)
    stock = layer.to(dtype)
    fused = fuse_(copy.deepcopy(stock))
    assert type(fused).__name__ == f"Fused{type(stock).__name__}"
    return fused, stock


def assert_equal_with_gradients(fused, stock, inputs, call, tolerance=1e-10):
    """Outputs, and gradients of inputs and parameters."""
    results = []
    for conv in (fused, stock):
        leaves = [x.clone().requires_grad_() for x in inputs]
        out = call(conv, *leaves)
        cotangent = torch.sin(torch.arange(out.numel(), dtype=out.dtype)).reshape(out.shape)
        variables = [*leaves, *conv.parameters()]
        results.append([out, *torch.autograd.grad(out, variables, cotangent, allow_unused=True)])
    for a, b in zip(*results, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("layer", LAYERS | GIN_LAYERS)
@PRECISIONS
def test_outputs_and_gradients_equal_pygs(layer, dtype, tolerance, graph, kernel_calls):
    fused, stock = fused_pair((LAYERS | GIN_LAYERS)[layer](5), dtype)
    x, edge_index = graph
    assert_equal_with_gradients(fused, stock, [x.to(dtype)], lambda conv, x: conv(x, edge_index), tolerance)
    assert kernel_calls, "fell back on PyG"
    stock.load_state_dict(fused.state_dict())


@pytest.mark.parametrize("layer", LAYERS)
@PRECISIONS
def test_bipartite_input(layer, dtype, tolerance, bipartite, kernel_calls):
    fused, stock = fused_pair(LAYERS[layer]((5, 3)), dtype)
    x, y, edge_index = bipartite
    inputs = [x.to(dtype), y.to(dtype)]
    assert_equal_with_gradients(fused, stock, inputs, lambda conv, x, y: conv((x, y), edge_index), tolerance)
    assert kernel_calls
    torch.testing.assert_close(fused([*inputs], edge_index), fused(tuple(inputs), edge_index))


@pytest.mark.parametrize("layer", GIN_LAYERS)
def test_bipartite_gin(layer, bipartite, kernel_calls):
    fused, stock = fused_pair(GIN_LAYERS[layer](5))
    x, _, edge_index = bipartite
    assert_equal_with_gradients(fused, stock, [x, x[:TARGETS]], lambda conv, x, y: conv((x, y), edge_index))
    assert kernel_calls


@pytest.mark.parametrize("layer", ["sage", "sage projected", "graph mean", "gin"])
@pytest.mark.parametrize("size", [None, (SOURCES, TARGETS), (None, TARGETS), (SOURCES, None), (SOURCES, SOURCES + 5)])
def test_without_target_features(layer, size, bipartite, kernel_calls):
    fused, stock = fused_pair((LAYERS | GIN_LAYERS)[layer](5))
    x, _, edge_index = bipartite
    assert_equal_with_gradients(fused, stock, [x], lambda conv, x: conv((x, None), edge_index, size=size))
    assert bool(kernel_calls) == (size is None or None not in size)


@pytest.mark.parametrize("layer", ["sage", "graph", "gin"])
@pytest.mark.parametrize("size", [(SOURCES, TARGETS + 1), (SOURCES + 1, TARGETS), (TARGETS, SOURCES)])
def test_a_size_that_contradicts_the_features_is_an_error(layer, size, bipartite):
    fused, stock = fused_pair((LAYERS | GIN_LAYERS)[layer](5))
    x, _, edge_index = bipartite
    with pytest.raises(ValueError, match="expected size"):
        stock((x, x[:TARGETS]), edge_index, size=size)
    with pytest.raises(GraphError, match=rf"(?s){type(fused).__name__}: size=.*remedy"):
        fused((x, x[:TARGETS]), edge_index, size=size)


@pytest.mark.parametrize("aggr", ["add", "mean"])
@pytest.mark.parametrize("channels", [2, 9])
def test_edge_weights(aggr, channels, bipartite, kernel_calls):
    fused, stock = fused_pair(pyg.GraphConv((5, 3), channels, aggr=aggr))
    x, y, edge_index = bipartite
    weight = torch.randn(EDGES, dtype=torch.float64)
    assert_equal_with_gradients(fused, stock, [x, y, weight], lambda conv, x, y, w: conv((x, y), edge_index, w))
    assert kernel_calls
    torch.testing.assert_close(fused((x, y), edge_index, weight[:, None]), stock((x, y), edge_index, weight[:, None]))


@pytest.mark.parametrize(
    "weight", [torch.tensor([2.0]), torch.tensor(3.0), torch.arange(EDGES), torch.ones(EDGES) > 0, torch.ones(EDGES)]
)
def test_broadcast_and_other_edge_weights(weight, graph):
    fused, stock = fused_pair(pyg.GraphConv(5, 4))
    torch.testing.assert_close(fused(*graph, weight), stock(*graph, weight))


@pytest.mark.parametrize("shape", [(EDGES - 1,), (EDGES, 5), (0,)])
def test_the_wrong_number_of_edge_weights_is_an_error(shape, graph):
    fused, stock = fused_pair(pyg.GraphConv(5, 4))
    weight = torch.ones(shape, dtype=torch.float64)
    with pytest.raises(RuntimeError):
        stock(*graph, weight)
    with pytest.raises(GraphError, match=r"(?s)FusedGraphConv: edge_weight has shape.*remedy"):
        fused(*graph, weight)


def test_edge_weights_of_higher_precision_are_rejected_as_by_pyg(graph):
    x, edge_index = graph
    for conv in fused_pair(pyg.GraphConv(5, 4), torch.float32):
        with pytest.raises(RuntimeError, match="dtype"):
            conv(x.float(), edge_index, torch.ones(EDGES, dtype=torch.float64))


@pytest.mark.parametrize("sparse", [torch.Tensor.to_sparse_csr, torch.Tensor.to_sparse_coo])
def test_sparse_features(sparse, graph, kernel_calls):
    x, edge_index = graph
    x = x.relu()
    for layer in ("sage projected", "transformer", "transformer heads", "transformer gated"):
        fused, stock = fused_pair(LAYERS[layer](5))
        torch.testing.assert_close(fused(sparse(x), edge_index), stock(x, edge_index))
    assert kernel_calls
    for layer in ("sage", "sage wider", "graph", "gin"):
        fused, stock = fused_pair((LAYERS | GIN_LAYERS)[layer](5))
        with pytest.raises(NotImplementedError):
            stock(sparse(x), edge_index)
        with pytest.raises(GraphError, match=rf"(?s){type(fused).__name__}: x is sparse.*to_dense"):
            fused(sparse(x), edge_index)


def test_attention_dropout(graph, kernel_calls):
    fused, _ = fused_pair(pyg.TransformerConv(5, 4, heads=2, dropout=0.5))
    expected = fused.eval()(*graph).detach()
    fused.train()
    torch.manual_seed(0)
    first = fused(*graph)
    torch.manual_seed(0)
    torch.testing.assert_close(fused(*graph), first)
    mean = torch.stack([fused(*graph).detach() for _ in range(2000)]).mean(0)
    assert float((mean - expected).norm() / expected.norm()) < 0.05
    assert kernel_calls


ATTRIBUTES = torch.linspace(-1, 1, EDGES * 2, dtype=torch.float64).view(EDGES, 2)
FALLBACKS = {
    "max": (pyg.SAGEConv(5, 4, aggr="max"), ()),
    "several aggregations": (pyg.SAGEConv(5, 4, aggr=["mean", "max"]), ()),
    "graph max": (pyg.GraphConv(5, 4, aggr="max"), ()),
    "flow": (pyg.GINConv(mlp(5), flow="target_to_source"), ()),
    "edge features": (pyg.TransformerConv(5, 4, heads=2, edge_dim=2), (ATTRIBUTES,)),
    "mean of attention": (pyg.TransformerConv(5, 4, aggr="mean"), ()),
}


@pytest.mark.parametrize("reason", FALLBACKS)
def test_unsupported_calls_fall_back_on_pyg(reason, graph, kernel_calls):
    layer, extras = FALLBACKS[reason]
    fused, stock = fused_pair(copy.deepcopy(layer))
    torch.testing.assert_close(fused(*graph, *extras), stock(*graph, *extras))
    assert not kernel_calls


@pytest.mark.parametrize("layer", ["sage", "graph", "gin", "transformer"])
def test_other_graph_and_feature_types(layer, graph):
    x, edge_index = graph
    fused, stock = fused_pair((LAYERS | GIN_LAYERS)[layer](5))
    adjacency = torch.sparse_coo_tensor(edge_index.flip(0), torch.ones(EDGES, dtype=x.dtype), (SOURCES, SOURCES))
    for edges in (adjacency.coalesce(), EdgeIndex(edge_index, sparse_size=(SOURCES, SOURCES)), edge_index.int()):
        torch.testing.assert_close(fused(x, edges), stock(x, edges))
    batch = torch.stack([x, 2 * x])
    if layer != "transformer":
        torch.testing.assert_close(fused(batch, edge_index), stock(batch, edge_index))
    half = [conv.bfloat16() for conv in (fused, stock)]
    torch.testing.assert_close(*(conv(x.bfloat16(), edge_index) for conv in half))


def test_reasons(graph):
    x, edge_index = graph[0].float(), graph[1]
    assert not fallback_reason(FusedSAGEConv(5, 4), (x, None), edge_index)
    assert "x is of torch.float64, the weights" in fallback_reason(FusedSAGEConv(5, 4), (x.double(), None), edge_index)
    assert "max" in fallback_reason(FusedSAGEConv(5, 4, aggr="max"), x, edge_index)
    assert "mean" in fallback_reason(FusedTransformerConv(5, 4, aggr="mean"), x, edge_index)
    assert "float16" in fallback_reason(FusedSAGEConv(5, 4), (x.half(), x), edge_index)
    assert "edge features" in fallback_reason(FusedTransformerConv(5, 4, edge_dim=2), x, edge_index, edge_attr=x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert fallback_reason(FusedSAGEConv(5, 4), x, edge_index) == "autocast"


@pytest.mark.parametrize("requested", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_attention_weights_and_their_gradients(requested, dropout, bipartite, kernel_calls):
    fused, stock = fused_pair(pyg.TransformerConv((5, 3), 4, heads=2, dropout=dropout, root_weight=False))
    x, y, edge_index = bipartite
    returned = fused((x, y), edge_index, return_attention_weights=requested)[1][0]
    assert returned is edge_index
    assert_equal_with_gradients(
        fused, stock, [x, y], lambda conv, x, y: conv((x, y), edge_index, None, requested)[1][1].sin()
    )
    if not dropout:
        assert_equal_with_gradients(
            fused, stock, [x, y], lambda conv, x, y: both_outputs(*conv((x, y), edge_index, None, True))
        )
    assert kernel_calls


def both_outputs(out, weights):
    return torch.cat([out.flatten(), weights[1].flatten()])


@pytest.mark.parametrize("x", [None, (None, torch.ones(3, 5)), (torch.ones(3, 5),) * 3, "x", (torch.ones(3, 5), 1)])
@pytest.mark.parametrize("layer", ["sage", "graph", "gin", "transformer"])
def test_features_that_are_no_tensors_are_errors(x, layer, graph):
    fused, stock = fused_pair((LAYERS | GIN_LAYERS)[layer](5))
    with pytest.raises(Exception):  # noqa: B017, PT011
        stock(x, graph[1])
    with pytest.raises(GraphError, match=rf"(?s){type(fused).__name__}: x .*remedy"):
        fused(x, graph[1])


def test_missing_arguments_of_transformers_are_errors(graph):
    x, edge_index = graph
    with pytest.raises(GraphError, match="edge_attr is missing"):
        FusedTransformerConv(5, 4, edge_dim=2).double()(x, edge_index)


@pytest.mark.parametrize("layer", ["sage", "graph", "gin", "transformer heads"])
def test_first_and_second_derivatives(layer, bipartite):
    fused, _ = fused_pair((LAYERS | GIN_LAYERS)[layer](5))
    x, _, edge_index = bipartite
    inputs = (x.clone().requires_grad_(), x[:TARGETS].clone().requires_grad_())
    for check in (gradcheck, gradgradcheck):
        assert check(lambda x, y: fused((x, y), edge_index), inputs)


def test_second_derivatives_of_edge_weights(bipartite):
    fused, stock = fused_pair(pyg.GraphConv(5, 2))
    x, _, edge_index = bipartite
    results = []
    for conv in (fused, stock):
        inputs = [
            x.clone().requires_grad_(),
            torch.linspace(-1, 1, EDGES).double().requires_grad_(),
            *conv.parameters(),
        ]
        first = torch.autograd.grad(conv(inputs[0], edge_index, inputs[1]).pow(3).sum(), inputs, create_graph=True)
        results.append(torch.autograd.grad(sum(g.square().sum() for g in first), inputs))
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-10)


def test_hooks_of_parts_see_what_they_see_in_stock_layers(graph):
    seen = {}
    for conv in fused_pair(pyg.SAGEConv(5, 2)):
        conv.lin_l.register_forward_hook(lambda module, inputs, out, conv=conv: seen.update({conv: inputs[0]}))
        conv(*graph)
    torch.testing.assert_close(*seen.values())
    calls = []
    fused, _ = fused_pair(pyg.SAGEConv(5, 2))
    fused.aggr_module.register_forward_hook(lambda *_: calls.append(1))
    fused(*graph)
    assert calls == [1]


def test_a_replaced_linear_map_is_called(graph):
    fused, stock = fused_pair(pyg.GraphConv(5, 2))
    for conv in (fused, stock):
        conv.lin_rel = nn.Sequential(conv.lin_rel, nn.Tanh())
    torch.testing.assert_close(fused(*graph), stock(*graph))


def test_lazy_channels(graph):
    for conv in (FusedSAGEConv(-1, 4), FusedGraphConv(-1, 4), FusedTransformerConv(-1, 4)):
        assert conv.double()(*graph).shape == (SOURCES, 4)
        torch.testing.assert_close(unfuse_(copy.deepcopy(conv))(*graph), conv(*graph))


def test_empty_graphs(graph):
    x, no_edges = graph[0], torch.empty(2, 0, dtype=torch.long)
    for layer in (LAYERS | GIN_LAYERS).values():
        fused, stock = fused_pair(layer(5))
        assert_equal_with_gradients(fused, stock, [x], lambda conv, x: conv(x, no_edges))
        assert fused(x[:0], no_edges).shape == stock(x[:0], no_edges).shape


@pytest.mark.parametrize(
    "layer", [lambda: pyg.SAGEConv(0, 4), lambda: pyg.GINConv(nn.Linear(0, 4)), lambda: pyg.GCNConv(0, 0)]
)
def test_features_without_channels(layer, graph):
    (fused, stock), x = fused_pair(layer()), graph[0][:, :0]
    for conv in (fused, stock):
        conv(x, graph[1])  # PyG takes 0 for unknown and draws from an infinite range
        for parameter in conv.parameters():
            nn.init.ones_(parameter)
    torch.testing.assert_close(fused(x, graph[1]), stock(x, graph[1]))


def test_fuse_and_unfuse_keep_parameters_and_leave_subclasses():
    class CustomSAGEConv(pyg.SAGEConv):
        pass

    model = nn.ModuleList([pyg.GraphSAGE(5, 8, 2, 3), pyg.GIN(5, 8, 2), CustomSAGEConv(5, 4)])
    parameters = list(model.parameters())
    fuse_(model)
    assert {type(conv) for conv in model[0].convs} == {FusedSAGEConv}
    assert {type(conv) for conv in model[1].convs} == {FusedGINConv}
    assert type(model[2]) is CustomSAGEConv
    pickle.loads(pickle.dumps(model[0]))
    unfuse_(model)
    assert {type(conv) for conv in model[1].convs} == {pyg.GINConv}
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))


def test_heterogeneous_models(bipartite, kernel_calls):
    x, y, edge_index = bipartite
    features = {"paper": x, "author": y}
    edges = {("paper", "by", "author"): edge_index, ("author", "of", "paper"): edge_index.flip(0)}
    torch.manual_seed(0)
    convs = {
        ("paper", "by", "author"): pyg.SAGEConv((5, 3), 4),
        ("author", "of", "paper"): pyg.TransformerConv((3, 5), 4),
    }
    stock = pyg.HeteroConv(convs).double()
    fused = fuse_(copy.deepcopy(stock))
    for kind, out in fused(features, edges).items():
        torch.testing.assert_close(out, stock(features, edges)[kind])
    assert kernel_calls


@pytest.mark.parametrize("conv_class", [FusedSAGEConv, FusedGraphConv, FusedTransformerConv])
def test_no_allocation_of_size_edges_times_width(conv_class):
    """A tensor of 100 000 edges × 64 channels would take 24 MiB."""
    nodes, edges, width = 2000, 100_000, 64
    conv = conv_class(width, width)
    x, edge_index = torch.randn(nodes, width), torch.randint(0, nodes, (2, edges))
    conv(x, edge_index).sum().backward()  # builds the graph
    tracemalloc.start()  # NumPy arrays; torch's profiler records tensors
    with torch.profiler.profile(profile_memory=True) as profile:
        conv(x, edge_index).sum().backward()
    _, arrays = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert max(abs(event.self_cpu_memory_usage) for event in profile.events()) < edges * width * 4 / 10
    assert arrays < edges * width * 4 / 4


class Network(nn.Module):
    """Three layers with ReLUs."""

    def __init__(self, layer):
        super().__init__()
        self.conv1, self.conv2, self.conv3 = layer(5, 6), layer(6, 6), layer(6, 3)

    def forward(self, x, edge_index):
        return self.conv3(self.conv2(self.conv1(x, edge_index).relu(), edge_index).relu(), edge_index)


@pytest.mark.parametrize(
    "layer",
    [
        pyg.SAGEConv,
        pyg.GraphConv,
        lambda i, o: pyg.GINConv(mlp(i, o), train_eps=True),
        lambda i, o: pyg.TransformerConv(i, o, bias=False),
    ],
)
def test_the_same_laws_are_discovered_and_hold(layer, graph, kernel_calls):
    torch.manual_seed(0)
    stock, (x, edge_index) = Network(layer).double(), graph
    expected = [str(law) for law in discover(stock, x, edge_index)]
    fused = fuse_(copy.deepcopy(stock))
    laws = discover(fused, x, edge_index)
    assert laws
    assert [str(law) for law in laws] == expected
    kernel_calls.clear()  # discover observes all submodules, which may select PyG's implementation
    assert max(verify(fused, laws, x, edge_index)) < 1e-9
    fused(x, edge_index).square().mean().backward()
    assert max(float(delta.abs().max()) for delta in residual(laws)) < 1e-9
    assert kernel_calls

"""Edge features, bipartite input, attention weights and edge weights on the kernels: all options against PyG."""

from __future__ import annotations

import copy
import itertools
import tracemalloc
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, HeteroConv, to_hetero

from equipoise import fuse_
from equipoise.bench.explain import layer_paths
from equipoise.nn.dispatch import fallback_reason

EDGES, EDGE_DIM = 24, 4
SHAPES = {"one node type": None, "pair": (9, 9), "fewer targets": (9, 6), "fewer sources": (6, 9)}


def random(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def cotangent_product(outputs: list[Tensor]) -> Tensor:
    """A scalar on which all entries of all outputs depend differently."""
    return sum(  # type: ignore[return-value]
        (out * torch.sin(torch.arange(out.numel(), dtype=out.dtype) + i).view(out.shape)).sum()
        for i, out in enumerate(outputs)
    )


def flat(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else [tensor for part in result for tensor in flat(part)]


def values_and_gradients(conv: nn.Module, arguments: tuple[Any, ...], second: bool = False) -> list[Tensor]:
    """Outputs, gradients of inputs and parameters, and gradients of the squared norm of the gradients."""
    tensors = [tensor for argument in arguments if argument is not None for tensor in _tensors(argument)]
    variables = [t.requires_grad_() for t in tensors if t.is_floating_point()] + list(conv.parameters())
    outputs = flat(conv(*arguments))
    loss = cotangent_product([out for out in outputs if out.is_floating_point()])
    first = torch.autograd.grad(loss, variables, create_graph=second, allow_unused=True, materialize_grads=True)
    results = [*outputs, *first]
    if second:
        norm = sum(g.square().sum() for g in first if g.requires_grad)
        results += torch.autograd.grad(norm, variables, allow_unused=True, materialize_grads=True)
    return results


def _tensors(argument: Any) -> list[Tensor]:
    if isinstance(argument, Tensor):
        return [argument]
    return [part for part in argument if isinstance(part, Tensor)] if isinstance(argument, tuple) else []


def assert_equal_to_pyg(stock: nn.Module, arguments: tuple[Any, ...], tolerance: float, second: bool = False) -> None:
    fused = fuse_(copy.deepcopy(stock))
    expected = values_and_gradients(stock, arguments, second)
    result = values_and_gradients(fused, arguments, second)
    for a, b in zip(result, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@st.composite
def attention_calls(draw: Any) -> tuple[nn.Module, tuple[Any, ...], torch.dtype]:
    """A stock GAT or GATv2 layer with random options, and arguments that it accepts."""
    dtype = draw(st.sampled_from([torch.float64, torch.float64, torch.float32]))
    conv_class = draw(st.sampled_from([GATv2Conv, GATConv]))
    sizes = draw(st.sampled_from(list(SHAPES.values())))
    sources, targets = sizes or (9, 9)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    rows = [torch.randint(0, n, (EDGES,), generator=generator) for n in (sources, targets)]
    edge_index = torch.stack(rows)
    loops, edge_dim = draw(st.booleans()), draw(st.sampled_from([None, EDGE_DIM, 1]))
    fill = draw(st.sampled_from(["mean", "max", "add", 2.0, 0.5 * torch.ones(edge_dim or 1)]))
    if isinstance(fill, str) and loops:
        edge_index[1] %= min(sources, targets)  # PyG cannot reduce over targets that are not sources
    options: dict[str, Any] = {name: draw(st.booleans()) for name in ("concat", "residual", "bias")}
    if conv_class is GATv2Conv and sizes is None:
        options["share_weights"] = draw(st.booleans())
    in_channels = 5 if sizes is None else (5, 3)
    torch.manual_seed(draw(st.integers(0, 99)))
    heads, channels = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    options |= {"heads": heads, "add_self_loops": loops, "edge_dim": edge_dim, "fill_value": fill}
    conv = conv_class(in_channels, channels, **options).to(dtype)
    x: Any = random(sources, 5, dtype=dtype)
    if sizes is not None:
        x = (x, random(targets, 3, dtype=dtype, seed=1))
        if conv_class is GATConv and draw(st.integers(0, 3)) == 0 and not loops and sources >= targets:
            x = (x[0], None)
    edge_attr = None
    if edge_dim is not None and draw(st.integers(0, 3)):
        edge_attr = random(EDGES, edge_dim, dtype=dtype, seed=2)
        edge_attr = edge_attr[:, 0].clone() if edge_dim == 1 and not isinstance(fill, Tensor) else edge_attr
    size = (sources, targets) if conv_class is GATConv and draw(st.booleans()) else None
    extra = (size,) if conv_class is GATConv else ()
    return conv, (x, edge_index, edge_attr, *extra, draw(st.sampled_from([None, True]))), dtype


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(attention_calls(), st.booleans())
def test_attention_equals_pygs_over_all_options(
    call: tuple[nn.Module, tuple[Any, ...], torch.dtype], second: bool
) -> None:
    conv, arguments, dtype = call
    x, edge_index, edge_attr, *rest = arguments
    size = rest[0] if isinstance(conv, GATConv) else None
    assert not fallback_reason(fuse_(copy.deepcopy(conv)), x, edge_index, edge_attr=edge_attr, size=size)
    if dtype == torch.float64:
        assert_equal_to_pyg(conv, arguments, 1e-9, second)
    else:
        assert_equal_to_pyg(conv, arguments, 1e-4)


@pytest.mark.parametrize("conv_class", [GATv2Conv, GATConv])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradcheck_with_edge_features_and_coefficients(conv_class: Any, shape: str) -> None:
    sources, targets = SHAPES[shape] or (5, 5)
    conv = fuse_(conv_class((3, 2), 2, heads=2, edge_dim=2, fill_value=0.5).double())
    rows = [torch.randint(0, n, (8,), generator=torch.Generator().manual_seed(n)) for n in (sources, targets)]
    inputs = random(sources, 3), random(targets, 2, seed=1), random(8, 2, seed=2)

    def call(x: Tensor, y: Tensor, edge_attr: Tensor) -> tuple[Tensor, Tensor]:
        out, (_, alpha) = conv((x, y), torch.stack(rows), edge_attr, return_attention_weights=True)
        return out, alpha

    leaves = tuple(tensor.requires_grad_() for tensor in inputs)
    assert torch.autograd.gradcheck(call, leaves)
    assert torch.autograd.gradgradcheck(call, leaves)


@pytest.mark.parametrize("conv_class", [GATv2Conv, GATConv])
def test_returned_coefficients_after_dropout_are_those_of_the_output(conv_class: Any) -> None:
    conv = fuse_(conv_class(5, 4, heads=2, dropout=0.5, bias=False).double()).train()
    x, edge_index = random(9, 5).requires_grad_(), torch.randint(0, 9, (2, 40))
    out, (edges, alpha) = conv(x, edge_index, return_attention_weights=True)
    z = (conv.lin if conv_class is GATConv else conv.lin_l)(x)
    if conv_class is GATv2Conv:
        assert conv.lin_l.bias is None
    messages = alpha[..., None] * z.view(-1, 2, 4)[edges[0]]
    expected = torch.zeros(9, 2, 4, dtype=x.dtype).index_add(0, edges[1], messages)
    torch.testing.assert_close(out, expected.flatten(1))
    assert (alpha == 0).any()
    # Dropped coefficients have no gradient, the others that of the softmax times 1/(1−p).
    (gradient,) = torch.autograd.grad(alpha.square().sum(), x)
    assert gradient.abs().max() > 0


@pytest.mark.parametrize(
    ("normalize", "cached", "improved", "loops", "weights"),
    [
        options
        for options in itertools.product(*[(True, False)] * 4, (None, "constant", "parameter"))
        if options[0] or not options[3]
    ],
)
def test_gcn_equals_pygs_over_all_options(
    normalize: bool, cached: bool, improved: bool, loops: bool, weights: str | None, kernel_calls: list[int]
) -> None:
    torch.manual_seed(0)
    stock = GCNConv(5, 3, normalize=normalize, cached=cached, improved=improved, add_self_loops=loops).double()
    fused = fuse_(copy.deepcopy(stock))
    edge_index = torch.cat([torch.randint(0, 9, (2, 20)), torch.tensor([[1, 3], [1, 3]])], dim=1)
    edge_index = edge_index.unique(dim=1)  # of several self-loops of a node, PyG takes the weight of any one
    graphs = [edge_index, edge_index.flip(0)] if not (cached and weights == "parameter") else [edge_index]
    for seed, edges in enumerate(graphs):  # with cached=True, the second graph is ignored
        results = []
        for conv in (stock, fused):
            x, variables = random(9, 5), list(conv.parameters())
            weight = random(edges.shape[1], seed=seed).abs() if weights else None
            variables += [x.requires_grad_(), *([weight.requires_grad_()] if weights == "parameter" else [])]
            out = conv(x, edges, weight)
            first = torch.autograd.grad(out.pow(3).sum(), variables, create_graph=True)
            second = torch.autograd.grad(sum(g.square().sum() for g in first), variables, materialize_grads=True)
            results.append([out, *first, *second])
        torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-10)
    assert kernel_calls
    if cached and normalize:
        assert torch.equal(fused._cached_edge_index[0], stock._cached_edge_index[0])


def test_gcn_notices_changed_edge_weights() -> None:
    stock = GCNConv(5, 3).double()
    fused, x, edge_index, weight = fuse_(copy.deepcopy(stock)), random(9, 5), torch.randint(0, 9, (2, 20)), None
    for seed in range(3):
        weight = random(20, seed=seed).abs()
        torch.testing.assert_close(fused(x, edge_index, weight), stock(x, edge_index, weight))
        weight.numpy()[3] += 1
        torch.testing.assert_close(fused(x, edge_index, weight), stock(x, edge_index, weight))


def test_a_graph_first_used_in_inference_mode_can_be_trained_on() -> None:
    conv, x, edge_index, weight = GCNConv(5, 3).double(), random(9, 5), torch.randint(0, 9, (2, 20)), random(20).abs()
    fuse_(conv)
    for arguments in ((x, edge_index), (x, edge_index, weight)):
        with torch.inference_mode():
            expected = conv(*arguments)
        out = conv(*arguments)
        out.sum().backward()
        torch.testing.assert_close(out, expected)


def hetero_data() -> HeteroData:
    data = HeteroData()
    data["author"].x, data["paper"].x = random(7, 5, dtype=torch.float32), random(11, 6, dtype=torch.float32, seed=1)
    for source, relation, target in (("author", "writes", "paper"), ("paper", "cites", "paper")):
        rows = [torch.randint(0, data[kind].num_nodes, (30,)) for kind in (source, target)]
        data[source, relation, target].edge_index = torch.stack(rows)
    data["paper", "by", "author"].edge_index = data["author", "writes", "paper"].edge_index.flip(0)
    return data


@pytest.mark.parametrize("conv_class", [GATv2Conv, GATConv])
def test_hetero_conv(conv_class: Any) -> None:
    torch.manual_seed(0)
    data = hetero_data()
    options = {"add_self_loops": False, "heads": 2}
    stock = HeteroConv({edge_type: conv_class((-1, -1), 8, **options) for edge_type in data.edge_types}, aggr="sum")
    with torch.no_grad():
        stock(data.x_dict, data.edge_index_dict)  # initialises lazy parameters
    fused = fuse_(copy.deepcopy(stock))
    inputs = data.x_dict, data.edge_index_dict
    assert {path.path for path in layer_paths(fused, *inputs)} == {"fused"}
    torch.testing.assert_close(fused(*inputs), stock(*inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("conv_class", [GATv2Conv, GATConv])
def test_to_hetero_model_from_lazy_layers(conv_class: Any) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = conv_class((-1, -1), 8, add_self_loops=False)
            self.conv2 = conv_class((-1, -1), 3, add_self_loops=False)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.conv2(self.conv1(x, edge_index).relu(), edge_index)

    data = hetero_data()
    fused = fuse_(to_hetero(Model(), data.metadata()))
    inputs = data.x_dict, data.edge_index_dict
    with torch.no_grad():
        fused(*inputs)  # the first call of lazy layers is fused, too
    stock = to_hetero(Model(), data.metadata())
    with torch.no_grad():
        stock(*inputs)
    stock.load_state_dict(fused.state_dict())
    assert {path.path for path in layer_paths(fused, *inputs)} == {"fused"}
    torch.testing.assert_close(fused(*inputs), stock(*inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("conv_class", [GATv2Conv, GATConv])
def test_sampled_mini_batches_with_a_prefix_of_targets(conv_class: Any) -> None:
    """As from a NeighborLoader: targets are the first sources, and every batch brings a new graph."""
    torch.manual_seed(0)
    stock = conv_class(5, 8, heads=2, residual=True)
    fused = fuse_(copy.deepcopy(stock))
    for batch in range(5):
        sources, targets = 40 + batch, 10 + 2 * batch
        x = random(sources, 5, dtype=torch.float32, seed=batch)
        edge_index = torch.stack([torch.randint(0, sources, (60,)), torch.randint(0, targets, (60,))])
        inputs = ((x, x[:targets]), edge_index)
        assert not fallback_reason(fused, *inputs)
        results = []
        for conv in (fused, stock):
            out = conv(*inputs)
            assert out.shape == (targets, 16)
            results.append([out, *torch.autograd.grad(out.square().sum(), list(conv.parameters()))])
        torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("conv_class", "rows"), [(GATConv, 0), (GATv2Conv, 2)])
def test_memory_with_edge_features(conv_class: Any, rows: int) -> None:
    """GATv2 needs projected edge features and their gradient; GAT nothing of size edges × channels."""
    nodes, edges, width = 2000, 100_000, 64
    conv = fuse_(conv_class(width, width, edge_dim=4, bias=False))
    x, edge_index, edge_attr = torch.randn(nodes, width), torch.randint(0, nodes, (2, edges)), torch.randn(edges, 4)
    conv(x, edge_index, edge_attr)  # builds the graph
    allocated = 0
    tracemalloc.start()  # NumPy arrays; torch's profiler records tensors
    with torch.profiler.profile(profile_memory=True) as profile:
        conv(x, edge_index, edge_attr).sum().backward()
    _, arrays = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    row_bytes = edges * width * 4
    allocated = sum(event.self_cpu_memory_usage >= row_bytes // 2 for event in profile.events())
    assert allocated + arrays // row_bytes <= rows


def test_relu_in_the_kernel_with_edge_features_and_coefficients() -> None:
    for conv_class in (GATv2Conv, GATConv):
        conv = fuse_(conv_class(5, 8, heads=2, edge_dim=4, bias=False).double())
        x, edge_index, edge_attr = random(9, 5), torch.randint(0, 9, (2, 24)), random(24, 4)
        results = []
        for relu in (True, False):
            out, (_, alpha) = conv(x, edge_index, edge_attr, return_attention_weights=True, relu=relu)
            out = out if relu else out.relu()
            loss = out.square().sum() + (alpha * random(*alpha.shape)).sum()
            results.append([out, *torch.autograd.grad(loss, list(conv.parameters()))])
        torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize("conv_class", [GATv2Conv, GATConv])
def test_returned_edges_can_be_modified(conv_class: Any) -> None:
    stock = conv_class(5, 4).double()
    fused, x, edge_index = fuse_(copy.deepcopy(stock)), random(9, 5), torch.randint(0, 9, (2, 20))
    for _ in range(2):
        _, (edges, alpha) = fused(x, edge_index, return_attention_weights=True)
        expected = stock(x, edge_index, return_attention_weights=True)[1]
        torch.testing.assert_close((edges, alpha), expected)
        edges.zero_()


def test_hooks_of_the_linear_map_of_edges_are_called() -> None:
    conv = fuse_(GATConv(5, 4, edge_dim=2).double())
    arguments = random(9, 5), torch.randint(0, 9, (2, 20)), random(20, 2)
    expected, calls = conv(*arguments), []
    conv.lin_edge.register_forward_hook(lambda *_: calls.append(1))
    torch.testing.assert_close(conv(*arguments), expected)
    assert calls == [1]

"""Operators of torch.library: their registration, and compiled and exported models against eager ones."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv

from equipoise import Stack, fuse_
from equipoise.errors import EdgeIndexError, GraphError
from equipoise.nn import operators
from equipoise.nn.omega_gat import OmegaGATConv

NODES, FEATURES, EDGES, EDGE_DIM = 12, 5, 40, 3


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def edge_index() -> Tensor:
    return torch.randint(NODES, (2, EDGES), generator=torch.Generator().manual_seed(0))  # with self-loops


def leaf(*shape: int, seed: int = 0) -> Tensor:
    return random(*shape, seed=seed).requires_grad_()


class TestRegistration:
    """``opcheck`` compares schema, fake outputs and gradients with the operator itself."""

    @pytest.mark.parametrize("loops", [True, False])
    @pytest.mark.parametrize("edges", [True, False])
    def test_gatv2(self, edge_index: Tensor, loops: bool, edges: bool) -> None:
        rows = EDGES + NODES * loops
        edge = leaf(rows, 2, 8, seed=1) if edges else None
        target = None if edges else leaf(NODES, 2, 8, seed=2)
        mask = random(0) if loops else random(rows, 2, seed=4).abs()
        arguments = (edge_index, leaf(NODES, 2, 8), target, edge, leaf(2, 8, seed=3), 0.2, mask, False, loops)
        torch.library.opcheck(operators.gatv2, arguments)
        out, alpha = operators.gatv2(*arguments)
        backward = (torch.ones_like(out), out, alpha, *arguments)
        detached = [argument.detach() if isinstance(argument, Tensor) else argument for argument in backward]
        torch.library.opcheck(operators.gatv2_backward, tuple(detached))

    @pytest.mark.parametrize("loops", [True, False])
    @pytest.mark.parametrize("edges", [True, False])
    def test_gat(self, edge_index: Tensor, loops: bool, edges: bool) -> None:
        edge = leaf(EDGES + NODES * loops, 2, seed=1) if edges else None
        p, q = leaf(NODES, 2, seed=2), leaf(NODES, 2, seed=3)
        arguments = (edge_index, leaf(NODES, 2, 8), p, q, edge, 0.2, random(0), True, loops)
        torch.library.opcheck(operators.gat, arguments)
        out, alpha = operators.gat(*arguments)
        backward = (torch.ones_like(out), out, alpha, *arguments)
        detached = [argument.detach() if isinstance(argument, Tensor) else argument for argument in backward]
        torch.library.opcheck(operators.gat_backward, tuple(detached))

    @pytest.mark.parametrize("transposed", [True, False])
    def test_gcn(self, edge_index: Tensor, transposed: bool) -> None:
        torch.library.opcheck(operators.gcn, (edge_index, leaf(NODES, 8), True, True, transposed))

    def test_gradcheck(self, edge_index: Tensor) -> None:
        rows = EDGES + NODES
        inputs = (leaf(NODES, 1, 8), leaf(NODES, 1, 8, seed=1), leaf(rows, 1, 8, seed=2), leaf(1, 8, seed=3))
        mask = torch.rand(rows, 1, dtype=torch.float64)

        def attention(*tensors: Tensor) -> Any:
            return operators.gatv2(edge_index, *tensors, 0.2, mask, False, True)[0]

        assert torch.autograd.gradcheck(attention, inputs, fast_mode=True)


class Model(nn.Module):
    """Three layers with the same further arguments."""

    def __init__(self, conv_class: Any, **options: Any) -> None:
        super().__init__()
        heads = {} if conv_class is GCNConv else {"heads": 2}
        width = 6 if conv_class is GCNConv else 12
        self.convs = nn.ModuleList(
            [
                conv_class(FEATURES, 6, **heads, **options),
                conv_class(width, 6, **heads, **options),
                conv_class(width, 3, **options),
            ]
        )

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        arguments = (edge_index,) if edge_attr is None else (edge_index, edge_attr)
        for conv in self.convs[:-1]:
            x = conv(x, *arguments).relu()
        out: Tensor = self.convs[-1](x, *arguments)
        return out


CALLS: dict[str, Any] = {
    "gatv2": (lambda: Model(GATv2Conv), False),
    "gatv2 edge features": (lambda: Model(GATv2Conv, edge_dim=EDGE_DIM), True),
    "gatv2 without self-loops": (lambda: Model(GATv2Conv, edge_dim=EDGE_DIM, add_self_loops=False), True),
    "gat": (lambda: Model(GATConv), False),
    "gat edge features": (lambda: Model(GATConv, edge_dim=EDGE_DIM, fill_value="max"), True),
    "gcn": (lambda: Model(GCNConv), False),
    "omega-gat": (lambda: Model(OmegaGATConv), False),
    "stack": (lambda: Stack("gatv2", [FEATURES, 8, 8, 3]), False),
}


@pytest.fixture
def fresh_compiler() -> None:
    torch.compiler.reset()


def loss_and_gradients(model: nn.Module, arguments: tuple[Any, ...]) -> list[Tensor]:
    out = model(*arguments)
    loss = (out * random(*out.shape, seed=9)).sum()
    return [out, *torch.autograd.grad(loss, list(model.parameters()))]


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("call", CALLS)
def test_compiled_and_exported_models_equal_eager_ones(call: str, edge_index: Tensor) -> None:
    torch.manual_seed(0)
    build, with_edges = CALLS[call]
    model = fuse_(build().double())
    arguments = (random(NODES, FEATURES), edge_index, *((random(EDGES, EDGE_DIM, seed=1),) if with_edges else ()))
    expected = loss_and_gradients(model, arguments)
    compiled = torch.compile(copy.deepcopy(model), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(loss_and_gradients(compiled, arguments), expected, rtol=1e-12, atol=1e-12)
    exported = torch.export.export(model, arguments)
    kernels = [node for node in exported.graph.nodes if "equipoise" in str(node.target)]
    assert len(kernels) == len(model.convs)
    torch.testing.assert_close(exported.module()(*arguments), expected[0], rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_model_follows_the_graph_and_its_size() -> None:
    """Dynamic shapes: bipartite mini-batches of different sizes compile once."""
    conv = fuse_(GATv2Conv((FEATURES, FEATURES), 4).double())
    graphs = []

    def count(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(conv, fullgraph=True, dynamic=True, backend=count)
    for seed, (sources, targets, edges) in enumerate([(9, 6, 20), (14, 7, 31), (11, 8, 25)]):
        rows = [torch.randint(n, (edges,)) for n in (sources, targets)]
        arguments = ((random(sources, FEATURES, seed=seed), random(targets, FEATURES, seed=8)), torch.stack(rows))
        torch.testing.assert_close(compiled(*arguments), conv(*arguments))
        arguments[1][0, 0] = (arguments[1][0, 0] + 1) % sources
        torch.testing.assert_close(compiled(*arguments), conv(*arguments))
    assert len(graphs) == 1


@pytest.mark.usefixtures("fresh_compiler")
def test_dropout_in_a_compiled_layer(edge_index: Tensor) -> None:
    conv = fuse_(GATv2Conv(FEATURES, 4, dropout=0.5, bias=False).double()).train()
    compiled = torch.compile(conv, fullgraph=True, backend="eager")
    x, results = random(NODES, FEATURES), []
    for layer in (compiled, conv):
        torch.manual_seed(0)
        results.append(torch.stack([layer(x, edge_index) for _ in range(400)]).mean(dim=0))
    conv.eval()
    expected = conv(x, edge_index)
    for result in results:
        assert float((result - expected).detach().norm() / expected.detach().norm()) < 0.15


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("conv_class", [GATv2Conv, GATConv])
def test_attention_weights_of_a_compiled_layer_are_pygs(conv_class: Any, edge_index: Tensor) -> None:
    conv = fuse_(conv_class(FEATURES, 4).double())
    compiled = torch.compile(lambda *arguments: conv(*arguments, return_attention_weights=True), backend="eager")
    x = random(NODES, FEATURES)
    torch.testing.assert_close(compiled(x, edge_index), conv(x, edge_index, return_attention_weights=True))


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("conv_class", [GATv2Conv, GATConv])
def test_training_step_compiled_by_inductor(conv_class: Any, edge_index: Tensor) -> None:
    torch.manual_seed(0)
    model = fuse_(Model(conv_class).double())
    twin, x = copy.deepcopy(model), random(NODES, FEATURES)
    for network in (model, twin):
        step = torch.compile(network, fullgraph=True) if network is model else network
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        step(x, edge_index).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(list(model.parameters()), list(twin.parameters()), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("edge_index is", {0: torch.zeros(3, dtype=torch.long)}),
        ("edge_index is", {0: torch.zeros(2, 4)}),
        ("features are", {1: torch.ones(5, 2, 7)}),
        ("features are", {1: torch.ones(5, 2, 8, dtype=torch.float16)}),
        ("target is", {2: torch.ones(5, 1, 8)}),
        ("edge is", {3: torch.ones(2, 2, 8)}),
        ("att is", {4: torch.ones(2, 4)}),
        ("att is", {4: torch.ones(2, 8, dtype=torch.float64)}),
        ("dropout_mask is", {6: torch.ones(1, 2)}),
    ],
)
def test_operators_refuse_malformed_arguments(name: str, changes: dict[int, Tensor]) -> None:
    edge_index = torch.tensor([[0, 1], [1, 2]])
    arguments = [edge_index, torch.ones(5, 2, 8), None, None, torch.ones(2, 8), 0.2, torch.ones(0), False, True]
    assert torch.ops.equipoise.gatv2(*arguments)[0].shape == (5, 2, 8)
    for index, value in changes.items():
        arguments[index] = value
    with pytest.raises(GraphError, match=name):
        torch.ops.equipoise.gatv2(*arguments)


def test_indices_out_of_range_are_refused_by_operators() -> None:
    edge_index = torch.tensor([[0, 7], [1, 2]])
    with pytest.raises(EdgeIndexError):
        torch.ops.equipoise.gcn(edge_index, torch.ones(5, 8), True, True, False)
    mask, z = torch.ones(0), torch.ones(5, 2, 8)
    with pytest.raises(GraphError, match="p is"):
        torch.ops.equipoise.gat(edge_index % 5, z, torch.ones(5, 1), torch.ones(5, 2), None, 0.2, mask, False, True)

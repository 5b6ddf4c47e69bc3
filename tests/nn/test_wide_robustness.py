"""Edge features, bipartite input and edge weights in every mode of torch, and malformed ones."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv

from equipoise import fuse_
from equipoise.errors import GraphError

EDGES, EDGE_DIM = 24, 4


def random(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def wide_calls() -> dict[str, tuple[nn.Module, tuple[Any, ...]]]:
    """One call per kind of additional argument, in float64."""
    torch.manual_seed(0)
    x, y, edge_index = random(9, 5), random(6, 5, seed=1), torch.randint(0, 6, (2, EDGES))
    edge_attr = random(EDGES, EDGE_DIM, seed=2)
    return {
        "gatv2 edge features": (GATv2Conv(5, 8, heads=2, edge_dim=EDGE_DIM).double(), (x, edge_index, edge_attr)),
        "gat edge features": (GATConv(5, 8, heads=2, edge_dim=EDGE_DIM).double(), (x, edge_index, edge_attr)),
        "gatv2 pair": (GATv2Conv((5, 5), 8, edge_dim=EDGE_DIM).double(), ((x, y), edge_index, edge_attr)),
        "gat pair": (GATConv((5, 5), 8).double(), ((x, y), edge_index)),
        "gcn weights": (GCNConv(5, 8).double(), (x, edge_index, edge_attr[:, 0].abs())),
    }


def forward_mode(conv: nn.Module, arguments: tuple[Any, ...]) -> Tensor:
    x = arguments[0] if isinstance(arguments[0], Tensor) else arguments[0][0]

    def call(features: Tensor) -> Tensor:
        first = features if arguments[0] is x else (features, arguments[0][1])
        out: Tensor = conv(first, *arguments[1:])
        return out

    out: Tensor = torch.func.jvp(call, (x,), (torch.ones_like(x),))[1]
    return out


def autocast(conv: nn.Module, arguments: tuple[Any, ...]) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out: Tensor = conv(*arguments)
    return out


def inference(conv: nn.Module, arguments: tuple[Any, ...]) -> Tensor:
    with torch.inference_mode():
        copies = [tuple(t.clone() for t in a) if isinstance(a, tuple) else a.clone() for a in arguments]
        out: Tensor = conv(*copies)
    return out


def gradient_of_functional_call(conv: nn.Module, arguments: tuple[Any, ...]) -> list[Tensor]:
    def loss(parameters: dict[str, Tensor]) -> Tensor:
        out: Tensor = torch.func.functional_call(conv, parameters, arguments)
        return out.square().sum()

    return list(torch.func.grad(loss)(dict(conv.named_parameters())).values())


@pytest.mark.parametrize("call", wide_calls())
@pytest.mark.parametrize("mode", [forward_mode, autocast, inference, gradient_of_functional_call])
def test_modes_of_torch(call: str, mode: Any) -> None:
    stock, arguments = wide_calls()[call]
    fused = fuse_(copy.deepcopy(stock))
    torch.testing.assert_close(mode(fused, arguments), mode(stock, arguments))


@pytest.mark.parametrize("call", wide_calls())
def test_a_graph_edited_through_numpy_is_noticed(call: str) -> None:
    stock, arguments = wide_calls()[call]
    fused = fuse_(copy.deepcopy(stock))
    fused(*arguments)
    arguments[1].numpy()[0, 3] = (arguments[1][0, 3] + 1) % 6
    torch.testing.assert_close(fused(*arguments), stock(*arguments))


@pytest.mark.parametrize("call", wide_calls())
def test_pygs_message_hooks_are_called(call: str) -> None:
    stock, arguments = wide_calls()[call]
    fused, calls = fuse_(copy.deepcopy(stock)), []
    fused.register_message_forward_hook(lambda *_: calls.append(1))
    torch.testing.assert_close(fused(*arguments), stock(*arguments))
    assert calls == [1]


MALFORMED = {
    "edge_attr has shape": lambda x, e: (GATv2Conv(5, 8, edge_dim=4), (x, e, torch.ones(EDGES, 3))),
    "edge_attr is a list": lambda x, e: (GATConv(5, 8, edge_dim=1), (x, e, [1.0] * EDGES)),
    "edge_weight has shape": lambda x, e: (GCNConv(5, 8), (x, e, torch.ones(EDGES - 1))),
    "x is a tuple of 1": lambda x, e: (GATv2Conv(5, 8), ((x,), e)),
    "pair (NoneType, Tensor)": lambda x, e: (GATConv((5, 5), 8), ((None, x), e)),
    "size=(4, 5), but x has 9 sources": lambda x, e: (GATConv(5, 8), (x, e, None, (4, 5))),
}


@pytest.mark.parametrize("problem", MALFORMED)
def test_a_malformed_argument_is_named(problem: str) -> None:
    stock, arguments = MALFORMED[problem](random(9, 5, dtype=torch.float32), torch.randint(0, 6, (2, EDGES)))
    with pytest.raises((AssertionError, AttributeError, IndexError, RuntimeError, TypeError, ValueError)):
        stock(*arguments)
    with pytest.raises(GraphError) as caught:
        fuse_(stock)(*arguments)
    assert f"Fused{type(stock).__name__.removeprefix('Fused')}: " in str(caught.value)
    assert problem in str(caught.value)
    assert "remedy" in str(caught.value)

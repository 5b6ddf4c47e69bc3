"""The whole stack as one function, against the same stack layer by layer."""

import copy

import pytest
import torch
from torch import nn

from equipoise.init.schemes import initialize_
from equipoise.nn import chain, stack
from equipoise.nn.stack import Stack


@pytest.fixture
def graph():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 12, generator=generator) * (torch.rand(40, 12, generator=generator) < 0.3)
    return x, torch.randint(0, 39, (2, 120), generator=generator)


@pytest.fixture
def chains(monkeypatch):
    """How often a stack ran as one function."""
    calls = []
    original = stack.chained
    monkeypatch.setattr(stack, "chained", lambda *arguments: (calls.append(1), original(*arguments))[1])
    return calls


def results(model, x, edge_index, apart=False):
    """Outputs and gradients; apart: a hook on every layer, which sees all that goes through."""
    model, x = copy.deepcopy(model), x.clone()
    if x.layout == torch.strided:
        x.requires_grad_()
    if apart:
        for conv in model.convs:
            conv.register_forward_hook(lambda *_: None)
    out = model(x, edge_index)
    out.pow(2)[:5].sum().backward()
    return [out.detach(), *([x.grad] if x.requires_grad else []), *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "widths", [[12, 7], [12, 16, 3], [12, 8, 8, 8, 8], [12, 24, 64, 5]], ids=lambda widths: "-".join(map(str, widths))
)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_is_the_stack_layer_by_layer(widths, dtype, sparse, heads, graph, chains):
    model = initialize_(Stack("gatv2", widths, heads=heads), "bal-o", generator=torch.Generator().manual_seed(0))
    model, x = model.to(dtype), graph[0].to(dtype)
    x = x.to_sparse_csr() if sparse else x
    together = results(model, x, graph[1])
    assert len(chains) == 1
    apart = results(model, x, graph[1], apart=True)
    assert len(chains) == 1, "the hooks were not seen"
    for a, b in zip(together, apart, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=1e-6)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_large_products_are_computed_again_and_the_numbers_stay(sparse, graph, monkeypatch):
    model = Stack("gatv2", [12, 8, 16, 8, 3])
    x = graph[0].to_sparse_csr() if sparse else graph[0]
    expected = results(model, x, graph[1])
    monkeypatch.setattr(chain, "KEEP", 0)
    for a, b in zip(results(model, x, graph[1]), expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    "options",
    [
        {"bias": True},
        {"skip": "linear"},
        {"skip": "identity"},
        {"dropout": 0.5},
        {"attention_dropout": 0.5},
        {"activation": "elu"},
        {"share_weights": False},
        {"heads": 2, "concat": False},
    ],
    ids=str,
)
def test_other_stacks_go_layer_by_layer(options, graph, chains):
    Stack("gatv2", [12, 8, 8, 3], **options)(*graph)
    assert not chains


def test_without_training_dropout_is_no_obstacle(graph, chains):
    Stack("gatv2", [12, 8, 3], dropout=0.5).eval()(*graph)
    assert chains


def test_frozen_parameters_and_parametrized_matrices(graph, chains):
    model = Stack("gatv2", [12, 8, 8, 3])
    model.convs[1].att.requires_grad_(False)
    model(*graph).sum().backward()
    assert chains
    assert model.convs[1].att.grad is None
    assert model.convs[0].lin_l.weight.grad.abs().sum() > 0
    nn.utils.parametrizations.weight_norm(model.convs[0].lin_l)
    expected = results(model, *graph, apart=True)
    for a, b in zip(results(model, *graph), expected, strict=True):
        if b is not None:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_way_back_twice_gives_the_same(graph):
    model = Stack("gatv2", [12, 8, 8, 3])
    loss = model(*graph).pow(2).sum()
    first = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    second = torch.autograd.grad(loss, list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_two_ways_forward_before_one_way_back(graph):
    model, (x, edge_index) = Stack("gatv2", [12, 8, 3]), graph
    first, second = model(x, edge_index), model(2 * x, edge_index)
    one = torch.autograd.grad(first.sum(), model.convs[0].lin_l.weight)[0]
    torch.testing.assert_close(one, torch.autograd.grad(model(x, edge_index).sum(), model.convs[0].lin_l.weight)[0])
    assert second.shape == first.shape


def test_function_modes_see_every_function(graph, chains):
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Mode():
        Stack("gatv2", [12, 8, 3])(*graph)
    assert not chains
    assert torch.nn.functional.relu in seen

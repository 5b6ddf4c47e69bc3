"""A stack as one autograd function, against the same stack layer by layer."""

import copy

import pytest
import torch
from torch import nn

from equipoise.init.schemes import initialize_
from equipoise.nn import stack, stack_plan
from equipoise.nn.stack import Stack


@pytest.fixture
def graph():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 12, generator=generator) * (torch.rand(40, 12, generator=generator) < 0.3)
    return x, torch.randint(0, 39, (2, 120), generator=generator)


@pytest.fixture
def fused_calls(monkeypatch):
    """One entry per call of a stack as one function."""
    calls = []
    original = stack.fused_forward
    monkeypatch.setattr(stack, "fused_forward", lambda *arguments: (calls.append(1), original(*arguments))[1])
    return calls


def outputs_and_gradients(model, x, edge_index, layer_by_layer=False):
    """Outputs and gradients; ``layer_by_layer`` prevents fusing by a hook on every layer."""
    model, x = copy.deepcopy(model), x.clone()
    if x.layout == torch.strided:
        x.requires_grad_()
    if layer_by_layer:
        for conv in model.convs:
            conv.register_forward_hook(lambda *_: None)
    out = model(x, edge_index)
    out.pow(2)[:5].sum().backward()
    return [out.detach(), *([x.grad] if x.requires_grad else []), *(p.grad for p in model.parameters())]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize(
    "widths", [[12, 7], [12, 16, 3], [12, 8, 8, 8, 8], [12, 24, 64, 5]], ids=lambda widths: "-".join(map(str, widths))
)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_equals_the_stack_layer_by_layer(widths, dtype, tolerance, sparse, heads, graph, fused_calls):
    model = initialize_(Stack("gatv2", widths, heads=heads), "bal-o", generator=torch.Generator().manual_seed(0))
    model, x = model.to(dtype), graph[0].to(dtype)
    x = x.to_sparse_csr() if sparse else x
    fused = outputs_and_gradients(model, x, graph[1])
    assert len(fused_calls) == 1
    layer_by_layer = outputs_and_gradients(model, x, graph[1], layer_by_layer=True)
    assert len(fused_calls) == 1, "fused in spite of hooks"
    for a, b in zip(fused, layer_by_layer, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance / 10)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_recomputed_products_give_identical_results(sparse, graph, monkeypatch):
    model = Stack("gatv2", [12, 8, 16, 8, 3])
    x = graph[0].to_sparse_csr() if sparse else graph[0]
    expected = outputs_and_gradients(model, x, graph[1])
    monkeypatch.setattr(stack_plan, "MAX_SAVED_BYTES", 0)
    model = copy.deepcopy(model)  # without the plan that was made before
    for a, b in zip(outputs_and_gradients(model, x, graph[1]), expected, strict=True):
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
def test_unsupported_stacks_run_layer_by_layer(options, graph, fused_calls):
    Stack("gatv2", [12, 8, 8, 3], **options)(*graph)
    assert not fused_calls


def test_dropout_does_not_prevent_fusing_in_eval_mode(graph, fused_calls):
    Stack("gatv2", [12, 8, 3], dropout=0.5).eval()(*graph)
    assert fused_calls


def test_frozen_parameters_and_parametrized_matrices(graph, fused_calls):
    model = Stack("gatv2", [12, 8, 8, 3])
    model.convs[1].att.requires_grad_(False)
    model(*graph).sum().backward()
    assert fused_calls
    assert model.convs[1].att.grad is None
    assert model.convs[0].lin_l.weight.grad.abs().sum() > 0
    nn.utils.parametrizations.weight_norm(model.convs[0].lin_l)
    expected = outputs_and_gradients(model, *graph, layer_by_layer=True)
    for a, b in zip(outputs_and_gradients(model, *graph), expected, strict=True):
        if b is not None:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_two_backward_passes_give_identical_gradients(graph):
    model = Stack("gatv2", [12, 8, 8, 3])
    loss = model(*graph).pow(2).sum()
    first = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    second = torch.autograd.grad(loss, list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_two_forward_passes_before_one_backward_pass(graph):
    model, (x, edge_index) = Stack("gatv2", [12, 8, 3]), graph
    first, second = model(x, edge_index), model(2 * x, edge_index)
    one = torch.autograd.grad(first.sum(), model.convs[0].lin_l.weight)[0]
    torch.testing.assert_close(one, torch.autograd.grad(model(x, edge_index).sum(), model.convs[0].lin_l.weight)[0])
    assert second.shape == first.shape


def test_function_modes_see_every_function(graph, fused_calls):
    functions = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            functions.append(func)
            return func(*args, **(kwargs or {}))

    with Mode():
        Stack("gatv2", [12, 8, 3])(*graph)
    assert not fused_calls
    assert torch.nn.functional.relu in functions


def test_gradients_have_the_strides_of_their_parameters():
    """DistributedDataParallel warns of others; three classes are padded to a SIMD vector."""
    stack = Stack("gatv2", [5, 8, 3], share_weights=True, bias=False)
    strides = []
    for parameter in stack.parameters():
        parameter.register_hook(lambda gradient: strides.append(gradient.stride()))
    stack(torch.randn(6, 5), torch.randint(6, (2, 20))).sum().backward()
    assert sorted(strides) == sorted(parameter.stride() for parameter in stack.parameters())

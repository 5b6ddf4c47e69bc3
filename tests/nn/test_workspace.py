"""Plans and workspaces: reuse, validity and release."""

import copy
import gc
import weakref

import pytest
import torch

from equipoise.nn import stack_plan
from equipoise.nn.hooks import ObserverHook
from equipoise.nn.stack import Stack
from equipoise.nn.workspace import MAX_POOLED, Workspace


@pytest.fixture(params=[False, True], ids=["directed", "symmetric"])
def graph(request):
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, 40, (2, 120), generator=generator)
    if request.param:
        edge_index = torch.cat([edge_index, edge_index.flip(0)], dim=1)
    return torch.randn(40, 12, generator=generator, dtype=torch.float64), edge_index


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Stack("gatv2", [12, 16, 16, 5]).double()


@pytest.fixture
def created(monkeypatch):
    """Weak references to all workspaces made during the test."""
    references, original = [], Workspace.__init__

    def init(self, *arguments, **keywords):
        references.append(weakref.ref(self))
        original(self, *arguments, **keywords)

    monkeypatch.setattr(Workspace, "__init__", init)
    return references


@pytest.fixture(params=["small", "large"])
def size(request, monkeypatch):
    """A small graph, or one that counts as large: workspaces are not reused, backward passes overwrite outputs."""
    if request.param == "large":
        monkeypatch.setattr(stack_plan, "MAX_POOLED_BYTES", 0)


def gradients(model, x, edge_index):
    """Output and gradients of a copy, which has a plan of its own."""
    model = copy.deepcopy(model)
    out = model(x, edge_index)
    return [out.detach(), *torch.autograd.grad(out.pow(2).sum(), list(model.parameters()))]


def step(model, x, edge_index):
    out = model(x, edge_index)
    return [out.detach(), *torch.autograd.grad(out.pow(2).sum(), list(model.parameters()))]


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_passes_reuse_one_workspace_with_identical_results(model, graph, created):
    first = step(model, *graph)
    gc.disable()  # a reference cycle would keep the workspace from returning
    try:
        for _ in range(5):
            assert equal(step(model, *graph), first)
            with torch.no_grad():
                assert torch.equal(model(*graph), first[0])
    finally:
        gc.enable()
    assert len(created) == 1


def test_results_belong_to_the_caller(model, graph):
    first = step(model, *graph)
    kept = [tensor.clone() for tensor in first]
    step(model, 3 * graph[0], graph[1])
    assert equal(first, kept)


def test_passes_that_overlap_get_separate_workspaces(model, graph, created):
    x, edge_index = graph
    expected = [gradients(model, factor * x, edge_index) for factor in (1, 2, 3)]
    created.clear()
    outputs = [model(factor * x, edge_index) for factor in (1, 2, 3)]
    for out, reference in zip(outputs, expected, strict=True):
        assert equal([out.detach(), *torch.autograd.grad(out.pow(2).sum(), list(model.parameters()))], reference)
    assert len(created) == 3
    del outputs, out
    gc.collect()
    assert sum(reference() is not None for reference in created) <= MAX_POOLED


@pytest.mark.usefixtures("size")
def test_repeated_backward_passes_with_another_pass_in_between(model, graph):
    out, parameters = model(*graph), list(model.parameters())
    first = torch.autograd.grad(out.pow(2).sum(), parameters, retain_graph=True)
    step(model, 2 * graph[0], graph[1])
    assert equal(torch.autograd.grad(out.pow(2).sum(), parameters, retain_graph=True), first)
    assert equal(torch.autograd.grad(out.pow(2).sum(), parameters), first)


def change_values(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)


def replace_storage(model):
    model.convs[1].lin_l.weight.data = model.convs[1].lin_l.weight.data * 2


def transpose_in_place(model):
    model.convs[1].lin_l.weight.data = model.convs[1].lin_l.weight.data.t()  # the same address, other strides


def replace_parameter(model):
    model.convs[0].att = torch.nn.Parameter(model.convs[0].att.detach() * 2)


def change_slope(model):
    model.convs[0].negative_slope = 0.5


def change_last_layer(model):
    with torch.no_grad():
        model.convs[-1].lin_l.weight.mul_(-1)  # padded, so the plan holds a copy


@pytest.mark.parametrize(
    "change",
    [change_values, replace_storage, transpose_in_place, replace_parameter, change_slope, change_last_layer],
    ids=lambda change: change.__name__,
)
def test_changes_of_the_model_take_effect(change, model, graph):
    before = step(model, *graph)
    change(model)
    after = step(model, *graph)
    assert not torch.equal(after[0], before[0])
    assert equal(after, gradients(model, *graph))


def test_another_graph_or_dtype_takes_effect(model, graph):
    x, edge_index = graph
    step(model, x, edge_index)
    assert equal(step(model, x[:30], edge_index % 30), gradients(model, x[:30], edge_index % 30))
    assert equal(step(model, x, edge_index), gradients(model, x, edge_index))
    assert step(model.float(), x.float(), edge_index)[0].dtype == torch.float32


def test_large_workspaces_are_freed_after_the_pass(model, graph, created, monkeypatch):
    monkeypatch.setattr(stack_plan, "MAX_POOLED_BYTES", 0)
    expected = step(model, *graph)
    assert created[0]() is None
    monkeypatch.setattr(stack_plan, "MAX_SAVED_BYTES", 0)
    assert equal(step(model, *graph), expected)
    with torch.no_grad():  # layers share their arrays
        assert torch.equal(model(*graph), expected[0])
    assert all(reference() is None for reference in created)


def test_workspaces_are_freed_with_their_model(graph, created):
    model = Stack("gatv2", [12, 16, 5]).double()
    step(model, *graph)
    assert created[0]() is not None
    del model
    gc.collect()
    assert created[0]() is None


class Keep(ObserverHook):
    """Keeps what it sees, without copying."""

    def __init__(self):
        self.seen = []

    def __call__(self, module, inputs, kwargs, output):  # noqa: ARG002
        self.seen.append((output, kwargs["attention"].alpha))


@pytest.mark.usefixtures("size")
def test_observers_see_tensors_that_the_backward_pass_keeps(model, graph, created):
    expected = step(model, *graph)
    step(model, *graph)  # another one overwrites outputs on a large graph
    created.clear()
    hook = Keep()
    for conv in model.convs:
        conv.register_forward_hook(hook, with_kwargs=True)
    out = model(*graph)
    copies = [(output.clone(), alpha.clone()) for output, alpha in hook.seen]
    assert equal([out.detach(), *torch.autograd.grad(out.pow(2).sum(), list(model.parameters()))], expected)
    assert len(copies) == 3
    assert all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(hook.seen, copies, strict=True))


def test_observed_passes_reuse_the_workspace(model, graph, created):
    step(model, *graph)
    for conv in model.convs:
        conv.register_forward_hook(Keep(), with_kwargs=True)
    step(model, *graph)
    assert len(created) == 1

"""Stacks on parts of a symmetric graph as one autograd function, in two and three processes, against one process."""

from contextlib import contextmanager

import pytest
import torch

from equipoise.distributed.graph import DistributedGraph
from equipoise.nn import part_workspace, stack_plan
from equipoise.nn.stack import Stack
from tests.distributed.ranks import run_ranks
from tests.distributed.splitting import owners, random_graph, split
from tests.distributed.test_graph import CASES, symmetric_graph

WIDTHS = {"equal": [6, 8, 8, 8, 3], "falling, two heads": [6, 16, 8, 3], "one layer": [6, 3]}


def stack(name):
    torch.manual_seed(0)
    return Stack("gatv2", WIDTHS[name], heads=2 if "heads" in name else 1).double()


def run_stack(model, x, graph, grad):
    """Output, gradient of the input, gradients of the parameters; twice, to use arrays again."""
    for _ in range(2):
        model.zero_grad()
        x = x.detach().clone().requires_grad_()
        out = model(x, graph)
        (out * grad).sum().backward()
    return out.detach(), x.grad, [parameter.grad for parameter in model.parameters()]


def penalty(model, x, graph, grad):
    """Gradient of the squared gradient with respect to the input: second derivatives."""
    x = x.detach().clone().requires_grad_()
    (first,) = torch.autograd.grad((model(x, graph) * grad).sum(), x, create_graph=True)
    return torch.autograd.grad(first.square().sum(), x)[0]


def retained(model, x, graph, grad):
    """Gradients of two backward passes through one forward pass, the second with half the gradient."""
    out = model(x, graph)
    model.zero_grad()
    (out * grad).sum().backward(retain_graph=True)
    (0.5 * out * grad).sum().backward()
    return [parameter.grad for parameter in model.parameters()]


@contextmanager
def counted(monkeypatch_target=part_workspace):
    """The workspaces that are made within the context."""
    made, original = [], monkeypatch_target.PartWorkspace.__init__

    def init(self, *arguments):
        made.append(self)
        original(self, *arguments)

    monkeypatch_target.PartWorkspace.__init__ = init
    try:
        yield made
    finally:
        monkeypatch_target.PartWorkspace.__init__ = original


def output_gradient(nodes):
    grad = torch.randn(nodes, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    grad[::3] = 0  # nodes without gradient
    return grad


def run_all(rank, world_size):
    results, data = {}, symmetric_graph()
    grads = output_gradient(data.num_nodes)
    for case in CASES:
        part = split(data, owners(data, world_size, case), world_size)[rank]
        graph, own = DistributedGraph(part), part.own
        x, grad = part.x, grads[own]
        for name in WIDTHS:
            model = stack(name)
            with counted() as made:
                fused = run_stack(model, x, graph, grad)
                twice = retained(model, x, graph, grad)
            assert len(made) == 2, "one pass and the one before it, which is still alive; others use their arrays again"
            second = penalty(model, x, graph, grad)
            stack_plan.MAX_POOLED_BYTES = 0 if rank else 2**28  # rank 0 in one function, the others layer by layer
            with counted() as made:
                mixed = run_stack(stack(name), x, graph, grad)
            assert bool(made) == (rank == 0)
            stack_plan.MAX_POOLED_BYTES = 2**28
            results[case, name] = own, fused, mixed, twice, second
    return results | {"not fused": reasons(part)}


def reasons(part):
    """Whether stacks on a part are fused that must not be: observed, and on a directed graph."""
    graph, model = DistributedGraph(part), stack("equal")
    handle = model.convs[1].register_forward_hook(lambda *_: None)
    with counted() as made:
        model(part.x, graph)
        handle.remove()
        directed = random_graph()
        other = split(directed, torch.arange(directed.num_nodes) % part.parts, part.parts)[part.rank]
        model(other.x, DistributedGraph(other))
    return len(made)


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request):
    return run_ranks(request.param, run_all)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", WIDTHS)
def test_parts_equal_one_process(ranks, case, name):
    data = symmetric_graph()
    grad, model = output_gradient(data.num_nodes), stack(name)
    out, dx, gradients = run_stack(model, data.x, data.edge_index, grad)
    second = penalty(model, data.x, data.edge_index, grad)
    results = [result[case, name] for result in ranks]
    for own, fused, mixed, _, own_second in results:
        for own_out, own_dx, _ in (fused, mixed):
            torch.testing.assert_close((own_out, own_dx), (out[own], dx[own]), rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(own_second, second[own], rtol=1e-9, atol=1e-9)
    for run in (1, 2):
        totals = [sum(parts) for parts in zip(*(result[run][2] for result in results), strict=True)]
        torch.testing.assert_close(totals, gradients, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", WIDTHS)
def test_a_retained_pass_can_be_differentiated_again(ranks, case, name):
    for result in ranks:
        _, (_, _, once), _, twice, _ = result[case, name]
        torch.testing.assert_close(twice, [1.5 * gradient for gradient in once], rtol=1e-11, atol=1e-11)


def test_observed_stacks_and_directed_graphs_run_layer_by_layer(ranks):
    assert [result["not fused"] for result in ranks] == [0] * len(ranks)

"""Layers on a DistributedGraph, in groups of two, three and four processes, against one process."""

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, GINConv, GraphConv, SAGEConv, TransformerConv

from equipoise.distributed.graph import DistributedGraph
from equipoise.errors import GraphError
from equipoise.nn import distributed_gatv2
from equipoise.nn.fused_convs import fuse_
from equipoise.nn.fused_gcn import ResidualGCNConv
from equipoise.nn.lipschitz_gat import LipschitzGATConv
from equipoise.nn.omega_gat import OmegaGATConv
from tests.distributed.ranks import run_ranks
from tests.distributed.splitting import owners, random_graph, split

CASES = ("random", "alternating", "empty part")
F_IN, F_OUT = 6, 4
LAYERS = {
    "gatv2": lambda: GATv2Conv(F_IN, F_OUT, heads=2),
    "gatv2 shared": lambda: GATv2Conv(F_IN, F_OUT, share_weights=True, residual=True),
    "gatv2 shared heads": lambda: GATv2Conv(F_IN, F_OUT, heads=2, concat=False, share_weights=True),
    "gatv2 without loops": lambda: GATv2Conv(F_IN, F_OUT, add_self_loops=False, share_weights=True, bias=False),
    "gatv2 edge features": lambda: GATv2Conv(F_IN, F_OUT, edge_dim=1),
    "gat": lambda: GATConv(F_IN, F_OUT, heads=3, concat=False, residual=True),
    "gat edge features": lambda: GATConv(F_IN, F_OUT, edge_dim=1),
    "gcn": lambda: GCNConv(F_IN, F_OUT),
    "gcn sums": lambda: GCNConv(F_IN, F_OUT, normalize=False),
    "gcn weighted": lambda: GCNConv(F_IN, F_OUT, improved=True),
    "gcn residual": lambda: ResidualGCNConv(F_IN, F_OUT),
    "sage narrow": lambda: SAGEConv(F_IN, F_OUT),
    "sage wide": lambda: SAGEConv(F_IN, 9, project=True, normalize=True),
    "graphconv": lambda: GraphConv(F_IN, F_OUT),
    "graphconv weighted": lambda: GraphConv(F_IN, 9),
    "gin": lambda: GINConv(nn.Linear(F_IN, F_OUT), train_eps=True),
    "transformer": lambda: TransformerConv(F_IN, F_OUT, heads=2, beta=True),
    "omega-gat": lambda: OmegaGATConv(F_IN, F_OUT, heads=2),
    "lipschitz-gat": lambda: LipschitzGATConv(F_IN, F_OUT, heads=2),
}
SHARED = ("gatv2 shared", "gatv2 shared heads", "gatv2 without loops")
WITH_EDGES = ("gatv2 edge features", "gat edge features", "gcn weighted", "graphconv weighted")


def layer(name):
    torch.manual_seed(1)
    conv = fuse_(LAYERS[name]()).double()
    for parameter in conv.parameters():  # also biases, which PyG initialises with zero
        nn.init.normal_(parameter)
    return conv


def run_layer(name, x, edge_index, edge_attr, out_grad):
    """Output, gradient of the input, gradients of the parameters."""
    conv, x = layer(name), x.clone().requires_grad_()
    out = conv(x, edge_index, edge_attr) if name in WITH_EDGES else conv(x, edge_index)
    (out * out_grad[:, : out.shape[1]]).sum().backward()
    return out.detach(), x.grad, [parameter.grad for parameter in conv.parameters()]


def output_gradient(nodes):
    return torch.randn(nodes, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def run_all_layers(rank, world_size):
    results, data = {}, random_graph()
    for case in CASES:
        part = split(data, owners(data, world_size, case), world_size)[rank]
        graph, out_grad = DistributedGraph(part), output_gradient(data.num_nodes)[part.own]
        for name in LAYERS:
            results[case, name] = (part.own, *run_layer(name, part.x, graph, part.edge_attr, out_grad))
        results["symmetric", case] = run_symmetric(case, rank, world_size)
    results["ring"] = run_on_ring(rank, world_size)
    return results | {"second derivative": check_second_derivatives(part, graph), "refused": refusals(part, graph)}


def symmetric_graph():
    """A graph with every edge in both directions, some of them repeated."""
    data = random_graph()
    data.edge_index = torch.cat([data.edge_index, data.edge_index.flip(0)], dim=1)
    del data.edge_attr
    return data


def run_symmetric(case, rank, world_size):
    """Layers that visit edges between own nodes once in the backward pass; with and without products saved."""
    data = symmetric_graph()
    part = split(data, owners(data, world_size, case), world_size)[rank]
    graph, out_grad = DistributedGraph(part), output_gradient(data.num_nodes)[part.own]
    out_grad[::3] = 0  # nodes without gradient
    results = {}
    for limit in (0, 2**24):
        distributed_gatv2.MAX_SAVED_BYTES = limit
        results |= {(name, limit): run_layer(name, part.x, graph, None, out_grad) for name in SHARED}
    assert graph.overlap(self_loops=True).symmetric
    assert graph.overlap(self_loops=False).symmetric
    return part.own, out_grad, results


def ring(nodes=2000):
    """A ring, of which consecutive nodes make a part: most nodes are inner ones."""
    data = random_graph(nodes)
    del data.edge_attr
    data.edge_index = torch.stack([torch.arange(nodes), torch.arange(1, nodes + 1) % nodes])
    return data


def run_on_ring(rank, world_size):
    """Outputs and gradients with all products saved, with rows of the halo saved, and second derivatives."""
    data, results = ring(), []
    part = split(data, torch.arange(data.num_nodes) * world_size // data.num_nodes, world_size)[rank]
    graph, out_grad = DistributedGraph(part), output_gradient(data.num_nodes)[part.own]
    for limit in (2**24, 0):
        distributed_gatv2.MAX_SAVED_BYTES = limit
        results.append(run_layer("gatv2 without loops", part.x, graph, None, out_grad))
    assert graph.overlap(self_loops=False).inner
    assert not graph.overlap(self_loops=False).symmetric
    return part.own, results, penalty_gradient("gatv2 without loops", part.x, graph, out_grad)


def penalty_gradient(name, x, edge_index, out_grad):
    """Gradient of the squared gradient with respect to the input: second derivatives."""
    conv, x = layer(name), x.clone().requires_grad_()
    (grad,) = torch.autograd.grad((conv(x, edge_index) * out_grad[:, :F_OUT]).sum(), x, create_graph=True)
    grad.pow(2).sum().backward()
    return x.grad


def check_second_derivatives(part, graph):
    """Whether gradcheck accepts gradients of first and second order of the exchange, seen from one rank at a time."""
    x = part.x[:, :1].clone().requires_grad_()
    out = graph.append_halo(x)
    (grad,) = torch.autograd.grad(out.pow(3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), x)
    readers = torch.ones(len(x), 1, dtype=torch.float64)
    for rows in part.send:
        readers[rows] += 1
    return bool(torch.allclose(grad, 3 * x**2 * readers) and torch.allclose(second, 6 * x * readers))


def refusals(part, graph):
    def message(call):
        with pytest.raises(GraphError) as error:
            call()
        return str(error.value)

    conv = layer("gatv2")
    return [
        message(lambda: conv(torch.zeros(len(part.own) + 1, F_IN, dtype=torch.float64), graph)),
        message(lambda: conv(part.x.half(), graph)),
        message(lambda: layer("sage narrow")((part.x, part.x), graph)),
    ]


@pytest.fixture(scope="module", params=[2, 3, 4])
def ranks(request):
    return run_ranks(request.param, run_all_layers)


@pytest.fixture(scope="module")
def one_process():
    data = random_graph()
    out_grad = output_gradient(data.num_nodes)
    return {name: run_layer(name, data.x, data.edge_index, data.edge_attr, out_grad) for name in LAYERS}


@pytest.mark.parametrize("case", CASES)
def test_layers_equal_one_process(ranks, one_process, case):
    for name in (key[1] for key in ranks[0] if key[0] == case):
        out, dx, gradients = one_process[name]
        for result in ranks:
            own, own_out, own_dx, _ = result[case, name]
            torch.testing.assert_close(own_out, out[own], rtol=1e-12, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")
            torch.testing.assert_close(own_dx, dx[own], rtol=1e-11, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")
        for index, expected in enumerate(gradients):
            total = sum(result[case, name][3][index] for result in ranks)
            torch.testing.assert_close(total, expected, rtol=1e-11, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("case", CASES)
def test_symmetric_graphs_equal_one_process(ranks, case):
    data = symmetric_graph()
    out_grad = torch.zeros(data.num_nodes, 9, dtype=torch.float64)
    results = [result["symmetric", case] for result in ranks]
    for own, own_grad, _ in results:
        out_grad[own] = own_grad
    for name, limit in results[0][2]:
        out, dx, gradients = run_layer(name, data.x, data.edge_index, None, out_grad)
        for own, _, runs in results:
            torch.testing.assert_close(runs[name, limit][:2], (out[own], dx[own]), rtol=1e-11, atol=1e-11)
        totals = [sum(g) for g in zip(*(runs[name, limit][2] for _, _, runs in results), strict=True)]
        torch.testing.assert_close(totals, gradients, rtol=1e-11, atol=1e-11)


def test_overlap_and_recomputed_products_equal_one_process(ranks):
    data = ring()
    out_grad, name = output_gradient(data.num_nodes), "gatv2 without loops"
    out, dx, gradients = run_layer(name, data.x, data.edge_index, None, out_grad)
    second = penalty_gradient(name, data.x, data.edge_index, out_grad)
    for result in ranks:
        own, runs, own_second = result["ring"]
        torch.testing.assert_close(own_second, second[own], rtol=1e-9, atol=1e-9)
        for own_out, own_dx, _ in runs:
            torch.testing.assert_close((own_out, own_dx), (out[own], dx[own]), rtol=1e-11, atol=1e-11)
    for run in range(2):
        totals = [sum(g) for g in zip(*(result["ring"][1][run][2] for result in ranks), strict=True)]
        torch.testing.assert_close(totals, gradients, rtol=1e-10, atol=1e-10)


def test_exchange_is_differentiable_twice(ranks):
    assert all(result["second derivative"] for result in ranks)


def test_unsupported_calls_are_refused(ranks):
    for result in ranks:
        wrong_rows, dtype, pair = result["refused"]
        assert "own nodes of this rank" in wrong_rows
        assert "x is of torch.float16, the weights are of torch.float64" in dtype
        assert "x is a tuple" in pair


def test_one_part_needs_no_process_group(one_process):
    data = random_graph()
    part = split(data, torch.zeros(data.num_nodes, dtype=torch.long), 1)[0]
    graph, out_grad = DistributedGraph(part), output_gradient(data.num_nodes)
    assert repr(graph) == f"DistributedGraph(own=40, halo=0, edges={data.num_edges})"
    for name in LAYERS:
        out, dx, gradients = run_layer(name, part.x, graph, part.edge_attr, out_grad)
        torch.testing.assert_close((out, dx, *gradients), (*one_process[name][:2], *one_process[name][2]))
    x = part.x[:, :1].clone().requires_grad_()
    assert gradcheck(graph.append_halo, (x,))

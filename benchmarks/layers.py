"""Fused layers against PyG's: forward and backward pass of one layer on a sparse and on a denser graph.

Run it as ``python benchmarks/layers.py``; it takes about a minute. One thread, width 64, float32. The fused layer,
PyG's layer on the same ``edge_index`` and PyG's layer on a sparse CSR adjacency matrix alternate; medians are compared.
"""

import copy
import statistics
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, GINConv, GraphConv, SAGEConv, TransformerConv
from torch_geometric.utils import remove_self_loops, to_torch_csr_tensor

import equipoise as eq
from equipoise.bench.cases import random_graph
from equipoise.bench.timing import interleave, make_timer

WIDTH, ROUNDS, REPEATS = 64, 7, 2
GRAPHS = {"sparse": (2_708, 10_556), "dense": (5_000, 200_000)}  # nodes and edges; the first are those of Cora
LAYERS = {
    "GATv2Conv": lambda: GATv2Conv(WIDTH, WIDTH),
    "GATConv": lambda: GATConv(WIDTH, WIDTH),
    "GCNConv": lambda: GCNConv(WIDTH, WIDTH),
    "SAGEConv": lambda: SAGEConv(WIDTH, WIDTH),
    "GraphConv": lambda: GraphConv(WIDTH, WIDTH),
    "GINConv": lambda: GINConv(nn.Linear(WIDTH, WIDTH)),
    "TransformerConv": lambda: TransformerConv(WIDTH, WIDTH),
}


def main() -> None:
    """Print a Markdown table with one row per layer and graph: milliseconds, and PyG's time divided by ours."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Sparse")  # support of CSR tensors is in beta
    print("| layer | graph | equipoise | PyG | PyG, CSR matrix | against PyG | against CSR |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for name, build in LAYERS.items():
        for graph, size in GRAPHS.items():
            ours, pyg, csr = measure(build, *size)
            times = f"{ours:.2f} | {pyg:.2f} | {csr:.2f} | {pyg / ours:.1f} × | {csr / ours:.1f} ×"
            print(f"| {name} | {graph} | {times} |", flush=True)


def measure(build: Callable[[], nn.Module], nodes: int, edges: int) -> list[float]:
    """Median milliseconds of the fused layer, PyG's, and PyG's with a CSR matrix, after a check that all agree."""
    torch.manual_seed(0)
    data, stock = random_graph(nodes, edges, WIDTH), build()
    # PyG's two forms of a graph treat duplicate edges and self-loops differently, so there are none.
    edge_index = remove_self_loops(data.edge_index.unique(dim=1))[0]
    adjacency = to_torch_csr_tensor(edge_index.flip(0), size=(nodes, nodes))
    fused, x = eq.fuse_(copy.deepcopy(stock)), data.x.requires_grad_()
    calls = [(fused, edge_index), (stock, edge_index), (stock, adjacency)]
    for conv, graph in calls[1:]:
        torch.testing.assert_close(conv(x, graph), fused(x, edge_index), rtol=1e-3, atol=1e-3)
    timers = {i: make_timer(training_step(conv, x, graph)) for i, (conv, graph) in enumerate(calls)}
    return [statistics.median(times) for times in interleave(timers, ROUNDS, REPEATS).values()]


def training_step(conv: nn.Module, x: Tensor, graph: Tensor) -> Callable[[], None]:
    """A forward and a backward pass to parameters and input, as of a layer in the middle of a network."""
    cotangent = torch.ones(x.size(0), WIDTH)

    def step() -> None:
        conv.zero_grad()
        x.grad = None
        conv(x, graph).backward(cotangent)

    return step


if __name__ == "__main__":
    main()

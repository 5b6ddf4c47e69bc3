"""One epoch of the paper's protocol, PyG's layers against fused ones: medians, interleaved, one thread.

Run it as ``python benchmarks/epoch.py [DATASET] [LAYERS] [THREADS]``. An epoch is a step, and validation and test
accuracy; PyG's best of dense and sparse features counts.
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch_geometric.nn import GATv2Conv

import equipoise as eq


def main(dataset: str = "cora", layers: int = 10, threads: int = 1) -> None:
    """Print milliseconds and the ratio."""
    torch.set_num_threads(threads)
    data = eq.load_dataset(dataset)
    widths = [data.num_features, *[64] * (layers - 1), data.classes]
    fused, stock = eq.Stack("gatv2", widths), eq.Stack("gatv2", widths)
    for conv in stock.convs:
        conv.__class__ = GATv2Conv
    for model in (fused, stock):
        eq.initialize_(model, "bal-o", generator=torch.Generator().manual_seed(0))
    sparse = data.x.to_sparse_csr()
    epochs: dict[str, Callable[[], None]] = {
        "PyG, dense": lambda: two_passes(stock, data, data.x),
        "PyG, sparse": lambda: two_passes(stock, data, sparse),
        "equipoise": one_pass(fused, data, sparse),
    }
    times: dict[str, list[float]] = {name: [] for name in epochs}
    for _ in range(16):
        for name, epoch in epochs.items():
            start = time.perf_counter()
            epoch()
            times[name].append(1000 * (time.perf_counter() - start))
    medians = {name: statistics.median(values[1:]) for name, values in times.items()}
    for name, value in medians.items():
        print(f"{name:<12} {value:7.1f} ms an epoch")
    best = min(value for name, value in medians.items() if name.startswith("PyG"))
    print(f"{best / medians['equipoise']:.1f} times PyG's best ({dataset}, {layers} layers, {threads} thread(s))")


def step(model: torch.nn.Module, data, scores: torch.Tensor) -> None:
    loss = F.cross_entropy(scores[data.train_mask], data.y[data.train_mask])
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(0.005 * parameter.grad)


def two_passes(model: torch.nn.Module, data, x: torch.Tensor) -> None:
    """As the protocol is usually written: a step, then an evaluation."""
    step(model.train(), data, model(x, data.edge_index))
    with torch.no_grad():
        model.eval()(x, data.edge_index).argmax(-1)


def one_pass(model: torch.nn.Module, data, x) -> Callable[[], None]:
    """As ``equipoise.train`` does it: the evaluation after a step is the forward pass of the next one."""
    scores = [model(x, data.edge_index)]

    def epoch() -> None:
        step(model, data, scores[0])
        scores[0] = model(x, data.edge_index)
        scores[0].detach().argmax(-1)

    return epoch


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:]))

"""Cost of rebalancing every 10th step: python benchmarks/rebalancer_cost.py

Trains a 10-layer GATv2 of width 64 on Cora, full batch, on one thread, and prints for each optimizer and criterion the
CPU time of a rebalancing and its share of the time of ten steps. Both are medians, measured in alternation.
"""

from __future__ import annotations

import time
from statistics import median

import torch
import torch.nn.functional as F

import equipoise as eq
from equipoise.kernels.denormals import flush_denormals
from equipoise.nn.sparse_linear import to_csr_tensor
from equipoise.training.batched_laws import discover_on_small_graph

EVERY, ROUNDS = 10, 12
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
CRITERIA = ("weights", "gradients", "relative-gradients")


def measure(optimizer_name: str, criterion: str) -> tuple[float, float]:
    """Return the CPU seconds of ten steps and of one rebalancing."""
    data = eq.load_dataset("cora")
    torch.manual_seed(0)
    model = eq.initialize_(eq.Stack("gatv2", [data.num_features, *[64] * 9, data.classes]), "bal-o")
    laws = discover_on_small_graph(model, data.num_features)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), lr=1e-3)
    rebalancer = eq.Rebalancer(laws, every=1, criterion=criterion, optimizer=optimizer)
    x = to_csr_tensor(data.x)
    steps, rebalancings = [], []
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(EVERY):
            optimizer.zero_grad()
            F.cross_entropy(model(x, data.edge_index)[data.train_mask], data.y[data.train_mask]).backward()
            optimizer.step()
        middle = time.process_time()
        rebalancer.step()
        steps.append(middle - start)
        rebalancings.append(time.process_time() - middle)
    return median(steps[2:]), median(rebalancings[2:])


def main() -> None:
    """Print one row per optimizer and criterion."""
    torch.set_num_threads(1)
    print("optimizer  criterion            ten steps  rebalancing  share")
    with flush_denormals():
        for optimizer in OPTIMIZERS:
            for criterion in CRITERIA:
                steps, rebalancing = measure(optimizer, criterion)
                share = rebalancing / steps
                print(
                    f"{optimizer:9}  {criterion:19}  {1e3 * steps:6.1f} ms  {1e3 * rebalancing:8.2f} ms  {share:5.1%}",
                    flush=True,
                )


if __name__ == "__main__":
    main()

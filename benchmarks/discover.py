"""Time and memory of discovering the laws of a deep network and of rebalancing it.

Run it as ``python benchmarks/discover.py [DEPTH] [WIDTH]``.
"""

import resource
import sys
import time

import torch
from torch_geometric.nn import GAT

import equipoise as eq


def main(depth: int = 80, width: int = 64) -> None:
    """Measure a stock GATv2 with shared weights on 50 nodes, one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = GAT(width, width, num_layers=depth, out_channels=7, v2=True, act="relu", share_weights=True, bias=False)
    x, edge_index = torch.randn(50, width), torch.randint(0, 50, (2, 200))
    start = time.perf_counter()
    laws = eq.discover(model, x, edge_index)
    discovered = time.perf_counter()
    imbalance = eq.rebalance_(laws)
    rebalanced = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB on Linux
    print(
        f"{depth} layers of width {width}: {len(laws)} laws in {discovered - start:.1f} s, peak memory {peak:.2f} GiB"
    )
    print(f"rebalance_: {rebalanced - discovered:.1f} s, largest remaining relative imbalance {imbalance:.0e}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

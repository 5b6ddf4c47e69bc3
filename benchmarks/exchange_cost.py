"""Predict the exchanges of a graph of 111 million nodes, and check the prediction on graphs that fit one machine.

Run it as ``python benchmarks/exchange_cost.py``; it takes a minute and needs the extra ``metis``. It prints the two
tables of docs/guide/distributed.md.
"""

import tempfile
from pathlib import Path

import equipoise as eq
from equipoise.bench.cases import random_graph
from equipoise.distributed.cost import exchange_bytes, exchange_cost, expected_halo
from equipoise.distributed.parts.summary import PartitionSummary

NODES, EDGES = 111_000_000, 1_600_000_000
WIDTH, LAYERS, GBITS = 64, 3, 10
PARTS = (8, 16, 32)


def measure(name: str, data: object, parts: int, method: str) -> PartitionSummary:
    """Partition a graph and print the halo next to the estimate from its edge cut."""
    with tempfile.TemporaryDirectory() as folder:
        summary = eq.partition(data, parts, Path(folder) / "parts", method=method)
    cut = summary.edge_cut / summary.num_edges
    bound = expected_halo(summary.num_nodes, summary.num_edges, parts, cut)
    megabytes = exchange_bytes(summary.halo, WIDTH) / 1e6
    print(
        f"| {name} | {parts} | {method} | {100 * cut:.1f} % | {summary.halo:,} | {bound:,.0f} | {megabytes:.1f} "
        f"| {summary.balance:.2f} |"
    )
    return summary


def predict(parts: int, partition: str, cut: float | None) -> None:
    """Print the cost of an epoch for one number of machines."""
    halo = expected_halo(NODES, EDGES, parts, cut)
    cost = exchange_cost(halo / parts, WIDTH, LAYERS, gbits=GBITS)
    print(
        f"| {parts} | {partition} | {halo / NODES:.2f} | {halo / parts / 1e6:.1f} M | {cost.rank_bytes / 1e9:.2f} GB "
        f"| {cost.epoch_bytes / 1e9:.1f} GB | {cost.epoch_seconds:.1f} s |"
    )


def main() -> None:
    """Print both tables."""
    pubmed, random = eq.load_dataset("pubmed"), random_graph(111_000 // 4, 1_600_000 // 4, 1)
    print("| graph | parts | method | edge cut | halo | estimate | MB per exchange | balance |")
    print("|---|---:|---|---:|---:|---:|---:|---:|")
    cuts = {}
    for parts in (2, *PARTS):
        for method in ("metis", "blocks"):
            summary = measure("pubmed", pubmed, parts, method)
            cuts[parts, method] = summary.edge_cut / summary.num_edges
    for parts in (2, *PARTS):
        measure("random", random, parts, "metis")
    print()
    print("| machines | partition | halo per node | rows per machine | per exchange | per epoch | time |")
    print("|---:|---|---:|---:|---:|---:|---:|")
    for parts in PARTS:
        predict(parts, "random", None)
        cut = cuts[parts, "metis"]
        predict(parts, f"edge cut of Pubmed by METIS, {100 * cut:.0f} %", cut)


if __name__ == "__main__":
    main()

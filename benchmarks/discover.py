"""Time of ``discover`` and ``explain`` on ten-layer networks, and of ``discover`` and ``rebalance_`` on a deep one.

Run it as ``python benchmarks/discover.py [MODEL ...]`` for a Markdown table of all or some models, and as
``python benchmarks/discover.py --deep [DEPTH] [WIDTH]`` for time and memory of a stock GATv2. Seconds are processor
time of one thread.
"""

from __future__ import annotations

import logging
import resource
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import (
    GAT,
    GCN,
    GIN,
    PNA,
    GPSConv,
    GraphSAGE,
    HeteroConv,
    SAGEConv,
    TransformerConv,
)

import equipoise as eq

LAYERS, WIDTH, CLASSES = 10, 64, 7
GRAPHS = {"Cora": (2708, 10556, 1433), "million edges": (100_000, 1_000_000, 128)}  # nodes, edges, features


class Transformer(nn.Module):
    """Layers of TransformerConv with ReLU between them."""

    def __init__(self, features: int) -> None:
        super().__init__()
        widths = [features, *[WIDTH] * (LAYERS - 1), CLASSES]
        self.convs = nn.ModuleList(TransformerConv(a, b) for a, b in pairwise(widths))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Scores of the nodes."""
        for conv in self.convs[:-1]:
            x = conv(x, edge_index).relu()
        return self.convs[-1](x, edge_index)


class GPS(nn.Module):
    """Layers of GPSConv around SAGEConv, between two linear maps."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(features, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.convs = nn.ModuleList(GPSConv(WIDTH, SAGEConv(WIDTH, WIDTH), heads=4) for _ in range(LAYERS))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Scores of the nodes."""
        x = self.encode(x)
        for conv in self.convs:
            x = conv(x, edge_index)
        return self.decode(x)


class Hetero(nn.Module):
    """Layers of HeteroConv with two types of nodes and three types of edges."""

    def __init__(self, features: int) -> None:
        super().__init__()
        widths = [features, *[WIDTH] * (LAYERS - 1), CLASSES]
        self.convs = nn.ModuleList(
            HeteroConv({edge_type: SAGEConv((a, a), b) for edge_type in EDGE_TYPES}) for a, b in pairwise(widths)
        )

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        """Scores of the papers."""
        for conv in self.convs[:-1]:
            x_dict = {key: x.relu() for key, x in conv(x_dict, edge_index_dict).items()}
        return self.convs[-1](x_dict, edge_index_dict)["paper"]


EDGE_TYPES = [("paper", "cites", "paper"), ("author", "writes", "paper"), ("paper", "has", "author")]

Build = Callable[[int], nn.Module]


def _pna(features: int) -> nn.Module:
    aggregators, scalers = ["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"]
    degrees = torch.bincount(torch.randint(1, 9, (1000,)))
    return PNA(features, WIDTH, LAYERS, CLASSES, aggregators=aggregators, scalers=scalers, deg=degrees)


def _stack(**settings: Any) -> Build:
    return lambda features: eq.Stack("gatv2", [features, *[WIDTH] * (LAYERS - 1), CLASSES], **settings)


def _gat(**settings: Any) -> Build:
    return lambda features: GAT(features, WIDTH, LAYERS, CLASSES, act="relu", **settings)


MODELS: dict[str, Build] = {
    "GCN": lambda features: GCN(features, WIDTH, LAYERS, CLASSES),
    "GAT": _gat(),
    "GATv2": _gat(v2=True),
    "SAGE": lambda features: GraphSAGE(features, WIDTH, LAYERS, CLASSES),
    "GIN": lambda features: GIN(features, WIDTH, LAYERS, CLASSES),
    "PNA": _pna,
    "TransformerConv": Transformer,
    "GPS": GPS,
    "residual+LayerNorm": _stack(skip="identity", norm="layer"),
    "BatchNorm": _gat(v2=True, norm="batch_norm"),
    "jk=lstm": _gat(v2=True, jk="lstm"),
    "jk=cat": _gat(v2=True, jk="cat"),
    "jk=max": _gat(v2=True, jk="max"),
    "hetero": Hetero,
}


def main(names: list[str]) -> None:
    """Print the table of ten-layer networks."""
    logging.getLogger("equipoise").setLevel(logging.WARNING)
    eq.discover(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)), torch.randn(4, 2))  # imports
    print("| model | " + " | ".join(f"{graph}: discover | explain" for graph in GRAPHS) + " | laws |")
    print("|---|" + "---|" * (2 * len(GRAPHS) + 1))
    for name in names or MODELS:
        cells = []
        for nodes, edges, features in GRAPHS.values():
            torch.manual_seed(0)
            model, inputs = MODELS[name](features), _inputs(name, nodes, edges, features)
            seconds, laws = _time(lambda model=model, inputs=inputs: eq.discover(model, *inputs))
            explain_seconds, _ = _time(lambda model=model, inputs=inputs: eq.explain(model, *inputs))
            cells += [f"{seconds:.1f}", f"{explain_seconds:.1f}"]
        print(f"| {name} | " + " | ".join(cells) + f" | {len(laws)} |", flush=True)


def _inputs(name: str, nodes: int, edges: int, features: int) -> tuple[Any, ...]:
    if name != "hetero":
        return torch.randn(nodes, features), torch.randint(0, nodes, (2, edges))
    half, third = nodes // 2, edges // 3
    return (
        {key: torch.randn(half, features) for key in ("paper", "author")},
        {edge_type: torch.randint(0, half, (2, third)) for edge_type in EDGE_TYPES},
    )


def _time(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


def deep(depth: int = 80, width: int = 64) -> None:
    """Measure a stock GATv2 with shared weights on 50 nodes."""
    torch.manual_seed(0)
    model = GAT(width, width, num_layers=depth, out_channels=7, v2=True, act="relu", share_weights=True, bias=False)
    x, edge_index = torch.randn(50, width), torch.randint(0, 50, (2, 200))
    seconds, laws = _time(lambda: eq.discover(model, x, edge_index))
    rebalance_seconds, imbalance = _time(lambda: eq.rebalance_(laws))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB on Linux
    print(f"{depth} layers of width {width}: {len(laws)} laws in {seconds:.1f} s, peak memory {peak:.2f} GiB")
    print(f"rebalance_: {rebalance_seconds:.1f} s, largest remaining relative imbalance {imbalance:.0e}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--deep"]:
        deep(*map(int, sys.argv[2:]))
    else:
        main(sys.argv[1:])

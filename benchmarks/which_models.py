"""Which stock PyG models and layers each function of the package supports; writes docs/guide/which_models.md.

Run it as ``python benchmarks/which_models.py docs/guide/which_models.md``, or without a path to print the page.
"""

import sys
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import equipoise as eq

NODES, FEATURES, WIDTH, CLASSES, EDGE_FEATURES, RELATIONS = 24, 6, 8, 3, 4, 2
EDGE_TYPES = [("a", "to", "b"), ("b", "to", "a"), ("a", "in", "a")]
TOLERANCE = 1e-4  # of the imbalance and of outputs, in float32

torch.manual_seed(0)
X, EDGES = torch.randn(NODES, FEATURES), torch.randint(0, NODES, (2, 3 * NODES))
EDGE_ATTR, EDGE_TYPE = torch.randn(3 * NODES, EDGE_FEATURES), torch.randint(0, RELATIONS, (3 * NODES,))
DEGREES = torch.bincount(torch.bincount(EDGES[1], minlength=NODES))
GRAPH = (X, EDGES)


class Chain(nn.Module):
    """Two or more layers with a ReLU between them."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, *args: Tensor) -> Tensor:
        """Run the layers."""
        for layer in self.layers[:-1]:
            x = layer(x, *args).relu()
        return self.layers[-1](x, *args)


def chain(layer: Callable[..., nn.Module], *args: Any, **options: Any) -> Chain:
    """Three layers of one kind."""
    widths = [FEATURES, WIDTH, WIDTH, CLASSES]
    return Chain(*(layer(a, b, *args, **options) for a, b in pairwise(widths)))


class Encoded(nn.Module):
    """Linear layers around one that keeps the number of channels."""

    def __init__(self, *layers: nn.Module, first: bool = False) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.layers, self.first = nn.ModuleList(layers), first

    def forward(self, x: Tensor, *args: Tensor) -> Tensor:
        """Run encoder, layers and decoder; ``first`` passes the encoded features to every layer."""
        h = first = self.encode(x).relu()
        for layer in self.layers:
            h = layer(h, *((first,) if self.first else ()), *args).relu()
        return self.decode(h)


def hetero() -> tuple[nn.Module, tuple[Any, ...]]:
    """A GraphSAGE for two node types and three edge types."""
    model = pyg.to_hetero(pyg.GraphSAGE(FEATURES, WIDTH, 2, CLASSES), (["a", "b"], EDGE_TYPES))
    return model, ({"a": X, "b": X.flip(0)}, dict.fromkeys(EDGE_TYPES, EDGES))


def basic(model: Callable[..., nn.Module], **options: Any) -> Callable[[], tuple[nn.Module, tuple[Any, ...]]]:
    """One of PyG's ready-made models with three layers."""
    return lambda: (model(FEATURES, WIDTH, 3, CLASSES, **options), GRAPH)


def on(build: Callable[[], nn.Module], *inputs: Any) -> Callable[[], tuple[nn.Module, tuple[Any, ...]]]:
    """A model with its inputs."""
    return lambda: (build(), inputs or GRAPH)


def mlp() -> nn.Sequential:
    """The network of a GINConv."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


PNA = {"aggregators": ["mean", "max"], "scalers": ["identity", "linear"], "deg": DEGREES}
MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "`GCN`": basic(pyg.GCN),
    '`GCN(jk="cat")`': basic(pyg.GCN, jk="cat"),
    '`GCN(norm="LayerNorm")`': basic(pyg.GCN, norm="LayerNorm"),
    '`GCN(act="elu")`': basic(pyg.GCN, act="elu"),
    "`GraphSAGE`": basic(pyg.GraphSAGE),
    "`GAT`": basic(pyg.GAT),
    "`GAT(v2=True)`": basic(pyg.GAT, v2=True),
    "`GIN`": basic(pyg.GIN),
    "`PNA`, aggregators mean and max": basic(pyg.PNA, **PNA),
    "`PNA`, aggregator std": basic(pyg.PNA, **{**PNA, "aggregators": ["mean", "std"]}),
    "`EdgeCNN`": basic(pyg.EdgeCNN),
    "`MLP`": on(lambda: pyg.MLP([FEATURES, WIDTH, WIDTH, CLASSES], norm=None), X),
    "`to_hetero(GraphSAGE)`": hetero,
    "`TransformerConv`": on(lambda: chain(pyg.TransformerConv)),
    "`SAGEConv(project=True)`": on(lambda: chain(pyg.SAGEConv, project=True)),
    "`GATv2Conv(edge_dim=…)`": on(lambda: chain(pyg.GATv2Conv, edge_dim=EDGE_FEATURES), X, EDGES, EDGE_ATTR),
    "`GINEConv`": on(
        lambda: Encoded(*(pyg.GINEConv(mlp(), edge_dim=EDGE_FEATURES) for _ in range(2))), X, EDGES, EDGE_ATTR
    ),
    "`GPSConv`": on(lambda: Encoded(*(pyg.GPSConv(WIDTH, pyg.GCNConv(WIDTH, WIDTH), heads=2) for _ in range(2)))),
    "`GraphConv`": on(lambda: chain(pyg.GraphConv)),
    "`SGConv`": on(lambda: chain(pyg.SGConv)),
    "`TAGConv`": on(lambda: chain(pyg.TAGConv)),
    "`ChebConv`": on(lambda: chain(pyg.ChebConv, K=2)),
    "`ARMAConv`": on(lambda: chain(pyg.ARMAConv)),
    "`GCN2Conv`": on(lambda: Encoded(*(pyg.GCN2Conv(WIDTH, 0.1) for _ in range(2)), first=True)),
    "`ResGatedGraphConv`": on(lambda: chain(pyg.ResGatedGraphConv)),
    "`SuperGATConv`": on(lambda: chain(pyg.SuperGATConv)),
    "`RGCNConv`": on(lambda: chain(pyg.RGCNConv, RELATIONS), X, EDGES, EDGE_TYPE),
    "`NNConv`": on(lambda: Encoded(pyg.NNConv(WIDTH, WIDTH, nn.Linear(EDGE_FEATURES, WIDTH**2))), X, EDGES, EDGE_ATTR),
    "`GENConv`": on(lambda: chain(pyg.GENConv, norm=None)),
    "`GatedGraphConv`": on(lambda: Encoded(pyg.GatedGraphConv(WIDTH, 2))),
}


def to_tensor(output: Any) -> Tensor:
    """The output as one tensor; that of a hetero model is a dictionary."""
    return torch.cat(list(output.values())) if isinstance(output, dict) else output


def largest_imbalance(laws: list[eq.Law]) -> float:
    """The largest relative imbalance of the laws that have two sides."""
    return max((float(law.relative_imbalance().abs().max()) for law in laws if law.outgoing), default=0.0)


def discover(model: nn.Module, inputs: tuple[Any, ...], laws: list[eq.Law]) -> str:
    """Number of neurons with a law, or the cause of its absence."""
    if laws:
        return f"yes, {sum(law.neurons for law in laws)} neurons"
    lines = str(eq.explain(model, *inputs, output=to_tensor)).splitlines()
    causes = [line.rpartition("): ")[2] for line in lines if "neuron" in line and "): " in line]
    return f"no law: {causes[0]}" if causes else "no law"


def initialise(model: nn.Module, inputs: tuple[Any, ...], laws: list[eq.Law]) -> str:
    """Whether ``bal-o`` balances the network."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        eq.initialize_(model, "bal-o", inputs=None if isinstance(inputs[0], dict) else inputs, laws=laws)
    if largest_imbalance(laws) > TOLERANCE:
        return f"imbalance {largest_imbalance(laws):.0e}"
    if not bool(torch.isfinite(to_tensor(model(*inputs))).all()):
        return "outputs are not finite"
    notes = [str(w.message) for w in caught if "has no law" in str(w.message) or "no ReLU" in str(w.message)]
    if any("has no law" in note for note in notes) or not laws:
        return "drawn, not balanced: no law"
    return "yes, without a ReLU" if notes else "yes"


def rebalance(model: nn.Module, inputs: tuple[Any, ...], laws: list[eq.Law]) -> str:
    """Whether ``rebalance_`` keeps the outputs."""
    if not any(law.outgoing for law in laws):
        return "no law"
    before = to_tensor(model(*inputs)).detach()
    eq.rebalance_(laws)
    change = float((to_tensor(model(*inputs)).detach() - before).abs().max() / before.abs().max())
    return "yes" if change <= TOLERANCE else f"outputs change by {change:.0e}"


def fuse(model: nn.Module, inputs: tuple[Any, ...], laws: list[eq.Law]) -> str:  # noqa: ARG001 - same signature
    """Which layers ``fuse_`` replaces."""
    fused = {type(m).__name__ for m in eq.fuse_(model).modules() if type(m).__module__.startswith("equipoise.")}
    return "yes" if fused else "no kernel for this layer"


COLUMNS = {"discover": discover, "initialise": initialise, "rebalance": rebalance, "fuse": fuse}


def row(name: str) -> str:
    """One row of the table."""
    cells = [name]
    for check in COLUMNS.values():
        torch.manual_seed(0)
        model, inputs = MODELS[name]()
        model.eval()
        try:
            cells.append(check(model, inputs, eq.discover(model, *inputs, output=to_tensor)))
        except eq.EquipoiseError as error:
            cells.append(f"no: {error.what.splitlines()[0]}")
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


PAGE = """# Which models

What each function does with {count} stock models and layers of PyG, with three layers, or two between linear layers,
ReLU and evaluation mode unless stated. A law needs functions that are positively homogeneous. Discovery,
initialisation and rebalancing work on any network that has laws; fused kernels exist for some layers.

| model or layer | {titles} |
|---|{rules}
{rows}

*discover*: {{func}}`~equipoise.discover` finds laws. *initialise*: {{func}}`~equipoise.initialize_` with `bal-o`
balances them. *rebalance*: {{func}}`~equipoise.rebalance_` balances the model as PyG initialises it without changing
its outputs. *fuse*: {{func}}`~equipoise.fuse_` replaces layers by fused ones.

This page is written by `python benchmarks/which_models.py docs/guide/which_models.md`.
"""


def main(path: str | None = None) -> None:
    """Write or print the page."""
    rows = []
    for name in MODELS:
        rows.append(row(name))
        print(rows[-1], file=sys.stderr, flush=True)
    rules = "---|" * len(COLUMNS)
    page = PAGE.format(count=len(MODELS), titles=" | ".join(COLUMNS), rules=rules, rows="\n".join(rows))
    if path is None:
        print(page)
    else:
        Path(path).write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

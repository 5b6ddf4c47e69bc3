"""Benchmark cases by name, the scaling series, and the graph of a case.

Importing this module does not import torch: ``equipoise bench --help`` lists the names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from equipoise.errors import ChoiceError

if TYPE_CHECKING:
    from torch import Tensor
    from torch_geometric.data import Data


@dataclass(frozen=True)
class Case:
    """A GATv2 with one head and shared weights on one graph: a data set, or a random graph of the given size.

    Attributes:
        name: Name on the command line.
        layers: Depth.
        dataset: Name of a data set; empty for a random graph.
        nodes: Nodes of the random graph.
        edges: Stored edges of the random graph; an undirected edge counts twice.
        features: Node features of the random graph.
        symmetric: Whether the random graph contains every edge in both directions.
        width: Hidden width.
        rounds: Rounds of timing; the implementations alternate from round to round.
        epochs: Timed epochs per round.
        competitors: Whether PyG, and DGL if installed, are measured too.
        isolated: Whether each implementation runs in its own process, with its peak memory measured.

    Example:
        >>> Case("small", layers=2, nodes=100, edges=400, features=8).widths(8, 3)
        [8, 64, 3]
    """

    name: str
    layers: int
    dataset: str = ""
    nodes: int = 0
    edges: int = 0
    features: int = 0
    symmetric: bool = True
    width: int = 64
    rounds: int = 5
    epochs: int = 3
    competitors: bool = True
    isolated: bool = False

    def widths(self, features: int, classes: int) -> list[int]:
        """Input features, hidden widths and classes."""
        return [features, *[self.width] * (self.layers - 1), classes]

    def quick(self) -> Case:
        """The same case with two rounds of two epochs."""
        return replace(self, rounds=2, epochs=2)


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case("synthetic-2", 2, "synthetic-citation"),
        Case("synthetic-10", 10, "synthetic-citation"),
        Case("cora-2", 2, "cora", rounds=8, epochs=5),
        Case("cora-10", 10, "cora", rounds=8),
        Case("cora-80", 80, "cora", rounds=2, competitors=False),
        Case("cora-1000", 1000, "cora", epochs=1, competitors=False, isolated=True),
        Case("citeseer-2", 2, "citeseer", rounds=8, epochs=5),
        Case("pubmed-10", 10, "pubmed", rounds=4, epochs=2),
        Case("texas-40", 40, "texas", rounds=8, epochs=5),
        Case("chameleon-5", 5, "chameleon", rounds=4, epochs=2),
        Case("squirrel-5", 5, "squirrel", rounds=3, epochs=1),
        Case("actor-5", 5, "actor", rounds=4, epochs=2),
        Case("large", 4, nodes=169_000, edges=2_300_000, features=128, epochs=2, isolated=True),
        # Directed: the kernels store such a graph in both edge orders, so a symmetric one would need less memory.
        Case(
            "huge",
            3,
            nodes=2_400_000,
            edges=62_000_000,
            features=100,
            symmetric=False,
            epochs=1,
            competitors=False,
            isolated=True,
        ),
    )
}

# Training on parts, with several ranks of one thread: case and numbers of ranks.
RANK_CASES: dict[str, tuple[Case, tuple[int, ...]]] = {
    case.name: (case, ranks)
    for case, ranks in (
        (Case("pubmed-ranks", 10, "pubmed", rounds=4, epochs=2), (1, 2)),
        (replace(CASES["large"], name="large-ranks"), (1, 2)),
        (replace(CASES["huge"], name="huge-ranks"), (2,)),
    )
}
RECORDER_CASE = Case("recorder", 10, "cora", rounds=15, epochs=5)
MINI_BATCH_CASE = Case("mini-batches", 3, nodes=20_000, edges=1_000_000, features=64, rounds=10, epochs=20)
COMPILED_CASE = Case("compiled", 3, nodes=10_000, edges=100_000, features=64, rounds=8)  # by torch.compile
FIRST_CALL, SCALING = "compile", "scaling"  # measurements that are not one network on one graph
CASE_NAMES = (*CASES, *RANK_CASES, RECORDER_CASE.name, MINI_BATCH_CASE.name, COMPILED_CASE.name, FIRST_CALL, SCALING)
OPTIONAL_NAMES = ("huge", "huge-ranks", COMPILED_CASE.name)  # torch.compile needs a C++ compiler and a minute
DEFAULT_NAMES = tuple(name for name in CASE_NAMES if name not in OPTIONAL_NAMES)
QUICK_NAMES = ("synthetic-2", "synthetic-10", "cora-2", "cora-10", "citeseer-2", SCALING)


def select_cases(names: Sequence[str], *, quick: bool = False, huge: bool = False) -> list[str]:
    """Validate the requested case names; without any, return the default selection.

    Args:
        names: Requested names; duplicates count once.
        quick: Default to the small cases.
        huge: Add the case ``"huge"``.

    Returns:
        The names to measure, in order.

    Raises:
        ChoiceError: For an unknown name.

    Example:
        >>> select_cases([], quick=True, huge=True)
        ['synthetic-2', 'synthetic-10', 'cora-2', 'cora-10', 'citeseer-2', 'scaling', 'huge']
    """
    for name in names:
        if name not in CASE_NAMES:
            raise ChoiceError("case", name, CASE_NAMES)
    selected = list(names) or list(QUICK_NAMES if quick else DEFAULT_NAMES)
    return list(dict.fromkeys([*selected, *(["huge"] if huge else [])]))


_BASE = Case("scaling", layers=2, nodes=10_000, edges=100_000, features=64, rounds=3, epochs=1)
_SMALL = replace(_BASE, nodes=5_000, edges=25_000)
SCALING_SERIES: dict[str, tuple[Case, str, tuple[int, ...]]] = {  # variable → base case, field that varies, its values
    "edges": (_BASE, "edges", (50_000, 100_000, 200_000, 300_000, 400_000)),
    "nodes": (_BASE, "nodes", (5_000, 10_000, 20_000, 40_000, 60_000)),
    "depth": (_SMALL, "layers", (2, 5, 10, 20, 40)),
    "width": (replace(_SMALL, layers=4), "width", (16, 32, 64, 128)),
}
LINEAR_VARIABLES = ("edges", "nodes", "depth")  # not width: matrix products cost its square
QUICK_DIVISOR = 10  # of nodes and edges


def scaling_cases(variable: str, *, quick: bool = False) -> list[Case]:
    """Return the cases of one scaling series.

    Args:
        variable: A key of ``SCALING_SERIES``.
        quick: Use a tenth of the nodes and edges, and only the first three values.

    Returns:
        One case per value of the variable.

    Example:
        >>> [case.layers for case in scaling_cases("depth", quick=True)]
        [2, 5, 10]
    """
    base, field, values = SCALING_SERIES[variable]
    if quick:
        base, values = replace(base, nodes=base.nodes // QUICK_DIVISOR, edges=base.edges // QUICK_DIVISOR), values[:3]
        values = tuple(value // QUICK_DIVISOR for value in values) if field in ("nodes", "edges") else values
    return [replace(base, name=f"{variable} {value}", **{field: value}) for value in values]  # type: ignore[arg-type]


def scaling_value(case: Case, variable: str) -> int:
    """The value of the scaling variable in this case."""
    value: int = getattr(case, SCALING_SERIES[variable][1])
    return value


RANDOM_GRAPH_CLASSES = 40


def load_graph(case: Case) -> Data:
    """Load the data set of a case, or generate its random graph."""
    if case.dataset:
        from equipoise.data.load import load_dataset

        return load_dataset(case.dataset)
    return random_graph(case.nodes, case.edges, case.features, symmetric=case.symmetric)


def random_graph(nodes: int, edges: int, features: int, *, symmetric: bool = True, seed: int = 0) -> Data:
    """Generate a random graph with power-law degrees, dense random features and random labels.

    Each end of an edge is node π(⌊n·u²⌋) for uniform u and a random permutation π. Degrees then fall with the square
    root of the rank, a power law with exponent 3, and neighbours lie far apart in memory, as in real graphs. Half of
    the nodes are training nodes, so that almost nothing of the backward pass can be skipped.

    Args:
        nodes: Number of nodes n.
        edges: Number of stored edges.
        features: Number of node features.
        symmetric: Store every edge in both directions; each direction counts as an edge.
        seed: Seed of the generator.

    Returns:
        A graph with ``x``, ``y``, ``edge_index``, the three masks and ``classes``.

    Example:
        >>> random_graph(100, 400, 8).edge_index.shape
        torch.Size([2, 400])
    """
    import torch
    from torch_geometric.data import Data

    generator = torch.Generator().manual_seed(seed)
    permutation = torch.randperm(nodes, generator=generator)

    def endpoints(count: int) -> Tensor:
        return permutation[torch.rand(count, generator=generator, dtype=torch.float64).square_().mul_(nodes).long()]

    if symmetric:
        one_way = torch.stack([endpoints(edges // 2), endpoints(edges // 2)])
        edge_index = torch.cat([one_way, one_way.flip(0)], dim=1)
    else:
        edge_index = torch.stack([endpoints(edges), endpoints(edges)])
    quarter = torch.randint(4, (nodes,), generator=generator)
    return Data(
        x=torch.randn(nodes, features, generator=generator),
        y=torch.randint(RANDOM_GRAPH_CLASSES, (nodes,), generator=generator),
        edge_index=edge_index,
        train_mask=quarter < 2,
        val_mask=quarter == 2,
        test_mask=quarter == 3,
        classes=RANDOM_GRAPH_CLASSES,
    )

"""What is measured, by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from equipoise.errors import ChoiceError


@dataclass(frozen=True)
class Case:
    """A GATv2 with one head and shared weights on one graph.

    The graph is a data set, or a random one of the given size. Epochs are timed in ``rounds`` of ``epochs`` each; a
    case that is measured ``alone`` has a process of its own for each contestant, and its peak memory is taken.

    Example:
        >>> Case("small", layers=2, nodes=100, edges=400, features=8).widths(8, 3)
        [8, 64, 3]
    """

    name: str
    layers: int
    dataset: str = ""
    nodes: int = 0
    edges: int = 0  # as stored: both directions count
    features: int = 0
    symmetric: bool = True
    width: int = 64
    rounds: int = 5
    epochs: int = 3
    rivals: bool = True  # whether PyG, and DGL where it is installed, are measured too
    alone: bool = False

    def widths(self, features: int, classes: int) -> list[int]:
        """Features in, hidden widths, classes out."""
        return [features, *[self.width] * (self.layers - 1), classes]

    def quick(self) -> Case:
        """The same, with less patience."""
        return replace(self, rounds=2, epochs=2)


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case("synthetic-2", 2, "synthetic-citation"),
        Case("synthetic-10", 10, "synthetic-citation"),
        Case("cora-2", 2, "cora", rounds=8, epochs=5),
        Case("cora-10", 10, "cora", rounds=8),
        Case("cora-80", 80, "cora", rounds=2, rivals=False),
        Case("cora-1000", 1000, "cora", epochs=1, rivals=False, alone=True),
        Case("citeseer-2", 2, "citeseer", rounds=8, epochs=5),
        Case("pubmed-10", 10, "pubmed", rounds=4, epochs=2),
        Case("large", 4, nodes=169_000, edges=2_300_000, features=128, epochs=2, alone=True),
        # One way only: the layers need this graph in both orders, so a symmetric one takes less.
        Case(
            "huge",
            3,
            nodes=2_400_000,
            edges=62_000_000,
            features=100,
            symmetric=False,
            epochs=1,
            rivals=False,
            alone=True,
        ),
    )
}

WATCHED = Case("recorder", 10, "cora", rounds=15, epochs=5)
FIRST_CALL, SCALING = "compile", "scaling"  # measured, too, but not one network on one graph
NAMES = (*CASES, WATCHED.name, FIRST_CALL, SCALING)
UNASKED = tuple(name for name in NAMES if name != "huge")
QUICK = ("synthetic-2", "synthetic-10", "cora-2", "cora-10", "citeseer-2", SCALING)


def choose(names: Sequence[str], *, quick: bool = False, huge: bool = False) -> list[str]:
    """The names that were asked for, checked; the usual ones if none was.

    Example:
        >>> choose([], quick=True, huge=True)
        ['synthetic-2', 'synthetic-10', 'cora-2', 'cora-10', 'citeseer-2', 'scaling', 'huge']
    """
    for name in names:
        if name not in NAMES:
            raise ChoiceError("case", name, NAMES)
    chosen = list(names) or list(QUICK if quick else UNASKED)
    return list(dict.fromkeys([*chosen, *(["huge"] if huge else [])]))

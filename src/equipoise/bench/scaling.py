"""How the cost of an epoch grows: with edges, nodes, depth and width; and a straight line through it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from equipoise.bench.cases import Case

BASE = Case("scaling", layers=2, nodes=10_000, edges=100_000, features=64, rounds=3, epochs=1)
SMALL = replace(BASE, nodes=5_000, edges=25_000)
SWEEPS: dict[str, tuple[Case, str, tuple[int, ...]]] = {  # over what: the rest, the field, its values
    "edges": (BASE, "edges", (50_000, 100_000, 200_000, 300_000, 400_000)),
    "nodes": (BASE, "nodes", (5_000, 10_000, 20_000, 40_000, 60_000)),
    "depth": (SMALL, "layers", (2, 5, 10, 20, 40)),
    "width": (replace(SMALL, layers=4), "width", (16, 32, 64, 128)),
}
LINEAR = ("edges", "nodes", "depth")  # width is not: products cost its square
QUICK_SHARE = 10  # of edges and nodes, where there is little patience


def sweep_cases(over: str, *, quick: bool = False) -> list[Case]:
    """The cases of one sweep.

    Example:
        >>> [case.layers for case in sweep_cases("depth", quick=True)]
        [2, 5, 10]
    """
    base, field, values = SWEEPS[over]
    if quick:
        base, values = replace(base, nodes=base.nodes // QUICK_SHARE, edges=base.edges // QUICK_SHARE), values[:3]
        values = tuple(value // QUICK_SHARE for value in values) if field in ("nodes", "edges") else values
    return [replace(base, name=f"{over} {value}", **{field: value}) for value in values]  # type: ignore[arg-type]


def swept(case: Case, over: str) -> int:
    """The value that the sweep gave to this case."""
    value: int = getattr(case, SWEEPS[over][1])
    return value


@dataclass(frozen=True)
class Line:
    """y = offset + slope · x, and the share R² of the variance of y that it explains."""

    offset: float
    slope: float
    r2: float

    def __call__(self, x: float) -> float:
        return self.offset + self.slope * x


def fit(x: Sequence[float], y: Sequence[float]) -> Line:
    """The line of least squares.

    Example:
        >>> line = fit([1, 2, 3], [5.0, 7.0, 9.0])
        >>> round(line.offset, 6), round(line.slope, 6), round(line.r2, 6)
        (3.0, 2.0, 1.0)
    """
    slope, offset = np.polyfit(x, y, 1)
    left = np.asarray(y) - (offset + slope * np.asarray(x))
    spread = float(np.square(np.asarray(y) - np.mean(y)).sum())
    return Line(float(offset), float(slope), 1 - float(np.square(left).sum()) / spread if spread else 1.0)

"""How much work a run is, before it is run."""

from __future__ import annotations

from typing import Protocol

from equipoise.data.catalog import catalog_entry
from equipoise.experiments.spec import RunSpec

# About how long the parts of an epoch take, relative to each other: enough to begin with the long runs.
ROUGHLY = (1e5, 0.05, 0.5, 1.0)


class Graph(Protocol):
    """What counts about a data set; an entry of the catalogue has it."""

    @property
    def nodes(self) -> int: ...
    @property
    def edges(self) -> int: ...
    @property
    def features(self) -> int: ...
    @property
    def classes(self) -> int: ...


def parts(spec: RunSpec, graph: Graph | None = None) -> tuple[float, float, float, float]:
    """What an epoch is made of: layers, multiplications in dense layers, features of nodes, and those sent along edges.

    Its time is about linear in these (:mod:`~equipoise.experiments.calibration` finds the factors).

    Example:
        >>> parts(RunSpec(dataset="cora", depth=2, lr=0.1))
        (2.0, 249569280.0, 192268.0, 941744.0)
    """
    graph = graph or catalog_entry(spec.dataset)
    read = spec.width * (spec.heads if spec.concat else 1)
    written = [spec.width * spec.heads] * (spec.depth - 1) + [graph.classes * spec.out_heads]
    matrices = 1 if spec.share_weights else 2
    weights = sum(i * o for i, o in zip([graph.features, *[read] * (spec.depth - 1)], written, strict=True))
    edges = graph.edges * (2 if spec.undirected else 1) + graph.nodes  # with a self-loop each
    amounts = (spec.depth, graph.nodes * matrices * weights, graph.nodes * sum(written), edges * sum(written))
    layers, dense, features, sent = map(float, amounts)
    return layers, dense, features, sent


def work(spec: RunSpec) -> float:
    """A rough size of the whole run.

    Example:
        >>> work(RunSpec(dataset="cora", depth=20, lr=0.1)) > 5 * work(RunSpec(dataset="texas", depth=20, lr=0.1))
        True
    """
    return spec.epochs * sum(factor * amount for factor, amount in zip(ROUGHLY, parts(spec), strict=True))

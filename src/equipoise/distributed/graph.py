"""A partitioned graph that fused layers accept in place of ``edge_index``."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from torch import Tensor

from equipoise.distributed.buffers import BufferPool
from equipoise.distributed.exchange import Exchange, append_halo
from equipoise.distributed.overlap import Overlap, plan_overlap
from equipoise.distributed.parts.part import Part
from equipoise.distributed.process_group import TIMEOUT, gather_objects, join_process_group
from equipoise.errors import DistributedError, GraphError, PartitionError
from equipoise.kernels.csr import CSRGraph, build_graph


class DistributedGraph:
    """The graph of one rank: own target nodes, their incoming edges, and the exchange of boundary rows with others.

    Pass it to fused layers where they take ``edge_index``. A layer then computes the rows of own nodes from features of
    own nodes. It sends the transformed rows of boundary nodes to the ranks that read them, once per layer and
    direction. So every rank must call the same layers in the same order. Joins torchrun's process group if there is
    none yet.

    Args:
        part: the part of this rank.
        timeout: seconds that a rank waits for the others in one exchange.

    Attributes:
        num_own: number of own nodes.
        edge_index: (2, edges), local indices: sources are own nodes, then the halo; targets are own nodes.
        exchange: what the rank sends and receives.
        buffers: memory of the layers' temporary tensors.

    Raises:
        DistributedError: if ranks do not match the parts, or parts do not match each other.
        PartitionError: if the argument is not a part.

    Example:
        >>> import torch, equipoise as eq
        >>> part = eq.load_part("parts/")  # doctest: +SKIP
        >>> graph = DistributedGraph(part)  # doctest: +SKIP
        >>> out = model(part.x, graph)  # doctest: +SKIP
    """

    def __init__(self, part: Part, *, timeout: float = TIMEOUT) -> None:
        if not isinstance(part, Part):
            raise PartitionError(
                f"expected a part of a graph, got a {type(part).__name__}",
                where="DistributedGraph(part)",
                remedy="pass eq.load_part(folder)",
            )
        join_process_group(part.rank, part.parts, timeout=timeout)
        _check_same_partition(part)
        self.num_own, self.edge_index = len(part.own), part.edge_index
        self.buffers = BufferPool()
        self.exchange = Exchange(self.num_own, part.send, part.receive, self.buffers)
        self._cache: dict[Hashable, Any] = {}

    def __repr__(self) -> str:
        sizes = f"own={self.num_own}, halo={self.exchange.num_halo}, edges={self.edge_index.shape[1]}"
        return f"{type(self).__name__}({sizes})"

    def csr(self, self_loops: bool) -> CSRGraph:
        """The sorted graph, from own nodes and halo to own nodes; built once.

        Args:
            self_loops: replace self-loops by exactly one per own node.

        Returns:
            The graph.
        """
        graph: CSRGraph = self.cached(("csr", self_loops), lambda: self._build_csr(self_loops))
        return graph

    def overlap(self, self_loops: bool) -> Overlap:
        """The order of work on the graph; planned once.

        Args:
            self_loops: replace self-loops by exactly one per own node.

        Returns:
            The plan. It has edges of its own, so that :meth:`csr` need not stay in memory.
        """
        plan: Overlap = self.cached(("overlap", self_loops), lambda: plan_overlap(self._build_csr(self_loops)))
        return plan

    def _build_csr(self, self_loops: bool) -> CSRGraph:
        return build_graph(self.edge_index, (self.num_own + self.exchange.num_halo, self.num_own), self_loops)

    def append_halo(self, rows: Tensor) -> Tensor:
        """Rows of all sources: those given, of own nodes, and those of the halo, which their owners send.

        Args:
            rows: (own nodes, …).

        Returns:
            (own nodes + halo nodes, …), differentiable.
        """
        return append_halo(self.exchange, rows)

    def check_features(self, x: Any, layer: str) -> None:
        """Check that features have one row per own node.

        Args:
            x: the features.
            layer: name of the layer, for the message.

        Raises:
            GraphError: if they have not.
        """
        if not isinstance(x, Tensor) or x.dim() != 2 or x.size(0) != self.num_own:
            given = f"a tensor of shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
            raise GraphError(
                f"{layer}: x is {given}, expected features of the {self.num_own} own nodes of this rank",
                remedy="pass part.x, or what a layer returned for it",
            )

    def cached(self, key: Hashable, build: Callable[[], Any]) -> Any:
        """A value that depends on the graph only; built by the first call.

        Args:
            key: tells several values apart.
            build: computes the value.

        Returns:
            The value.
        """
        if key not in self._cache:
            self._cache[key] = build()
        return self._cache[key]


def all_sources(edge_index: Any, rows: Tensor) -> Tensor:
    """Rows of all sources of a layer's graph: with those of the halo on a distributed graph, unchanged on any other."""
    return edge_index.append_halo(rows) if isinstance(edge_index, DistributedGraph) else rows


def _check_same_partition(part: Part) -> None:
    """Raise :class:`DistributedError` on every rank if their parts come from different partitions."""
    fingerprints = gather_objects(part.manifest.fingerprint)
    if different := [rank for rank, fingerprint in enumerate(fingerprints) if fingerprint != fingerprints[0]]:
        raise DistributedError(
            f"the parts of rank 0 and rank {different[0]} come from different partitions",
            remedy="copy the files of one run of equipoise partition to all machines",
        )

"""Sizes of a partition: nodes, edges and halo of each part, edge cut, balance, bytes of an exchange."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from equipoise.distributed.cost import exchange_bytes
from equipoise.distributed.parts.assignment import NODE_WORK
from equipoise.distributed.parts.files import StoredManifest, read_manifest

DEFAULT_WIDTH = 64


@dataclass(frozen=True)
class PartitionSummary:
    """Sizes of a partition; prints as a table.

    Args:
        name: name of the graph.
        method: how the graph was partitioned.
        num_nodes: nodes of the graph.
        num_edges: edges of the graph.
        edge_cut: edges between parts.
        nodes: nodes of each part.
        edges: incoming edges of these nodes.
        receive: rows that each part receives in an exchange: the size of its halo.
        send: rows that each part sends.
        fingerprint: SHA-256 of the partition.
    """

    name: str
    method: str
    num_nodes: int
    num_edges: int
    edge_cut: int
    nodes: tuple[int, ...]
    edges: tuple[int, ...]
    receive: tuple[int, ...]
    send: tuple[int, ...]
    fingerprint: str

    @property
    def parts(self) -> int:
        """Number of parts."""
        return len(self.nodes)

    @property
    def halo(self) -> int:
        """Rows that all parts receive in one exchange."""
        return sum(self.receive)

    @property
    def balance(self) -> float:
        """Work of a layer on the largest part divided by the mean: 1 is perfect."""
        work = [NODE_WORK * nodes + edges for nodes, edges in zip(self.nodes, self.edges, strict=True)]
        return max(work) * self.parts / sum(work) if sum(work) else 1.0

    def to_dict(self, width: int = DEFAULT_WIDTH) -> dict[str, Any]:
        """Return all sizes as JSON values.

        Args:
            width: width of the exchanged rows.

        Returns:
            The sizes by name.
        """
        return {
            "name": self.name,
            "method": self.method,
            "parts": self.parts,
            "nodes": self.num_nodes,
            "edges": self.num_edges,
            "edge_cut": self.edge_cut,
            "halo": self.halo,
            "balance": self.balance,
            "width": width,
            "exchange_bytes": exchange_bytes(self.halo, width),
            "ranks": [
                {"nodes": nodes, "edges": edges, "receive": receive, "send": send}
                for nodes, edges, receive, send in zip(self.nodes, self.edges, self.receive, self.send, strict=True)
            ],
            "fingerprint": self.fingerprint,
        }

    def to_text(self, width: int = DEFAULT_WIDTH) -> str:
        """Format the sizes as a table.

        Args:
            width: width of the exchanged rows.

        Returns:
            One row per part, and the sums.
        """
        header = f"{'part':>4} {'nodes':>13} {'edges':>15} {'receives':>13} {'sends':>13}"
        columns = zip(self.nodes, self.edges, self.receive, self.send, strict=True)
        rows = [
            f"{part:>4} {nodes:>13,} {edges:>15,} {receive:>13,} {send:>13,}"
            for part, (nodes, edges, receive, send) in enumerate(columns)
        ]
        cut = self.edge_cut / self.num_edges if self.num_edges else 0.0
        sums = {
            "graph": f"{self.name}: {self.num_nodes:,} nodes, {self.num_edges:,} edges",
            "method": self.method,
            "edge cut": f"{self.edge_cut:,} edges between parts ({100 * cut:.1f} %)",
            "halo": f"{self.halo:,} rows, {self.halo / max(self.num_nodes, 1):.2f} per node",
            "exchange": f"{_format_bytes(exchange_bytes(self.halo, width))} per layer and direction "
            f"(width {width}, float32, all parts)",
            "balance": f"{self.balance:.3f} (largest part / mean)",
        }
        return "\n".join([header, *rows, "", *(f"{name:<10} {value}" for name, value in sums.items())])

    def __str__(self) -> str:
        return self.to_text()


def summarize(stored: StoredManifest) -> PartitionSummary:
    """Read the sizes from a manifest."""
    manifest, ranks = stored.manifest, stored.ranks
    return PartitionSummary(
        name=manifest.name,
        method=manifest.method,
        num_nodes=manifest.num_nodes,
        num_edges=manifest.num_edges,
        edge_cut=stored.edge_cut,
        nodes=tuple(rank.nodes for rank in ranks),
        edges=tuple(rank.edges for rank in ranks),
        receive=tuple(sum(rank.receive) for rank in ranks),
        send=tuple(sum(rank.send) for rank in ranks),
        fingerprint=manifest.fingerprint,
    )


def read_summary(path: str | PathLike[str]) -> PartitionSummary:
    """Read the sizes of a partition on disk.

    Args:
        path: folder of the partition; only its manifest is read.

    Returns:
        The sizes.
    """
    return summarize(read_manifest(Path(path)))


def _format_bytes(count: int) -> str:
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.3g} {unit}"

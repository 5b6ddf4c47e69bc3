"""One part of a partitioned graph: the nodes of one rank, their incoming edges, and the boundary nodes that they read.

Every node has one owner. A rank computes the rows of its own nodes and needs, for each of their incoming edges, the row
of the source. Sources of other owners are the *halo*. The local index of a node counts own nodes first, then the halo::

    local index    0 … n−1     n … n+h−1
    node           own         halo, grouped by owner
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Manifest:
    """Facts about the whole partition, equal on every rank.

    Args:
        name: name of the graph.
        parts: number of parts.
        num_nodes: nodes of the whole graph.
        num_edges: edges of the whole graph.
        num_features: columns of ``x``.
        num_classes: number of classes; ``None`` without integer labels.
        method: how the graph was partitioned, ``metis`` or ``blocks``.
        fingerprint: SHA-256 of the partition. Ranks that train together have the same one.
    """

    name: str
    parts: int
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int | None
    method: str
    fingerprint: str


@dataclass(frozen=True)
class Part:
    """The nodes of one rank, their incoming edges, and what the rank exchanges with the others.

    The edges of a target keep their order in the whole graph, so that sums over neighbours round as in one process.
    Self-loops are stored only if the graph has them: layers add them, as in PyG.

    Args:
        rank: rank of this part, 0 to ``parts`` − 1.
        parts: number of parts.
        num_nodes: nodes of the whole graph.
        own: (n,) int64, global indices of own nodes: those that read no halo, ascending, then the others, ascending.
        halo: (h,) int64, global indices of the nodes of other ranks that own nodes read, by owner, then ascending.
        edge_index: (2, e) int64, local indices: sources in [0, n + h), targets in [0, n).
        send: for each rank the local indices of own nodes in its halo, in the order of that halo; empty for this rank.
        receive: for each rank the number of halo nodes that it owns.
        x: (n, features) features of own nodes; may be mapped from a file.
        y: labels of own nodes.
        train_mask: training nodes among own nodes.
        val_mask: validation nodes among own nodes.
        test_mask: test nodes among own nodes.
        edge_attr: features or weights of the edges, in the order of ``edge_index``.
        manifest: facts about the whole partition.

    Example:
        >>> import tempfile
        >>> import equipoise as eq
        >>> folder = tempfile.mkdtemp()
        >>> _ = eq.partition(eq.load_dataset("synthetic-citation"), 2, folder, method="blocks")
        >>> first, second = eq.load_part(folder, rank=0), eq.load_part(folder, rank=1)
        >>> first.own[first.send[1]].equal(second.halo)  # what rank 0 sends is the halo of rank 1
        True
    """

    rank: int
    parts: int
    num_nodes: int
    own: Tensor
    halo: Tensor
    edge_index: Tensor
    send: tuple[Tensor, ...]
    receive: tuple[int, ...]
    x: Tensor
    y: Tensor | None
    train_mask: Tensor | None
    val_mask: Tensor | None
    test_mask: Tensor | None
    manifest: Manifest
    edge_attr: Tensor | None = None

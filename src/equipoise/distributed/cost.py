"""Cost model of the exchange: bytes per layer, time on a network, and the halo that a partition of a graph would have.

A rank receives one row per halo node in the forward pass of a layer, and sends back one gradient row per halo node in
the backward pass. With rows of ``width`` float32 numbers, an exchange moves

.. math:: B = h · width · 4

bytes for a halo of h nodes. A rank sends and receives at once, so the exchange takes as long as the larger of both on
the rank with the most rows.
"""

from __future__ import annotations

from dataclasses import dataclass

FLOAT_BYTES = 4
DIRECTIONS = 2  # rows in the forward pass, their gradients in the backward pass


def exchange_bytes(halo: int, width: int, itemsize: int = FLOAT_BYTES) -> int:
    """Bytes of one exchange: ``halo × width × itemsize``.

    Args:
        halo: number of rows.
        width: numbers per row.
        itemsize: bytes per number.

    Returns:
        The bytes of one layer in one direction.

    Example:
        >>> exchange_bytes(halo=451, width=64)
        115456
    """
    return halo * width * itemsize


def expected_halo(nodes: int, edges: int, parts: int, cut: float | None = None) -> float:
    r"""Estimate the halo of all parts from the sizes of a graph.

    If every edge crosses parts with probability c and leads to any of the other P − 1 parts alike, a node with d
    outgoing edges is in the halo of

    .. math:: (P - 1) \left(1 - \left(1 - \frac{c}{P - 1}\right)^d\right)

    parts. The function takes d as the mean degree. The expression is concave in d, so graphs with unequal degrees have
    a smaller halo on average: the estimate is an upper bound under these assumptions.

    Args:
        nodes: number of nodes.
        edges: number of edges.
        parts: number of parts P.
        cut: fraction c of the edges between parts; by default that of a random partition, 1 − 1/P.

    Returns:
        Rows that all parts receive in one exchange.

    Example:
        >>> round(expected_halo(nodes=1000, edges=10_000, parts=2))  # random: nearly all of the other part's nodes
        999
        >>> round(expected_halo(nodes=1000, edges=10_000, parts=2, cut=0.05))
        401
    """
    if parts == 1 or not nodes:
        return 0.0
    cut = 1 - 1 / parts if cut is None else cut
    unread: float = (1 - cut / (parts - 1)) ** (edges / nodes)  # probability that a given other part does not read it
    return nodes * (parts - 1) * (1 - unread)


@dataclass(frozen=True)
class ExchangeCost:
    """Bytes and time that one rank spends on exchanges.

    Args:
        rank_bytes: bytes that the rank receives per layer and direction.
        epoch_bytes: bytes that it receives per epoch.
        epoch_seconds: time of these exchanges on the network, if nothing overlaps with them.
    """

    rank_bytes: int
    epoch_bytes: int
    epoch_seconds: float


def exchange_cost(rows: float, width: int, layers: int, *, gbits: float, latency: float = 0.0) -> ExchangeCost:
    """Predict bytes and time of the exchanges of one rank in one epoch.

    Args:
        rows: rows that the rank receives or sends in an exchange, whichever is more.
        width: width of the rows.
        layers: number of layers, each with one exchange per direction.
        gbits: bandwidth of the network in Gbit/s, in each direction.
        latency: seconds per exchange, whatever its size.

    Returns:
        The cost.

    Example:
        >>> cost = exchange_cost(1_000_000, 64, 3, gbits=10)  # 256 MB per exchange, 6 exchanges
        >>> cost.rank_bytes, cost.epoch_bytes, round(cost.epoch_seconds, 3)
        (256000000, 1536000000, 1.229)
    """
    size = exchange_bytes(round(rows), width)
    exchanges = DIRECTIONS * layers
    return ExchangeCost(size, exchanges * size, exchanges * (size * 8 / (gbits * 1e9) + latency))

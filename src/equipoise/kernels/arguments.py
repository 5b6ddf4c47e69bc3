"""Arguments of the kernels, grouped: the edges, what a layer computes from, and what it computes.

All arrays are flat. Features are (nodes, heads, channels); scores and coefficients are (edges, heads) in the order by
target. Numba passes a named tuple to compiled code as its members, without cost.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Edges(NamedTuple):
    """The edges of a graph, grouped by one of their ends: the node that a kernel iterates over.

    Attributes:
        ptr: row pointers: the edges of node v are ``ptr[v] … ptr[v + 1] - 1``.
        neighbour: the other end of each edge.
        position: index of each edge in the order by target; empty if the edges are in this order.
        order: nodes, sorted by degree within each chunk of ``CHUNK``.
    """

    ptr: Any
    neighbour: Any
    position: Any
    order: Any


class HeadShape(NamedTuple):
    """Shape of the rows of features.

    Attributes:
        heads: number of heads.
        blocks: channels of a head as SIMD vectors (:func:`equipoise.kernels.simd.vector_blocks`).
    """

    heads: int
    blocks: Any


class GATv2Inputs(NamedTuple):
    """What GATv2 computes its scores a · LeakyReLU(source[u] + target[v] + edge[k]) from.

    Attributes:
        source: (sources, heads, channels).
        target: (targets, heads, channels).
        edge: (edges, heads, channels), in the order by target; empty without edge features.
        att: (heads, channels).
        slope: negative slope of the LeakyReLU.
    """

    source: Any
    target: Any
    edge: Any
    att: Any
    slope: Any


class GATInputs(NamedTuple):
    """What GAT computes its scores LeakyReLU(p[u] + q[v] + edge[k]), and the sum of z, from.

    Attributes:
        z: (sources, heads, channels), the features to sum.
        p: (sources, heads).
        q: (targets, heads).
        edge: (edges, heads), in the order by target; empty without edge features.
        slope: negative slope of the LeakyReLU.
    """

    z: Any
    p: Any
    q: Any
    edge: Any
    slope: Any


class TransformerInputs(NamedTuple):
    """What dot-product attention is computed from.

    Attributes:
        query: (targets, heads, channels).
        key: (sources, heads, channels).
        value: (sources, heads, channels).
        scale: factor of the scores, 1/√channels.
    """

    query: Any
    key: Any
    value: Any
    scale: Any


class Coefficients(NamedTuple):
    """Attention coefficients, (edges, heads) each.

    Attributes:
        alpha: before dropout.
        weight: after dropout; the same array without dropout.
        dropout_mask: 1/(1−p) or 0; empty without dropout.
    """

    alpha: Any
    weight: Any
    dropout_mask: Any


class Output(NamedTuple):
    """The weighted sums of a layer, (targets, heads, channels), and their gradient.

    Attributes:
        out: output of the forward pass, after the ReLU if there is one.
        grad: its gradient.
        dout: the gradient before the ReLU, written by the backward pass; without a ReLU the same array as ``grad``.
        relu: whether a ReLU follows.
    """

    out: Any
    grad: Any
    dout: Any
    relu: bool


class ScoreGradients(NamedTuple):
    """Gradients of the scores, written by the first kernel of the backward pass.

    Attributes:
        dscore: (edges, heads); undefined for edges into inactive nodes unless a kernel says otherwise.
        active: (targets, heads), whether the gradient of the output is nonzero.
    """

    dscore: Any
    active: Any

"""What both kinds of attention share: softmax and weighted sum of a node in one visit, and the way back through them.

Features are (nodes, heads, channels), scores and coefficients (edges, heads) in the order by target, all of them flat;
channels come in ``blocks`` of lanes. Each kernel works on a range of nodes and writes to rows of that range only,
so ranges can run side by side without atomics; what is summed over all nodes is summed range by range, in order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.kernels.compiled import inlined
from equipoise.kernels.exponential import exponential
from equipoise.kernels.lanes import any_nonzero, fill, if_positive, load, number_of, rectified, store, total

AHEAD = 8  # edges; their features come from far away in a large graph, and are asked for in time


@inlined
def dot(first: Any, x: Any, i: int, y: Any, j: int, blocks: Any) -> Any:
    """⟨x[i:], y[j:]⟩ over the channels, with the first block of x in hand: loaded once for all edges of a node."""
    lanes = blocks[0]
    sums = first * load(y, j, lanes)
    for b in range(1, number_of(blocks)):
        c = b * len(lanes)
        sums = sums + load(x, i + c, lanes) * load(y, j + c, lanes)
    return total(sums)


@inlined
def attend(
    first: int,
    last: int,
    ptr: Any,
    src: Any,
    order: Any,
    z: Any,
    kept: Any,
    alpha: Any,
    weight: Any,
    out: Any,
    relu: bool,
    H: int,
    blocks: Any,
) -> None:
    """Scores to coefficients, what dropout leaves of them to ``weight``, and the sums that they weigh.

    Scores come in ``alpha``, each node's largest taken off, so that none is too large. A node has few edges, and every
    loop over them ends with a guess of the processor's gone wrong: so there are few loops.
    """
    lanes, row = blocks[0], H * number_of(blocks) * len(blocks[0])
    scores = alpha[ptr[first] * H : ptr[last] * H]  # from 0 on: an index that may be negative is not vectorised
    for k in range(len(scores)):
        scores[k] = exponential(scores[k])
    for i in range(first, last):
        v = order[i]
        for h in range(H):
            norm = alpha.dtype.type(0)
            for k in range(ptr[v], ptr[v + 1]):
                norm += alpha[k * H + h]
            share = alpha.dtype.type(1) / norm  # of a node without edges: never used
            for k in range(ptr[v], ptr[v + 1]):
                alpha[k * H + h] *= share
    if len(kept):
        for k in range(ptr[first] * H, ptr[last] * H):
            weight[k] = alpha[k] * kept[k]
    for i in range(first, last):
        v = order[i]
        for h in range(H):
            for b in range(number_of(blocks)):
                c = (h * number_of(blocks) + b) * len(lanes)
                sums = fill(z, 0, lanes)
                for k in range(ptr[v], ptr[v + 1]):
                    sums = sums + fill(z, weight[k * H + h], lanes) * load(z, src[k] * row + c, lanes)
                store(out, v * row + c, rectified(sums) if relu else sums)


@inlined
def lowest(like: Any) -> Any:
    """Below all scores, in the array's own precision."""
    return like.dtype.type(-np.inf)


@inlined
def less_largest(v: int, h: int, ptr: Any, alpha: Any, largest: Any, H: int) -> None:
    """Take a node's largest score off all of them."""
    for k in range(ptr[v], ptr[v + 1]):
        alpha[k * H + h] -= largest


@inlined
def before_relu(place: int, out: Any, grad: Any, dout: Any, relu: bool, blocks: Any) -> bool:
    """The gradient of a node before the ReLU, to ``dout``, and whether there is any.

    A node that reaches no training node has none, and neither have its edges: they are left out.
    """
    lanes, active = blocks[0], False
    for b in range(number_of(blocks)):
        c = place + b * len(lanes)
        g = load(grad, c, lanes)
        if relu:
            g = if_positive(load(out, c, lanes), g, fill(out, 0, lanes))
            store(dout, c, g)
        active |= any_nonzero(g)
    return active


@inlined
def score_gradients(
    v: int,
    h: int,
    ptr: Any,
    src: Any,
    z: Any,
    kept: Any,
    alpha: Any,
    out: Any,
    dout: Any,
    dscore: Any,
    H: int,
    blocks: Any,
) -> None:
    """dscore_uv = α (kept ⟨dout_v, z_u⟩ − D), with D = ⟨dout_v, out_v⟩ instead of a second sum over edges."""
    C = number_of(blocks) * len(blocks[0])
    here = (v * H + h) * C
    first = load(dout, here, blocks[0])
    D = dot(first, dout, here, out, here, blocks)
    for k in range(ptr[v], ptr[v + 1]):
        dalpha = dot(first, dout, here, z, (src[k] * H + h) * C, blocks)
        dscore[k * H + h] = alpha[k * H + h] * ((dalpha * kept[k * H + h] if len(kept) else dalpha) - D)

"""Steps shared by the GAT and GATv2 kernels: softmax over neighbours, weighted sum, and their backward passes.

:mod:`equipoise.kernels.arguments` explains the arguments. A kernel processes a range of nodes and writes to rows of
this range only, so that ranges run concurrently without atomics; sums over all nodes are accumulated per range and
added in order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.kernels.jit import jit_inline
from equipoise.kernels.simd import (
    any_nonzero,
    at,
    broadcast,
    clamp_negative,
    fast_exp,
    horizontal_sum,
    load,
    num_blocks,
    put,
    store,
    where_positive,
)

PREFETCH_DISTANCE = 8  # edges; in a large graph their features are not in the cache


@jit_inline
def dot(first: Any, x: Any, i: int, y: Any, j: int, blocks: Any) -> Any:
    """⟨x[i:], y[j:]⟩ over the channels; ``first`` is the first block of x, loaded once for all edges of a node."""
    width = blocks[0]
    acc = first * load(y, j, width)
    for b in range(1, num_blocks(blocks)):
        c = b * len(width)
        acc = acc + load(x, i + c, width) * load(y, j + c, width)
    return horizontal_sum(acc)


@jit_inline
def softmax_and_sum(lo: int, hi: int, edges: Any, z: Any, coefficients: Any, out: Any, relu: bool, shape: Any) -> None:
    """Turn scores into coefficients, apply dropout, and sum the weighted features of the neighbours.

    ``coefficients.alpha`` holds scores minus their maximum per node, so that no exponential overflows, and becomes the
    coefficients. Nodes have few edges, and every loop over them ends with a mispredicted branch; hence as few such
    loops as possible.
    """
    (H, blocks), (ptr, src, _, order), (alpha, weight, dropout_mask) = shape, edges, coefficients
    width, row = blocks[0], H * num_blocks(blocks) * len(blocks[0])
    scores = alpha[ptr[lo] * H : ptr[hi] * H]  # a slice indexed from 0: LLVM does not vectorise a signed offset
    for k in range(len(scores)):
        scores[k] = fast_exp(scores[k])
    for i in range(lo, hi):
        v = at(order, i)
        for h in range(H):
            norm = alpha.dtype.type(0)
            for k in range(at(ptr, v), at(ptr, v + 1)):
                norm += at(alpha, k * H + h)
            scale = alpha.dtype.type(1) / norm  # infinite for a node without edges, but unused
            for k in range(at(ptr, v), at(ptr, v + 1)):
                put(alpha, k * H + h, at(alpha, k * H + h) * scale)
    if len(dropout_mask):
        for k in range(at(ptr, lo) * H, at(ptr, hi) * H):
            put(weight, k, at(alpha, k) * at(dropout_mask, k))
    for i in range(lo, hi):
        v = at(order, i)
        for h in range(H):
            for b in range(num_blocks(blocks)):
                c = (h * num_blocks(blocks) + b) * len(width)
                acc = broadcast(z, 0, width)
                for k in range(at(ptr, v), at(ptr, v + 1)):
                    acc = acc + broadcast(z, at(weight, k * H + h), width) * load(z, at(src, k) * row + c, width)
                store(out, v * row + c, clamp_negative(acc) if relu else acc)


@jit_inline
def negative_infinity(like: Any) -> Any:
    """−∞ in the dtype of an array."""
    return like.dtype.type(-np.inf)


@jit_inline
def subtract_max(v: int, h: int, ptr: Any, alpha: Any, max_score: Any, H: int) -> None:
    """Subtract a node's largest score from all of its scores."""
    for k in range(at(ptr, v), at(ptr, v + 1)):
        put(alpha, k * H + h, at(alpha, k * H + h) - max_score)


@jit_inline
def relu_backward(offset: int, output: Any, blocks: Any) -> bool:
    """Write the gradient of one node and head before the ReLU to ``output.dout``.

    Args:
        offset: of the node and head in all arrays.
        output: the weighted sums and their gradient; without a ReLU nothing is written.
        blocks: channels as SIMD vectors.

    Returns:
        Whether the gradient is nonzero. It is zero at nodes from which no training node is reachable, and so it is at
        their edges: kernels skip them.
    """
    out, grad, dout, relu = output
    width, active = blocks[0], False
    for b in range(num_blocks(blocks)):
        c = offset + b * len(width)
        g = load(grad, c, width)
        if relu:
            g = where_positive(load(out, c, width), g, broadcast(out, 0, width))
            store(dout, c, g)
        active |= any_nonzero(g)
    return active


@jit_inline
def score_backward(v: int, h: int, edges: Any, z: Any, coefficients: Any, output: Any, dscore: Any, shape: Any) -> None:
    """dscore_uv = α_uv (mask_uv ⟨dout_v, z_u⟩ − D_v), with D_v = ⟨dout_v, out_v⟩ instead of a second sum over edges."""
    (H, blocks), (ptr, src, _, _), (alpha, _, dropout_mask) = shape, edges, coefficients
    out, dout = output.out, output.dout
    C = num_blocks(blocks) * len(blocks[0])
    offset = (v * H + h) * C
    first = load(dout, offset, blocks[0])
    D = dot(first, dout, offset, out, offset, blocks)
    for k in range(at(ptr, v), at(ptr, v + 1)):
        dalpha = dot(first, dout, offset, z, (at(src, k) * H + h) * C, blocks)
        put(
            dscore,
            k * H + h,
            at(alpha, k * H + h) * ((dalpha * at(dropout_mask, k * H + h) if len(dropout_mask) else dalpha) - D),
        )

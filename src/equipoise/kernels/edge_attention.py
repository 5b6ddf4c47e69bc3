"""Kernels of GATv2 and GAT for edge features, and for gradients that reach the attention coefficients themselves.

The backward pass has three steps: gradients of the scores (:func:`equipoise.kernels.gatv2.backward_scores`, then
:func:`add_coefficient_gradients` if the coefficients have a gradient), gradients of targets and edges, gradients of
sources. Gradients of scores are zero at inactive nodes. Other arguments are explained in
:mod:`equipoise.kernels.arguments`.
"""

from __future__ import annotations

from typing import Any

from equipoise.kernels.attention import PREFETCH_DISTANCE, negative_infinity, softmax_and_sum, subtract_max
from equipoise.kernels.csr import CHUNK
from equipoise.kernels.jit import jit, jit_inline
from equipoise.kernels.simd import broadcast, horizontal_sum, load, num_blocks, prefetch, store, where_positive


@jit_inline
def _hidden(inputs: Any, u: int, v: int, k: int, c: int, row: int, width: Any) -> Any:
    """One vector of source[u] + target[v] + edge[k], starting at channel c."""
    t = load(inputs.source, u * row + c, width) + load(inputs.target, v * row + c, width)
    if len(inputs.edge):
        t = t + load(inputs.edge, k * row + c, width)
    return t


@jit
def gatv2_forward(
    lo: int, hi: int, edges: Any, inputs: Any, coefficients: Any, out: Any, relu: bool, shape: Any
) -> None:
    """out[v] = Σ_k mask_k α_k source[u_k] with α = softmax a · LeakyReLU(source[u] + target[v] + edge[k])."""
    (H, blocks), (ptr, src, _, order), alpha = shape, edges, coefficients.alpha
    width, row = blocks[0], H * num_blocks(blocks) * len(blocks[0])
    source, att = inputs.source, inputs.att
    slopes = broadcast(att, inputs.slope, width)
    for chunk_lo in range(lo, hi, CHUNK):
        chunk_hi = min(chunk_lo + CHUNK, hi)
        for i in range(chunk_lo, chunk_hi):
            v = order[i]
            for h in range(H):
                max_score = negative_infinity(alpha)
                for k in range(ptr[v], ptr[v + 1]):
                    if k + PREFETCH_DISTANCE < len(src):
                        c = h * num_blocks(blocks) * len(width)
                        prefetch(source, src[k + PREFETCH_DISTANCE] * row + c, width)
                    acc = broadcast(att, 0, width)
                    for b in range(num_blocks(blocks)):
                        c = (h * num_blocks(blocks) + b) * len(width)
                        t = _hidden(inputs, src[k], v, k, c, row, width)
                        acc = acc + load(att, c, width) * where_positive(t, t, slopes * t)
                    score = horizontal_sum(acc)
                    alpha[k * H + h] = score
                    max_score = score if score > max_score else max_score
                subtract_max(v, h, ptr, alpha, max_score, H)
        softmax_and_sum(chunk_lo, chunk_hi, edges, source, coefficients, out, relu, shape)


@jit
def gat_forward(lo: int, hi: int, edges: Any, inputs: Any, coefficients: Any, out: Any, relu: bool, shape: Any) -> None:
    """out[v] = Σ_k mask_k α_k z[u_k] with α = softmax LeakyReLU(p[u] + q[v] + edge[k])."""
    H, (ptr, src, _, order), (z, p, q, edge, slope), alpha = shape.heads, edges, inputs, coefficients.alpha
    for chunk_lo in range(lo, hi, CHUNK):
        chunk_hi = min(chunk_lo + CHUNK, hi)
        for i in range(chunk_lo, chunk_hi):
            v = order[i]
            for h in range(H):
                max_score = negative_infinity(alpha)
                for k in range(ptr[v], ptr[v + 1]):
                    t = p[src[k] * H + h] + q[v * H + h] + edge[k * H + h]
                    score = t if t > 0 else slope * t
                    alpha[k * H + h] = score
                    max_score = score if score > max_score else max_score
                subtract_max(v, h, ptr, alpha, max_score, H)
        softmax_and_sum(chunk_lo, chunk_hi, edges, z, coefficients, out, relu, shape)


@jit
def add_coefficient_gradients(
    lo: int, hi: int, edges: Any, coefficients: Any, dweight: Any, scores: Any, shape: Any
) -> None:
    """Add to the gradients of scores those that come from the gradient ``dweight`` of the coefficients after dropout.

    dscore_k += α_k (mask_k dweight_k − D_v), with D_v = Σ_j weight_j dweight_j over the edges into v.
    """
    H, (ptr, _, _, order), (dscore, active) = shape.heads, edges, scores
    alpha, weight, dropout_mask = coefficients
    for i in range(lo, hi):
        v = order[i]
        for h in range(H):
            D = alpha.dtype.type(0)
            for k in range(ptr[v], ptr[v + 1]):
                D += weight[k * H + h] * dweight[k * H + h]
                active[v * H + h] |= dweight[k * H + h] != 0
            for k in range(ptr[v], ptr[v + 1]):
                e = k * H + h
                dscore[e] += alpha[e] * ((dweight[e] * dropout_mask[e] if len(dropout_mask) else dweight[e]) - D)


@jit
def gatv2_backward_targets(
    lo: int, hi: int, edges: Any, inputs: Any, scores: Any, dtarget: Any, dedge: Any, datt: Any, shape: Any
) -> None:
    """Gradients of target and edge features, and of attention, which is accumulated in ``datt``.

    ``dedge`` is empty without edge features.
    """
    (H, blocks), (ptr, src, _, order), (dscore, active) = shape, edges, scores
    width, row = blocks[0], H * num_blocks(blocks) * len(blocks[0])
    att, slope = inputs.att, inputs.slope
    for i in range(lo, hi):
        v = order[i]
        for h in range(H):
            for b in range(num_blocks(blocks)):
                c = (h * num_blocks(blocks) + b) * len(width)
                acc, da, a = broadcast(att, 0, width), load(datt, c, width), load(att, c, width)
                if active[v * H + h]:
                    for k in range(ptr[v], ptr[v + 1]):
                        d = dscore[k * H + h]
                        t = _hidden(inputs, src[k], v, k, c, row, width)
                        dt = where_positive(t, broadcast(att, d, width), broadcast(att, slope * d, width))
                        acc = acc + dt
                        da = da + dt * t
                        if len(dedge):
                            store(dedge, k * row + c, dt * a)
                elif len(dedge):
                    for k in range(ptr[v], ptr[v + 1]):
                        store(dedge, k * row + c, acc)
                store(datt, c, da)
                store(dtarget, v * row + c, acc * a)


@jit
def gatv2_backward_sources(
    lo: int, hi: int, edges: Any, weight: Any, dout: Any, dedge: Any, active: Any, dsource: Any, shape: Any
) -> None:
    """Gradient of source features: sum of the gradients of their edges and of the weighted gradients of the output."""
    (H, blocks), (ptr, dst, position, order) = shape, edges
    width, row = blocks[0], H * num_blocks(blocks) * len(blocks[0])
    for i in range(lo, hi):
        u = order[i]
        for h in range(H):
            for b in range(num_blocks(blocks)):
                c = (h * num_blocks(blocks) + b) * len(width)
                acc = broadcast(dout, 0, width)
                for k in range(ptr[u], ptr[u + 1]):
                    if active[dst[k] * H + h]:
                        e = position[k]
                        w = broadcast(dout, weight[e * H + h], width)
                        acc = acc + load(dedge, e * row + c, width) + w * load(dout, dst[k] * row + c, width)
                store(dsource, u * row + c, acc)


@jit
def gat_backward_targets(lo: int, hi: int, edges: Any, inputs: Any, dscore: Any, dq: Any, shape: Any) -> None:
    """Turn gradients of scores into those of p[u] + q[v] + edge[k], in place, and sum them to the gradient of q."""
    H, (ptr, src, _, order), (_, p, q, edge, slope) = shape.heads, edges, inputs
    for i in range(lo, hi):
        v = order[i]
        for h in range(H):
            dq[v * H + h] = 0
            for k in range(ptr[v], ptr[v + 1]):
                t = p[src[k] * H + h] + q[v * H + h]
                if len(edge):
                    t += edge[k * H + h]
                if not t > 0:
                    dscore[k * H + h] *= slope
                dq[v * H + h] += dscore[k * H + h]

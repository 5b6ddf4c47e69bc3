"""GATv2 kernels: scores a · LeakyReLU(source[u] + target[v]), forward and backward pass.

``lo``, ``hi`` are a range of nodes, counted in ``edges.order``; :mod:`equipoise.kernels.arguments` explains the other
arguments. Kernels for edge features are in :mod:`equipoise.kernels.edge_attention`.
"""

from __future__ import annotations

from typing import Any

from equipoise.kernels.attention import (
    PREFETCH_DISTANCE,
    negative_infinity,
    relu_backward,
    score_backward,
    softmax_and_sum,
    subtract_max,
)
from equipoise.kernels.csr import CHUNK
from equipoise.kernels.jit import jit
from equipoise.kernels.simd import at, broadcast, horizontal_sum, load, num_blocks, prefetch, put, store, where_positive


@jit
def forward(lo: int, hi: int, edges: Any, inputs: Any, coefficients: Any, out: Any, relu: bool, shape: Any) -> None:
    """out[v] = Σ_u mask_uv α_uv source[u] with α_uv = softmax_u a · LeakyReLU(source[u] + target[v])."""
    (H, blocks), (ptr, src, _, order), alpha = shape, edges, coefficients.alpha
    source, target, _, att, slope = inputs
    width, row = blocks[0], H * num_blocks(blocks) * len(blocks[0])
    slopes = broadcast(att, slope, width)
    for chunk_lo in range(lo, hi, CHUNK):
        chunk_hi = min(chunk_lo + CHUNK, hi)
        for i in range(chunk_lo, chunk_hi):
            v = at(order, i)
            for h in range(H):
                c = h * num_blocks(blocks) * len(width)
                a, target_v, max_score = load(att, c, width), load(target, v * row + c, width), negative_infinity(alpha)
                for k in range(at(ptr, v), at(ptr, v + 1)):
                    if k + PREFETCH_DISTANCE < len(src):
                        prefetch(source, at(src, k + PREFETCH_DISTANCE) * row + c, width)
                    t = load(source, at(src, k) * row + c, width) + target_v
                    acc = a * where_positive(t, t, slopes * t)
                    for b in range(1, num_blocks(blocks)):
                        d = c + b * len(width)
                        t = load(source, at(src, k) * row + d, width) + load(target, v * row + d, width)
                        acc = acc + load(att, d, width) * where_positive(t, t, slopes * t)
                    score = horizontal_sum(acc)
                    put(alpha, k * H + h, score)
                    max_score = score if score > max_score else max_score
                subtract_max(v, h, ptr, alpha, max_score, H)
        softmax_and_sum(chunk_lo, chunk_hi, edges, source, coefficients, out, relu, shape)


@jit
def backward_targets(
    lo: int,
    hi: int,
    edges: Any,
    inputs: Any,
    coefficients: Any,
    output: Any,
    scores: Any,
    dtarget: Any,
    datt: Any,
    shape: Any,
) -> None:
    """Gradients of scores, of target features, and of attention, which is accumulated in ``datt``."""
    (H, blocks), (ptr, src, _, order), (dscore, active) = shape, edges, scores
    source, target, _, att, slope = inputs
    width, C = blocks[0], num_blocks(blocks) * len(blocks[0])
    row = H * C
    for i in range(lo, hi):
        v = at(order, i)
        for h in range(H):
            put(active, v * H + h, relu_backward((v * H + h) * C, output, blocks))
            if not at(active, v * H + h):
                for b in range(num_blocks(blocks)):
                    store(dtarget, v * row + h * C + b * len(width), broadcast(att, 0, width))
                continue
            score_backward(v, h, edges, source, coefficients, output, dscore, shape)
            for b in range(num_blocks(blocks)):
                c = h * C + b * len(width)
                acc, da, target_v = broadcast(att, 0, width), load(datt, c, width), load(target, v * row + c, width)
                for k in range(at(ptr, v), at(ptr, v + 1)):
                    d = at(dscore, k * H + h)
                    t = load(source, at(src, k) * row + c, width) + target_v
                    dt = where_positive(t, broadcast(att, d, width), broadcast(att, slope * d, width))
                    acc = acc + dt
                    da = da + dt * t
                store(datt, c, da)
                store(dtarget, v * row + c, acc * load(att, c, width))


@jit
def backward_sources(
    lo: int,
    hi: int,
    edges: Any,
    inputs: Any,
    weight: Any,
    dout: Any,
    scores: Any,
    reachable: Any,
    dsource: Any,
    shape: Any,
) -> None:
    """Gradient of source features, added to ``dsource``; rows that are not reachable are skipped."""
    (H, blocks), (ptr, dst, position, order), (dscore, active) = shape, edges, scores
    source, target, _, att, slope = inputs
    width, row = blocks[0], H * num_blocks(blocks) * len(blocks[0])
    for i in range(lo, hi):
        u = at(order, i)
        for h in range(H if at(reachable, u) else 0):
            for b in range(num_blocks(blocks)):
                c = (h * num_blocks(blocks) + b) * len(width)
                source_u, acc, dt = load(source, u * row + c, width), broadcast(att, 0, width), broadcast(att, 0, width)
                for k in range(at(ptr, u), at(ptr, u + 1)):
                    if at(active, at(dst, k) * H + h):
                        e, offset = at(position, k) * H + h, at(dst, k) * row + c
                        t = source_u + load(target, offset, width)
                        dt = dt + where_positive(
                            t, broadcast(att, at(dscore, e), width), broadcast(att, slope * at(dscore, e), width)
                        )
                        acc = acc + broadcast(att, at(weight, e), width) * load(dout, offset, width)
                acc = acc + dt * load(att, c, width)
                store(dsource, u * row + c, load(dsource, u * row + c, width) + acc)


@jit
def backward_scores(
    lo: int, hi: int, edges: Any, z: Any, coefficients: Any, output: Any, scores: Any, shape: Any
) -> None:
    """Gradients of scores, zero at inactive nodes: the first half of the backward pass on a symmetric graph."""
    (H, blocks), (ptr, _, _, order), (dscore, active) = shape, edges, scores
    C = num_blocks(blocks) * len(blocks[0])
    for i in range(lo, hi):
        v = at(order, i)
        for h in range(H):
            put(active, v * H + h, relu_backward((v * H + h) * C, output, blocks))
            if at(active, v * H + h):
                score_backward(v, h, edges, z, coefficients, output, dscore, shape)
            else:
                for k in range(at(ptr, v), at(ptr, v + 1)):
                    put(dscore, k * H + h, 0)


@jit
def backward_symmetric(
    lo: int,
    hi: int,
    edges: Any,
    inputs: Any,
    weight: Any,
    dout: Any,
    dscore: Any,
    reachable: Any,
    dz: Any,
    datt: Any,
    shape: Any,
) -> None:
    """Gradients of features, as source and as target, and of attention, in one pass over each node's neighbours.

    On a symmetric graph with shared weights the scores of u → v and v → u are equal. With δ the sum of their gradients,
    dz_v = a ⊙ Σ_u δ_uv LeakyReLU'(z_u + z_v) + Σ_u α_vu dout_u. ``datt`` becomes twice the gradient of attention, as
    the sum visits every δ twice. ``edges.position`` leads from an edge to its reverse.
    """
    (H, blocks), (ptr, src, position, order) = shape, edges
    z, att, slope = inputs.source, inputs.att, inputs.slope
    width, C = blocks[0], num_blocks(blocks) * len(blocks[0])
    row = H * C
    for i in range(lo, hi):
        v = at(order, i)
        for h in range(H):
            for b in range(num_blocks(blocks)):
                c = h * C + b * len(width)
                from_sum, from_score, da, z_v = (
                    broadcast(att, 0, width),
                    broadcast(att, 0, width),
                    load(datt, c, width),
                    load(z, v * row + c, width),
                )
                for k in range(at(ptr, v), at(ptr, v + 1) if at(reachable, v) else at(ptr, v)):
                    reverse, offset = at(position, k) * H + h, at(src, k) * row + c
                    d = at(dscore, k * H + h) + at(dscore, reverse)
                    t = z_v + load(z, offset, width)
                    dt = where_positive(t, broadcast(att, d, width), broadcast(att, slope * d, width))
                    from_score = from_score + dt
                    da = da + dt * t
                    from_sum = from_sum + broadcast(att, at(weight, reverse), width) * load(dout, offset, width)
                store(datt, c, da)
                store(dz, v * row + c, from_sum + from_score * load(att, c, width))

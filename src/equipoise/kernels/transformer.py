"""Dot-product attention over neighbours (TransformerConv): forward and backward pass.

:mod:`equipoise.kernels.arguments` explains the arguments. The backward pass starts with the gradients of the
scores (:func:`equipoise.kernels.gatv2.backward_scores`, with values as features).
"""

from __future__ import annotations

from typing import Any

from equipoise.kernels.attention import dot, negative_infinity, softmax_and_sum, subtract_max
from equipoise.kernels.csr import CHUNK
from equipoise.kernels.jit import jit
from equipoise.kernels.simd import at, broadcast, load, num_blocks, put, store


@jit
def forward(lo: int, hi: int, edges: Any, inputs: Any, coefficients: Any, out: Any, relu: bool, shape: Any) -> None:
    """out[v] = Σ_u mask_uv α_uv value[u] with α_uv = softmax_u scale ⟨query[v], key[u]⟩."""
    (H, blocks), (ptr, src, _, order), alpha = shape, edges, coefficients.alpha
    C = num_blocks(blocks) * len(blocks[0])
    query, key, value, scale = inputs
    for chunk_lo in range(lo, hi, CHUNK):
        chunk_hi = min(chunk_lo + CHUNK, hi)
        for i in range(chunk_lo, chunk_hi):
            v = at(order, i)
            for h in range(H):
                offset = (v * H + h) * C
                first, max_score = load(query, offset, blocks[0]), negative_infinity(alpha)
                for k in range(at(ptr, v), at(ptr, v + 1)):
                    score = scale * dot(first, query, offset, key, (at(src, k) * H + h) * C, blocks)
                    put(alpha, k * H + h, score)
                    max_score = score if score > max_score else max_score
                subtract_max(v, h, ptr, alpha, max_score, H)
        softmax_and_sum(chunk_lo, chunk_hi, edges, value, coefficients, out, relu, shape)


@jit
def backward_targets(lo: int, hi: int, edges: Any, inputs: Any, scores: Any, dquery: Any, shape: Any) -> None:
    """dquery[v] = scale Σ_u dscore_uv key[u]."""
    (H, blocks), (ptr, src, _, order), (dscore, active) = shape, edges, scores
    width, C = blocks[0], num_blocks(blocks) * len(blocks[0])
    key, scale = inputs.key, inputs.scale
    for i in range(lo, hi):
        v = at(order, i)
        for h in range(H):
            last = at(ptr, v + 1) if at(active, v * H + h) else at(ptr, v)
            for b in range(num_blocks(blocks)):
                c = b * len(width)
                acc = broadcast(key, 0, width)
                for k in range(at(ptr, v), last):
                    acc = acc + broadcast(key, at(dscore, k * H + h), width) * load(
                        key, (at(src, k) * H + h) * C + c, width
                    )
                store(dquery, (v * H + h) * C + c, broadcast(key, scale, width) * acc)


@jit
def backward_sources(
    lo: int, hi: int, edges: Any, inputs: Any, weight: Any, dout: Any, scores: Any, dkey: Any, dvalue: Any, shape: Any
) -> None:
    """dkey[u] = scale Σ_v dscore_uv query[v], dvalue[u] = Σ_v mask_uv α_uv dout[v]."""
    (H, blocks), (ptr, dst, position, order), (dscore, active) = shape, edges, scores
    width, C = blocks[0], num_blocks(blocks) * len(blocks[0])
    query, scale = inputs.query, inputs.scale
    for i in range(lo, hi):
        u = at(order, i)
        for h in range(H):
            for b in range(num_blocks(blocks)):
                c = b * len(width)
                key_sum, value_sum = broadcast(query, 0, width), broadcast(query, 0, width)
                for k in range(at(ptr, u), at(ptr, u + 1)):
                    target, edge = at(dst, k) * H + h, at(position, k) * H + h
                    if at(active, target):
                        d, w = broadcast(query, at(dscore, edge), width), broadcast(query, at(weight, edge), width)
                        key_sum = key_sum + d * load(query, target * C + c, width)
                        value_sum = value_sum + w * load(dout, target * C + c, width)
                store(dkey, (u * H + h) * C + c, broadcast(query, scale, width) * key_sum)
                store(dvalue, (u * H + h) * C + c, value_sum)

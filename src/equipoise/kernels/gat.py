"""GAT (v1) kernels: scores LeakyReLU(p[u] + q[v]), forward and backward pass.

Arguments are explained in :mod:`equipoise.kernels.arguments`.
"""

from __future__ import annotations

from typing import Any

from equipoise.kernels.attention import negative_infinity, relu_backward, score_backward, softmax_and_sum, subtract_max
from equipoise.kernels.csr import CHUNK
from equipoise.kernels.jit import jit
from equipoise.kernels.simd import broadcast, load, num_blocks, store


@jit
def forward(lo: int, hi: int, edges: Any, inputs: Any, coefficients: Any, out: Any, relu: bool, shape: Any) -> None:
    """out[v] = Σ_u mask_uv α_uv z[u] with α_uv = softmax_u LeakyReLU(p[u] + q[v])."""
    H, (ptr, src, _, order), (z, p, q, _, slope), alpha = shape.heads, edges, inputs, coefficients.alpha
    for chunk_lo in range(lo, hi, CHUNK):
        chunk_hi = min(chunk_lo + CHUNK, hi)
        for i in range(chunk_lo, chunk_hi):
            v = order[i]
            for h in range(H):
                max_score = negative_infinity(alpha)
                for k in range(ptr[v], ptr[v + 1]):
                    t = p[src[k] * H + h] + q[v * H + h]
                    score = t if t > 0 else slope * t
                    alpha[k * H + h] = score
                    max_score = score if score > max_score else max_score
                subtract_max(v, h, ptr, alpha, max_score, H)
        softmax_and_sum(chunk_lo, chunk_hi, edges, z, coefficients, out, relu, shape)


@jit
def backward_targets(
    lo: int, hi: int, edges: Any, inputs: Any, coefficients: Any, output: Any, scores: Any, dq: Any, shape: Any
) -> None:
    """Gradients of p[u] + q[v] per edge (to ``scores.dscore``) and of q."""
    (H, blocks), (ptr, src, _, order), (dscore, active) = shape, edges, scores
    z, p, q, _, slope = inputs
    C = num_blocks(blocks) * len(blocks[0])
    for i in range(lo, hi):
        v = order[i]
        for h in range(H):
            active[v * H + h] = relu_backward((v * H + h) * C, output, blocks)
            dq[v * H + h] = 0
            if active[v * H + h]:
                score_backward(v, h, edges, z, coefficients, output, dscore, shape)
                for k in range(ptr[v], ptr[v + 1]):
                    if not p[src[k] * H + h] + q[v * H + h] > 0:
                        dscore[k * H + h] *= slope
                    dq[v * H + h] += dscore[k * H + h]


@jit
def backward_sources(
    lo: int, hi: int, edges: Any, weight: Any, dout: Any, scores: Any, dz: Any, dp: Any, shape: Any
) -> None:
    """Gradients of z and p."""
    (H, blocks), (ptr, dst, position, order), (dscore, active) = shape, edges, scores
    width, row = blocks[0], H * num_blocks(blocks) * len(blocks[0])
    for i in range(lo, hi):
        u = order[i]
        for h in range(H):
            dp[u * H + h] = 0
            for k in range(ptr[u], ptr[u + 1]):
                if active[dst[k] * H + h]:
                    dp[u * H + h] += dscore[position[k] * H + h]
            for b in range(num_blocks(blocks)):
                c = (h * num_blocks(blocks) + b) * len(width)
                acc = broadcast(dz, 0, width)
                for k in range(ptr[u], ptr[u + 1]):
                    if active[dst[k] * H + h]:
                        w = broadcast(dz, weight[position[k] * H + h], width)
                        acc = acc + w * load(dout, dst[k] * row + c, width)
                store(dz, u * row + c, acc)

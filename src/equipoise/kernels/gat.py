"""GAT (v1): scores LeakyReLU(p[u] + q[v]), forward and back."""

from __future__ import annotations

from typing import Any

from equipoise.kernels.attention import attend, before_relu, less_largest, lowest, score_gradients
from equipoise.kernels.compiled import compiled
from equipoise.kernels.csr import CHUNK
from equipoise.kernels.lanes import fill, load, number_of, store


@compiled
def forward(
    lo: int,
    hi: int,
    ptr: Any,
    src: Any,
    order: Any,
    z: Any,
    p: Any,
    q: Any,
    slope: Any,
    kept: Any,
    alpha: Any,
    weight: Any,
    out: Any,
    relu: bool,
    H: int,
    blocks: Any,
) -> None:
    """out[v] = Σ_u α_uv kept_uv z[u] with α = softmax_u LeakyReLU(p[u] + q[v])."""
    for first in range(lo, hi, CHUNK):
        last = min(first + CHUNK, hi)
        for i in range(first, last):
            v = order[i]
            for h in range(H):
                largest = lowest(alpha)
                for k in range(ptr[v], ptr[v + 1]):
                    t = p[src[k] * H + h] + q[v * H + h]
                    score = t if t > 0 else slope * t
                    alpha[k * H + h] = score
                    largest = score if score > largest else largest
                less_largest(v, h, ptr, alpha, largest, H)
        attend(first, last, ptr, src, order, z, kept, alpha, weight, out, relu, H, blocks)


@compiled
def back_to_targets(
    lo: int,
    hi: int,
    ptr: Any,
    src: Any,
    order: Any,
    z: Any,
    p: Any,
    q: Any,
    slope: Any,
    kept: Any,
    alpha: Any,
    out: Any,
    grad: Any,
    dout: Any,
    relu: bool,
    dscore: Any,
    active: Any,
    dq: Any,
    H: int,
    blocks: Any,
) -> None:
    """Gradients of the sums p[u] + q[v] (edge by edge) and of q."""
    for i in range(lo, hi):
        v = order[i]
        for h in range(H):
            active[v * H + h] = before_relu(
                (v * H + h) * number_of(blocks) * len(blocks[0]), out, grad, dout, relu, blocks
            )
            dq[v * H + h] = 0
            if active[v * H + h]:
                score_gradients(v, h, ptr, src, z, kept, alpha, out, dout, dscore, H, blocks)
                for k in range(ptr[v], ptr[v + 1]):
                    if not p[src[k] * H + h] + q[v * H + h] > 0:
                        dscore[k * H + h] *= slope
                    dq[v * H + h] += dscore[k * H + h]


@compiled
def back_to_sources(
    lo: int,
    hi: int,
    tptr: Any,
    dst: Any,
    edge: Any,
    torder: Any,
    weight: Any,
    dout: Any,
    dscore: Any,
    active: Any,
    dz: Any,
    dp: Any,
    H: int,
    blocks: Any,
) -> None:
    """Gradients of z and of p."""
    lanes, row = blocks[0], H * number_of(blocks) * len(blocks[0])
    for i in range(lo, hi):
        u = torder[i]
        for h in range(H):
            dp[u * H + h] = 0
            for k in range(tptr[u], tptr[u + 1]):
                if active[dst[k] * H + h]:
                    dp[u * H + h] += dscore[edge[k] * H + h]
            for b in range(number_of(blocks)):
                c = (h * number_of(blocks) + b) * len(lanes)
                sums = fill(dz, 0, lanes)
                for k in range(tptr[u], tptr[u + 1]):
                    if active[dst[k] * H + h]:
                        sums = sums + fill(dz, weight[edge[k] * H + h], lanes) * load(dout, dst[k] * row + c, lanes)
                store(dz, u * row + c, sums)

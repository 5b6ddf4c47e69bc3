"""GATv2: scores a · LeakyReLU(source[u] + target[v]), forward and back."""

from __future__ import annotations

from typing import Any

from equipoise.kernels.attention import AHEAD, attend, before_relu, less_largest, lowest, score_gradients
from equipoise.kernels.compiled import compiled
from equipoise.kernels.csr import CHUNK
from equipoise.kernels.lanes import fill, if_positive, load, number_of, prefetch, store, total


@compiled
def forward(
    lo: int,
    hi: int,
    ptr: Any,
    src: Any,
    order: Any,
    source: Any,
    target: Any,
    att: Any,
    slope: Any,
    kept: Any,
    alpha: Any,
    weight: Any,
    out: Any,
    relu: bool,
    H: int,
    blocks: Any,
) -> None:
    """out[v] = Σ_u α_uv kept_uv source[u] with α = softmax_u a · LeakyReLU(source[u] + target[v]).

    ``kept`` is empty, or what dropout leaves of each coefficient; ``weight`` becomes α · kept. With ``relu`` what is
    below zero is set to zero.
    """
    lanes, row = blocks[0], H * number_of(blocks) * len(blocks[0])
    steep = fill(att, slope, lanes)
    for first in range(lo, hi, CHUNK):
        last = min(first + CHUNK, hi)
        for i in range(first, last):
            v = order[i]
            for h in range(H):
                c = h * number_of(blocks) * len(lanes)
                a, here, largest = load(att, c, lanes), load(target, v * row + c, lanes), lowest(alpha)
                for k in range(ptr[v], ptr[v + 1]):
                    if k + AHEAD < len(src):
                        prefetch(source, src[k + AHEAD] * row + c, lanes)
                    t = load(source, src[k] * row + c, lanes) + here
                    sums = a * if_positive(t, t, steep * t)
                    for b in range(1, number_of(blocks)):
                        d = c + b * len(lanes)
                        t = load(source, src[k] * row + d, lanes) + load(target, v * row + d, lanes)
                        sums = sums + load(att, d, lanes) * if_positive(t, t, steep * t)
                    score = total(sums)
                    alpha[k * H + h] = score
                    largest = score if score > largest else largest
                less_largest(v, h, ptr, alpha, largest, H)
        attend(first, last, ptr, src, order, source, kept, alpha, weight, out, relu, H, blocks)


@compiled
def back_to_targets(
    lo: int,
    hi: int,
    ptr: Any,
    src: Any,
    order: Any,
    source: Any,
    target: Any,
    att: Any,
    slope: Any,
    kept: Any,
    alpha: Any,
    out: Any,
    grad: Any,
    dout: Any,
    relu: bool,
    dscore: Any,
    active: Any,
    dtarget: Any,
    datt: Any,
    H: int,
    blocks: Any,
) -> None:
    """Gradients of scores, of target features, and (added up) of attention; scores of nodes not active are left out."""
    lanes, C = blocks[0], number_of(blocks) * len(blocks[0])
    row = H * C
    for i in range(lo, hi):
        v = order[i]
        for h in range(H):
            active[v * H + h] = before_relu((v * H + h) * C, out, grad, dout, relu, blocks)
            if not active[v * H + h]:
                for b in range(number_of(blocks)):
                    store(dtarget, v * row + h * C + b * len(lanes), fill(att, 0, lanes))
                continue
            score_gradients(v, h, ptr, src, source, kept, alpha, out, dout, dscore, H, blocks)
            for b in range(number_of(blocks)):
                c = h * C + b * len(lanes)
                sums, a, here = fill(att, 0, lanes), load(datt, c, lanes), load(target, v * row + c, lanes)
                for k in range(ptr[v], ptr[v + 1]):
                    d = dscore[k * H + h]
                    t = load(source, src[k] * row + c, lanes) + here
                    dt = if_positive(t, fill(att, d, lanes), fill(att, slope * d, lanes))
                    sums = sums + dt
                    a = a + dt * t
                store(datt, c, a)
                store(dtarget, v * row + c, sums * load(att, c, lanes))


@compiled
def back_to_sources(
    lo: int,
    hi: int,
    tptr: Any,
    dst: Any,
    edge: Any,
    torder: Any,
    source: Any,
    target: Any,
    att: Any,
    slope: Any,
    weight: Any,
    dout: Any,
    dscore: Any,
    active: Any,
    reached: Any,
    dsource: Any,
    H: int,
    blocks: Any,
) -> None:
    """Gradient of source features, from all targets that listen to them, added to what is there."""
    lanes, row = blocks[0], H * number_of(blocks) * len(blocks[0])
    for i in range(lo, hi):
        u = torder[i]
        for h in range(H if reached[u] else 0):
            for b in range(number_of(blocks)):
                c = (h * number_of(blocks) + b) * len(lanes)
                here, sums, dt = load(source, u * row + c, lanes), fill(att, 0, lanes), fill(att, 0, lanes)
                for k in range(tptr[u], tptr[u + 1]):
                    if active[dst[k] * H + h]:
                        e, there = edge[k] * H + h, dst[k] * row + c
                        t = here + load(target, there, lanes)
                        dt = dt + if_positive(t, fill(att, dscore[e], lanes), fill(att, slope * dscore[e], lanes))
                        sums = sums + fill(att, weight[e], lanes) * load(dout, there, lanes)
                sums = sums + dt * load(att, c, lanes)
                store(dsource, u * row + c, load(dsource, u * row + c, lanes) + sums)


@compiled
def back_to_scores(
    lo: int,
    hi: int,
    ptr: Any,
    src: Any,
    order: Any,
    z: Any,
    kept: Any,
    alpha: Any,
    out: Any,
    grad: Any,
    dout: Any,
    relu: bool,
    dscore: Any,
    active: Any,
    H: int,
    blocks: Any,
) -> None:
    """Gradients of scores alone: the first half of the way back on a symmetric graph."""
    for i in range(lo, hi):
        v = order[i]
        for h in range(H):
            active[v * H + h] = before_relu(
                (v * H + h) * number_of(blocks) * len(blocks[0]), out, grad, dout, relu, blocks
            )
            if active[v * H + h]:
                score_gradients(v, h, ptr, src, z, kept, alpha, out, dout, dscore, H, blocks)
            else:
                for k in range(ptr[v], ptr[v + 1]):
                    dscore[k * H + h] = 0


@compiled
def back_to_both(
    lo: int,
    hi: int,
    ptr: Any,
    src: Any,
    edge: Any,
    order: Any,
    z: Any,
    att: Any,
    slope: Any,
    weight: Any,
    dout: Any,
    dscore: Any,
    reached: Any,
    dz: Any,
    datt: Any,
    H: int,
    blocks: Any,
) -> None:
    """Gradients of features, as source and as target, and of attention, in one visit of a node's neighbours.

    On a symmetric graph with one matrix for both, the score of u → v is that of v → u: with δ both gradients together,
    dz_v = a ⊙ Σ_u δ LeakyReLU'(z_u + z_v) + Σ_u α_vu dout_u. ``datt`` becomes twice its gradient: every δ is met twice.
    """
    lanes, C = blocks[0], number_of(blocks) * len(blocks[0])
    row = H * C
    for i in range(lo, hi):
        v = order[i]
        for h in range(H):
            for b in range(number_of(blocks)):
                c = h * C + b * len(lanes)
                passed, through, a, here = (
                    fill(att, 0, lanes),
                    fill(att, 0, lanes),
                    load(datt, c, lanes),
                    load(z, v * row + c, lanes),
                )
                for k in range(ptr[v], ptr[v + 1] if reached[v] else ptr[v]):
                    back, there = edge[k] * H + h, src[k] * row + c
                    d = dscore[k * H + h] + dscore[back]
                    t = here + load(z, there, lanes)
                    dt = if_positive(t, fill(att, d, lanes), fill(att, slope * d, lanes))
                    through = through + dt
                    a = a + dt * t
                    passed = passed + fill(att, weight[back], lanes) * load(dout, there, lanes)
                store(datt, c, a)
                store(dz, v * row + c, passed + through * load(att, c, lanes))

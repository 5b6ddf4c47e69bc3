"""Attention over a graph, target by target: scores, softmax and weighted sum in one visit, and the way back.

Features are (nodes, heads, channels); scores and coefficients (edges, heads), in the order by target. Each kernel works
on a range of nodes and writes to rows of that range only, so ranges can run side by side without atomics; what is
summed over all nodes is summed range by range, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import njit

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


FAST = {"reassoc", "contract", "nsz", "arcp"}  # sums may be reordered; NaN and infinity keep their meaning


def compiled(kernel: Kernel) -> Kernel:
    """Compile at the first call, once per machine."""
    return njit(cache=True, nogil=True, fastmath=FAST)(kernel)  # type: ignore[return-value]


def inlined(step: Kernel) -> Kernel:
    """A step of a kernel, written into it: a call would cost more than the step."""
    return njit(inline="always", fastmath=FAST)(step)  # type: ignore[return-value]


@inlined
def _dot(x: Any, i: int, y: Any, j: int, h: int) -> Any:
    total = x[i, h, 0] * 0
    for c in range(x.shape[2]):
        total += x[i, h, c] * y[j, h, c]
    return total


@inlined
def _add_scaled(a: Any, x: Any, i: int, y: Any, j: int, h: int) -> None:
    for c in range(x.shape[2]):
        y[j, h, c] += a * x[i, h, c]


@inlined
def _clear(y: Any, j: int, h: int) -> None:
    for c in range(y.shape[2]):
        y[j, h, c] = 0


@inlined
def _softmax(alpha: Any, begin: int, end: int, h: int) -> None:
    """Scores to coefficients; the largest is taken off first, so that no score is too large."""
    if begin == end:
        return
    largest = alpha[begin, h]
    for k in range(begin + 1, end):
        largest = max(largest, alpha[k, h])
    total = largest * 0
    for k in range(begin, end):
        alpha[k, h] = np.exp(alpha[k, h] - largest)
        total += alpha[k, h]
    for k in range(begin, end):
        alpha[k, h] /= total


@inlined
def _gather(ptr: Any, src: Any, v: int, h: int, weight: Any, z: Any, out: Any) -> None:
    _clear(out, v, h)
    for k in range(ptr[v], ptr[v + 1]):
        _add_scaled(weight[k, h], z, src[k], out, v, h)


@inlined
def _attend(ptr: Any, src: Any, v: int, h: int, kept: Any, alpha: Any, weight: Any, z: Any, out: Any) -> None:
    """Scores to coefficients, what dropout leaves of them, and the sum that they weigh."""
    _softmax(alpha, ptr[v], ptr[v + 1], h)
    for k in range(ptr[v], ptr[v + 1]):
        weight[k, h] = alpha[k, h] * kept[k, h] if len(kept) else alpha[k, h]
    _gather(ptr, src, v, h, weight, z, out)


@inlined
def _score_gradient(grad: Any, v: int, z: Any, u: int, kept: Any, alpha: Any, k: int, h: int, D: Any) -> Any:
    """Through the softmax: α (kept ⟨grad_v, z_u⟩ − D)."""
    dalpha = _dot(grad, v, z, u, h)
    return alpha[k, h] * ((dalpha * kept[k, h] if len(kept) else dalpha) - D)


@inlined
def _score(source: Any, u: int, target: Any, v: int, att: Any, h: int, slope: Any) -> Any:
    """a · LeakyReLU(source[u] + target[v])"""
    total = att[h, 0] * 0
    for c in range(source.shape[2]):
        t = source[u, h, c] + target[v, h, c]
        total += att[h, c] * max(t, slope * t)
    return total


@compiled
def gatv2_forward(
    lo: int,
    hi: int,
    ptr: Any,
    src: Any,
    source: Any,
    target: Any,
    att: Any,
    slope: Any,
    kept: Any,
    alpha: Any,
    weight: Any,
    out: Any,
) -> None:
    """out[v] = Σ_u α_uv kept_uv source[u] with α = softmax_u a · LeakyReLU(source[u] + target[v]).

    ``kept`` is empty, or what dropout leaves of each coefficient; ``weight`` becomes α · kept.
    """
    for v in range(lo, hi):
        for h in range(source.shape[1]):
            for k in range(ptr[v], ptr[v + 1]):
                alpha[k, h] = _score(source, src[k], target, v, att, h, slope)
            _attend(ptr, src, v, h, kept, alpha, weight, source, out)


@compiled
def gatv2_back_to_targets(
    lo: int,
    hi: int,
    ptr: Any,
    src: Any,
    source: Any,
    target: Any,
    att: Any,
    slope: Any,
    kept: Any,
    alpha: Any,
    out: Any,
    grad: Any,
    dscore: Any,
    dtarget: Any,
    datt: Any,
) -> None:
    """Gradients of scores, of target features, and (added up) of attention; D = ⟨grad_v, out_v⟩ serves all edges."""
    for v in range(lo, hi):
        for h in range(source.shape[1]):
            D = _dot(grad, v, out, v, h)
            _clear(dtarget, v, h)
            for k in range(ptr[v], ptr[v + 1]):
                u = src[k]
                d = _score_gradient(grad, v, source, u, kept, alpha, k, h, D)
                dscore[k, h] = d
                flat = slope * d
                for c in range(source.shape[2]):
                    t = source[u, h, c] + target[v, h, c]
                    dtarget[v, h, c] += (d if t > 0 else flat) * att[h, c]
                for c in range(source.shape[2]):
                    t = source[u, h, c] + target[v, h, c]
                    datt[h, c] += (d if t > 0 else flat) * t


@compiled
def gatv2_back_to_sources(
    lo: int,
    hi: int,
    tptr: Any,
    dst: Any,
    edge: Any,
    source: Any,
    target: Any,
    att: Any,
    slope: Any,
    weight: Any,
    grad: Any,
    dscore: Any,
    dsource: Any,
) -> None:
    """Gradient of source features, from all targets that listen to them."""
    for u in range(lo, hi):
        for h in range(source.shape[1]):
            _clear(dsource, u, h)
            for k in range(tptr[u], tptr[u + 1]):
                v, e = dst[k], edge[k]
                a, d = weight[e, h], dscore[e, h]
                flat = slope * d
                for c in range(source.shape[2]):
                    t = source[u, h, c] + target[v, h, c]
                    dsource[u, h, c] += a * grad[v, h, c] + (d if t > 0 else flat) * att[h, c]


@compiled
def gat_forward(
    lo: int,
    hi: int,
    ptr: Any,
    src: Any,
    z: Any,
    p: Any,
    q: Any,
    slope: Any,
    kept: Any,
    alpha: Any,
    weight: Any,
    out: Any,
) -> None:
    """out[v] = Σ_u α_uv kept_uv z[u] with α = softmax_u LeakyReLU(p[u] + q[v])."""
    for v in range(lo, hi):
        for h in range(z.shape[1]):
            for k in range(ptr[v], ptr[v + 1]):
                t = p[src[k], h] + q[v, h]
                alpha[k, h] = max(t, slope * t)
            _attend(ptr, src, v, h, kept, alpha, weight, z, out)


@compiled
def gat_back_to_targets(
    lo: int,
    hi: int,
    ptr: Any,
    src: Any,
    z: Any,
    p: Any,
    q: Any,
    slope: Any,
    kept: Any,
    alpha: Any,
    out: Any,
    grad: Any,
    dscore: Any,
    dq: Any,
) -> None:
    """Gradients of the sums p[u] + q[v] (edge by edge) and of q."""
    for v in range(lo, hi):
        for h in range(z.shape[1]):
            D = _dot(grad, v, out, v, h)
            dq[v, h] = 0
            for k in range(ptr[v], ptr[v + 1]):
                d = _score_gradient(grad, v, z, src[k], kept, alpha, k, h, D)
                d = d if p[src[k], h] + q[v, h] > 0 else slope * d
                dscore[k, h] = d
                dq[v, h] += d


@compiled
def gat_back_to_sources(
    lo: int, hi: int, tptr: Any, dst: Any, edge: Any, weight: Any, grad: Any, dscore: Any, dz: Any, dp: Any
) -> None:
    """Gradients of z and of p."""
    for u in range(lo, hi):
        for h in range(dz.shape[1]):
            _clear(dz, u, h)
            dp[u, h] = 0
            for k in range(tptr[u], tptr[u + 1]):
                _add_scaled(weight[edge[k], h], grad, dst[k], dz, u, h)
                dp[u, h] += dscore[edge[k], h]


@compiled
def weighted_sum(lo: int, hi: int, ptr: Any, other: Any, weight: Any, z: Any, out: Any) -> None:
    """out[v] = Σ_u weight_uv z[u] with weights that are given: GCN; with the edges by source it is its own way back."""
    for v in range(lo, hi):
        for h in range(z.shape[1]):
            _gather(ptr, other, v, h, weight, z, out)

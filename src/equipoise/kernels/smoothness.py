"""How far neighbours are apart, and how attention is spread over them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from equipoise.kernels.compiled import compiled

TINY = 1e-12  # a row shorter than this has no direction


@compiled
def neighbour_distances(
    h: NDArray[np.floating], source: NDArray[np.int64], target: NDArray[np.int64]
) -> tuple[float, float]:
    """Σ ‖h_i − h_j‖² over edges; and half of it for unit rows, as a mean over nodes of the mean over their edges."""
    nodes, channels = h.shape
    scale, neighbours = np.zeros(nodes), np.zeros(nodes)
    for i in range(nodes):
        norm = 0.0
        for k in range(channels):
            norm += np.float64(h[i, k]) * np.float64(h[i, k])
        scale[i] = 1.0 / max(np.sqrt(norm), TINY)
    for e in range(len(target)):
        neighbours[target[e]] += 1.0
    energy, distance = 0.0, 0.0
    for e in range(len(target)):
        j, i = source[e], target[e]
        apart, turned = 0.0, 0.0
        for k in range(channels):
            one, other = np.float64(h[i, k]), np.float64(h[j, k])
            difference, angle = one - other, scale[i] * one - scale[j] * other
            apart += difference * difference
            turned += angle * angle
        energy += apart
        distance += 0.5 * turned / neighbours[i]
    return energy, distance / max(int(np.count_nonzero(neighbours)), 1)


@compiled
def mean_entropy(alpha: NDArray[np.floating], ptr: NDArray[np.int64], nodes: NDArray[np.int64]) -> float:
    """−Σ_k α_k log α_k / log n of the n edges into a node, as a mean over heads and the nodes with two edges or more.

    ``alpha`` is (edges, heads), the edges into v from ``ptr[v]`` to ``ptr[v + 1]``.
    """
    total, several = 0.0, 0
    for v in nodes:
        first, last = ptr[v], ptr[v + 1]
        if last - first < 2:
            continue
        several += 1
        entropy = 0.0
        for k in range(first, last):
            for h in range(alpha.shape[1]):
                if alpha[k, h] > 0.0:
                    entropy -= alpha[k, h] * np.log(np.float64(alpha[k, h]))
        total += entropy / (np.log(np.float64(last - first)) * alpha.shape[1])
    return total / several if several else np.nan

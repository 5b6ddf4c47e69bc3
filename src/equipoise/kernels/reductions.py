"""Reductions over parameters, gradients and activations that the recorder takes during training, each in one pass.

Parameters and gradients are flat arrays of one dtype. Sums are float64 whatever that dtype is; functions named
``add_…`` add their results to ``sums``.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.kernels.jit import jit

FloatArray = NDArray[np.floating]
Float64Array = NDArray[np.float64]
MIN_NORM = 1e-12  # shorter rows have no direction
HALF_PRECISION = (torch.float16, torch.bfloat16)  # dtypes that NumPy or Numba lack


@jit
def add_norms(w: FloatArray, g: FloatArray, sums: Float64Array) -> None:
    """Add ‖w‖² and ‖g‖²."""
    ww, gg = 0.0, 0.0
    for k in range(w.size):
        weight, gradient = np.float64(w[k]), np.float64(g[k])
        ww += weight * weight
        gg += gradient * gradient
    sums[0] += ww
    sums[1] += gg


@jit
def add_step(w: FloatArray, previous: FloatArray, sums: Float64Array) -> None:
    """Add ‖previous‖² and ‖w − previous‖²."""
    norm, step = 0.0, 0.0
    for k in range(w.size):
        old = np.float64(previous[k])
        difference = np.float64(w[k]) - old
        norm += old * old
        step += difference * difference
    sums[0] += norm
    sums[1] += step


@jit
def add_changes(
    w: FloatArray, initial: FloatArray, significant: float, small: float, large: float, sums: Float64Array
) -> None:
    """Add statistics of the relative change r = |(w − w₀)/w| over weights with |w| ≥ significant.

    These are the number of such weights, Σ r, and the numbers with r > small, r > large and r = 0.
    """
    count, total, above_small, above_large, unchanged = 0, 0.0, 0, 0, 0
    for k in range(w.size):
        weight = np.float64(w[k])
        magnitude, difference = abs(weight), abs(weight - np.float64(initial[k]))
        counts = magnitude >= significant
        change = difference / magnitude if counts else 0.0
        total += change
        count += int(counts)
        above_small += int(change > small)
        above_large += int(change > large)
        unchanged += int(counts and difference == 0.0)
    sums[0] += count
    sums[1] += total
    sums[2] += above_small
    sums[3] += above_large
    sums[4] += unchanged


@jit
def add_distances(w: FloatArray, initial: FloatArray, sums: Float64Array) -> None:
    """Add the number of weights, Σ |w − w₀|, and the number of weights with w = w₀."""
    total, unchanged = 0.0, 0
    for k in range(w.size):
        difference = abs(np.float64(w[k]) - np.float64(initial[k]))
        total += difference
        unchanged += int(difference == 0.0)
    sums[0] += w.size
    sums[1] += total
    sums[2] += unchanged


@jit
def add_products(
    w: FloatArray, g: FloatArray, length: int, start: int, inner: int, sign: float, sums: Float64Array
) -> None:
    """Add ±‖w‖², ±⟨w, g⟩, ±‖g‖² and |⟨w, g⟩| of every neuron.

    ``length``, ``start`` and ``inner`` select the entries of a neuron as :class:`equipoise.laws.slot.Slot` does.
    """
    neurons, outer = sums.shape[1], w.size // (length * inner)
    products = np.zeros((3, neurons))
    for o in range(outer):
        first = (o * length + start) * inner
        if inner == 1:  # neurons are contiguous: vectorise over them
            for i in range(neurons):
                weight, gradient = np.float64(w[first + i]), np.float64(g[first + i])
                products[0, i] += weight * weight
                products[1, i] += weight * gradient
                products[2, i] += gradient * gradient
        else:
            for i in range(neurons):
                ww, wg, gg = 0.0, 0.0, 0.0
                for k in range(first + i * inner, first + (i + 1) * inner):
                    weight, gradient = np.float64(w[k]), np.float64(g[k])
                    ww += weight * weight
                    wg += weight * gradient
                    gg += gradient * gradient
                products[0, i] += ww
                products[1, i] += wg
                products[2, i] += gg
    for i in range(neurons):
        sums[0, i] += sign * products[0, i]
        sums[1, i] += sign * products[1, i]
        sums[2, i] += sign * products[2, i]
        sums[3, i] += abs(products[1, i])


@jit
def neighbour_distances(h: FloatArray, source: NDArray[np.int64], target: NDArray[np.int64]) -> tuple[float, float]:
    """Distances between the representations h of neighbours, as measures of oversmoothing.

    Args:
        h: (nodes, channels).
        source: source node of each edge.
        target: target node of each edge.

    Returns:
        The Dirichlet energy Σ ‖h_i − h_j‖² over edges; and the mean cosine distance ½ ‖h_i/‖h_i‖ − h_j/‖h_j‖‖²,
        averaged over the edges of each node and then over nodes with edges.
    """
    nodes, channels = h.shape
    scale, degree = np.zeros(nodes), np.zeros(nodes)
    for i in range(nodes):
        norm = 0.0
        for k in range(channels):
            norm += np.float64(h[i, k]) * np.float64(h[i, k])
        scale[i] = 1.0 / max(np.sqrt(norm), MIN_NORM)
    for e in range(len(target)):
        degree[target[e]] += 1.0
    energy, cosine_distance = 0.0, 0.0
    for e in range(len(target)):
        j, i = source[e], target[e]
        squared, squared_unit = 0.0, 0.0
        for k in range(channels):
            h_i, h_j = np.float64(h[i, k]), np.float64(h[j, k])
            difference, unit_difference = h_i - h_j, scale[i] * h_i - scale[j] * h_j
            squared += difference * difference
            squared_unit += unit_difference * unit_difference
        energy += squared
        cosine_distance += 0.5 * squared_unit / degree[i]
    return energy, cosine_distance / max(int(np.count_nonzero(degree)), 1)


@jit
def mean_entropy(alpha: FloatArray, ptr: NDArray[np.int64], nodes: NDArray[np.int64]) -> float:
    """Normalised attention entropy −Σ_k α_k log α_k / log n over the n edges into a node.

    Args:
        alpha: coefficients (edges, heads); edges into v are ``ptr[v] … ptr[v + 1] - 1``.
        ptr: row pointers.
        nodes: nodes to average over; those with fewer than two edges are left out.

    Returns:
        The mean over nodes and heads; NaN if no node has two edges.
    """
    total, count = 0.0, 0
    for v in nodes:
        first, last = ptr[v], ptr[v + 1]
        if last - first < 2:
            continue
        count += 1
        entropy = 0.0
        for k in range(first, last):
            for h in range(alpha.shape[1]):
                if alpha[k, h] > 0.0:
                    entropy -= alpha[k, h] * np.log(np.float64(alpha[k, h]))
        total += entropy / (np.log(np.float64(last - first)) * alpha.shape[1])
    return total / count if count else np.nan


def as_flat_array(values: Tensor) -> FloatArray:
    """A tensor as a flat array in memory order; see :func:`as_array`."""
    return as_array(values).reshape(-1)


def as_array(values: Tensor) -> FloatArray:
    """A tensor as a dense array on the CPU; half precision becomes float32."""
    if values.layout != torch.strided:
        values = values.detach().to_dense()
    if values.dtype in HALF_PRECISION:
        values = values.detach().float()
    array: FloatArray = values.numpy(force=True)
    return array

"""Sums over weights, gradients and earlier weights, each in one pass: what is watched during training.

All arrays are flat and of one type; sums are float64 whatever that type is, and what is found is added to ``sums``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from equipoise.kernels.compiled import compiled

Array = NDArray[np.floating]
Wide = NDArray[np.float64]


@compiled
def add_norms(w: Array, g: Array, sums: Wide) -> None:
    """‖w‖² and ‖g‖²."""
    for_w, for_g = 0.0, 0.0
    for k in range(w.size):
        weight, gradient = np.float64(w[k]), np.float64(g[k])
        for_w += weight * weight
        for_g += gradient * gradient
    sums[0] += for_w
    sums[1] += for_g


@compiled
def add_step(w: Array, before: Array, sums: Wide) -> None:
    """‖before‖² and ‖w − before‖²."""
    size, step = 0.0, 0.0
    for k in range(w.size):
        old = np.float64(before[k])
        moved = np.float64(w[k]) - old
        size += old * old
        step += moved * moved
    sums[0] += size
    sums[1] += step


@compiled
def add_changes(w: Array, start: Array, significant: float, moved: float, far: float, sums: Wide) -> None:
    """Of the weights with |w| ≥ significant: how many, Σ |(w−w₀)/w|, and how many are > moved, > far, and equal 0."""
    count, total, some, many, none = 0, 0.0, 0, 0, 0
    for k in range(w.size):
        weight = np.float64(w[k])
        size, difference = abs(weight), abs(weight - np.float64(start[k]))
        counts = size >= significant
        change = difference / size if counts else 0.0
        total += change
        count += int(counts)
        some += int(change > moved)
        many += int(change > far)
        none += int(counts and difference == 0.0)
    sums[0] += count
    sums[1] += total
    sums[2] += some
    sums[3] += many
    sums[4] += none


@compiled
def add_distances(w: Array, start: Array, sums: Wide) -> None:
    """How many weights there are, Σ |w−w₀|, and how many of these equal 0."""
    total, none = 0.0, 0
    for k in range(w.size):
        difference = abs(np.float64(w[k]) - np.float64(start[k]))
        total += difference
        none += int(difference == 0.0)
    sums[0] += w.size
    sums[1] += total
    sums[2] += none


@compiled
def add_products(w: Array, g: Array, length: int, start: int, inner: int, sign: float, sums: Wide) -> None:
    """Of every neuron, ±‖w‖², ±⟨w,g⟩, ±‖g‖² and |⟨w,g⟩|; which entries are a neuron's, see ``laws.slot``."""
    neurons, outer = sums.shape[1], w.size // (length * inner)
    found = np.zeros((3, neurons))
    for o in range(outer):
        first = (o * length + start) * inner
        if inner == 1:  # neurons side by side: all of them at once
            for i in range(neurons):
                weight, gradient = np.float64(w[first + i]), np.float64(g[first + i])
                found[0, i] += weight * weight
                found[1, i] += weight * gradient
                found[2, i] += gradient * gradient
        else:
            for i in range(neurons):
                ww, wg, gg = 0.0, 0.0, 0.0
                for k in range(first + i * inner, first + (i + 1) * inner):
                    weight, gradient = np.float64(w[k]), np.float64(g[k])
                    ww += weight * weight
                    wg += weight * gradient
                    gg += gradient * gradient
                found[0, i] += ww
                found[1, i] += wg
                found[2, i] += gg
    for i in range(neurons):
        sums[0, i] += sign * found[0, i]
        sums[1, i] += sign * found[1, i]
        sums[2, i] += sign * found[2, i]
        sums[3, i] += abs(found[1, i])

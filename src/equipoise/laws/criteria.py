"""The solvers behind :func:`~equipoise.rebalance_`: which rescaling s = log λ satisfies a criterion."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from equipoise.errors import BalanceError
from equipoise.laws.cells import Array
from equipoise.laws.law import Law
from equipoise.laws.rescaling import Operator, Rescaling

MAX_NEWTON_STEPS = 100
FAR, MAX_COORDINATE_STEPS = 0.3, 3  # above this relative imbalance, cheap steps of coordinate descent come first
COORDINATE_DAMPING = 0.7
SWEEPS = 4  # of the relative gradients, per call; later calls continue
DAMPING = 0.5  # neighbouring layers share weights: with full steps, simultaneous sweeps oscillate
MAX_LOG_FACTOR = float(np.log(2.0))  # of the relative gradients, per call


def minimize(rescaling: Rescaling, cells: list[Array], sign: int, tolerance: float) -> Array:
    """Minimise ½ Σ_k w_k exp(2 sign n_k·s) by a damped Newton method.

    Far from the minimum, Newton steps are short. A few steps of coordinate descent on all neurons at once, which cost a
    fraction of a Newton step, come first.

    Args:
        rescaling: The laws.
        cells: w.
        sign: 1 for weights, −1 for gradients.
        tolerance: Largest relative imbalance of the result.

    Returns:
        The minimum s.

    Raises:
        BalanceError: A neuron cannot be balanced, or no convergence within ``MAX_NEWTON_STEPS`` steps.
    """
    incoming, outgoing = rescaling.sides(rescaling.totals(cells))
    one_sided = (incoming == 0) != (outgoing == 0)
    if sign > 0 and one_sided.any():
        _raise_one_sided(rescaling, incoming, one_sided)
    s = np.zeros(rescaling.neurons)
    for number in range(MAX_NEWTON_STEPS):
        scaled = rescaling.rescale(cells, s, 2.0 * sign)
        totals = rescaling.totals(scaled)
        incoming, outgoing = rescaling.sides(totals)
        c, both = incoming - outgoing, incoming + outgoing
        c[one_sided] = 0.0  # no λ balances these neurons: they keep theirs
        relative = np.abs(c) / np.where(both > 0, both, 1.0)
        if relative.max() <= tolerance:
            return s
        if number < MAX_COORDINATE_STEPS and relative.max() > FAR:
            s = s - sign * _coordinate_step(rescaling, incoming, outgoing)
            continue
        diagonal, multiply = rescaling.hessian(scaled, totals)

        def hessian(v: Array, multiply: Operator = multiply) -> Array:
            product = 2.0 * multiply(v)
            product[one_sided] = 0.0
            return product

        diagonal = np.where(diagonal > 0, 2.0 * diagonal, 1.0)  # a neuron with norm zero on both sides does not change
        largest = float(relative.max())
        rtol = max(min(0.1, largest), 0.01 * tolerance / largest)  # no more accurate than the result has to be
        step = -sign * _conjugate_gradients(hessian, c, diagonal, rtol)
        s = s + step / max(
            1.0, rescaling.largest_change(step)
        )  # damping: no entry changes by more than a factor e per step
    raise BalanceError(
        f"balancing did not converge in {MAX_NEWTON_STEPS} steps; the largest relative imbalance is "
        f"{relative.max():.1e}",
        where=str(_law_of(rescaling, int(relative.argmax()))[0]),
        remedy="look for neurons that are connected through zeros only; equipoise.explain shows the balance per law",
    )


def _coordinate_step(rescaling: Rescaling, incoming: Array, outgoing: Array) -> Array:
    """log λ_i of a damped step with λ_i⁴ = Σ_in / Σ_out, for every neuron; 0 where a side is zero."""
    usable = (incoming > 0) & (outgoing > 0)
    step = np.zeros_like(incoming)
    step[usable] = COORDINATE_DAMPING / 4.0 * np.log(incoming[usable] / outgoing[usable])
    return step / rescaling.largest_exponent


def _conjugate_gradients(matvec: Operator, rhs: Array, diagonal: Array, rtol: float) -> Array:
    """Solve ``matvec(x) = rhs`` by conjugate gradients with a diagonal preconditioner, to relative tolerance."""
    x, residual = np.zeros_like(rhs), rhs.copy()
    preconditioned = residual / diagonal
    direction, squared_residual = preconditioned.copy(), float(residual @ preconditioned)
    tolerance = rtol**2 * squared_residual
    for _ in range(len(rhs)):
        if squared_residual <= tolerance:
            break
        image = matvec(direction)
        step_size = squared_residual / float(direction @ image)
        x += step_size * direction
        residual -= step_size * image
        preconditioned = residual / diagonal
        squared_residual, previous = float(residual @ preconditioned), squared_residual
        direction = preconditioned + (squared_residual / previous) * direction
    return x


def sweep(rescaling: Rescaling, weights: Sequence[Array], gradients: Sequence[Array]) -> Array:
    """Approach equal relative gradients on both sides of every neuron by damped, bounded sweeps over all neurons.

    Under λ the ratio of both sides, r_in / r_out, scales by λ⁻⁸ if all exponents are ±1, so λ⁸ = r_in / r_out balances
    a neuron whose neighbours do not change.

    Args:
        rescaling: The laws.
        weights: θ² of every cell.
        gradients: (∇θ)² of every cell.

    Returns:
        s, with entries in [−log 2, log 2].
    """
    s = np.zeros(rescaling.neurons)
    for _ in range(SWEEPS):
        ratio = relative_gradients(rescaling, weights, gradients, s)
        usable = (ratio[0] > 0) & (ratio[1] > 0)
        step = np.zeros_like(s)
        step[usable] = DAMPING / 8.0 * np.log(ratio[0][usable] / ratio[1][usable])
        s = np.clip(s + step, -MAX_LOG_FACTOR, MAX_LOG_FACTOR)
    return s


def relative_gradients(
    rescaling: Rescaling, weights: Sequence[Array], gradients: Sequence[Array], s: Array
) -> tuple[Array, Array]:
    """Σ‖∇θ‖² / Σ‖θ‖² of both sides of every neuron after rescaling by exp(s); 0 where θ is zero."""
    norms = rescaling.sides(rescaling.totals(rescaling.rescale(weights, s, 2.0)))
    squares = rescaling.sides(rescaling.totals(rescaling.rescale(gradients, s, -2.0)))
    incoming, outgoing = (
        np.divide(g, n, out=np.zeros_like(g), where=n > 0) for g, n in zip(squares, norms, strict=True)
    )
    return incoming, outgoing


def _raise_one_sided(rescaling: Rescaling, incoming: Array, one_sided: NDArray[np.bool_]) -> None:
    law, first = _law_of(rescaling, int(one_sided.argmax()))
    affected = one_sided[first : first + law.neurons]
    neuron = int(affected.argmax())
    side = "incoming" if incoming[first + neuron] == 0 else "outgoing"
    raise BalanceError(
        f"{int(affected.sum())} neuron(s) cannot be balanced: zero norm on one side only "
        f"(neuron {neuron}: all {side} weights are 0)",
        where=str(law),
        remedy="no rescaling makes a zero weight nonzero: initialise these weights, or omit the law",
    )


def _law_of(rescaling: Rescaling, neuron: int) -> tuple[Law, int]:
    """The law to which an entry of s belongs, and its first entry."""
    first = 0
    for law in rescaling.laws:
        if neuron < first + law.neurons:
            return law, first
        first += law.neurons
    raise IndexError(neuron)

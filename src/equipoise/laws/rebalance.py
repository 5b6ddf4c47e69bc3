"""Function-preserving rebalancing: choose among the networks that compute the same function.

Rescaling the neurons of all laws by λ = exp(s) multiplies parameter entry k by exp(n_k·s), where n_k are the exponents
of its laws, and its gradient by exp(−n_k·s). Two criteria are the minimum of a convex function of s:

    "weights"     Σ_k θ_k² exp(+2 n_k·s)    the network of least norm; Σ_in ‖θ‖² = Σ_out ‖θ‖² for every neuron
    "gradients"   Σ_k g_k² exp(−2 n_k·s)    the least gradient; Σ_in ‖∇θ‖² = Σ_out ‖∇θ‖² for every neuron

Up to three steps of coordinate descent and a few of a damped Newton method find either at any depth. Coordinate descent
alone (for weights λ_i⁴ = Σ_out‖θ‖² / Σ_in‖θ‖², neuron by neuron) converges as well, but its number of sweeps grows with
the square of the depth. The third criterion is not convex:

    "relative-gradients"   Σ_in ‖∇θ‖² / Σ_in ‖θ‖² = Σ_out ‖∇θ‖² / Σ_out ‖θ‖² for every neuron

Damped sweeps approach it, and no λ of one call leaves [½, 2] (Mustafa and Burkholz, "Dynamic Rescaling for Training
GNNs", 2024).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from equipoise.errors import BalanceError, ChoiceError, LawError
from equipoise.laws.cells import Array
from equipoise.laws.confirmation import OutputGuard
from equipoise.laws.criteria import minimize, relative_gradients, sweep
from equipoise.laws.law import Law, check_laws
from equipoise.laws.optimizer_state import collect_state
from equipoise.laws.rescaling import Rescaling
from equipoise.laws.validation import is_number

Criterion = Literal["weights", "gradients", "relative-gradients"]
CRITERIA: tuple[str, ...] = get_args(Criterion)

# Maximum relative imbalance, by dtype of the parameters:
TOLERANCE = {torch.float64: 1e-12, torch.complex128: 1e-12, torch.float32: 1e-6, torch.complex64: 1e-6}
LOW_PRECISION_TOLERANCE = 1e-2  # for all other dtypes


def rebalance_(
    laws: Sequence[Law],
    optimizer: Optimizer | None = None,
    criterion: Criterion = "weights",
    inputs: Any = None,
    *,
    targets: Mapping[str, float] | None = None,
) -> float:
    """Balance every law in place without changing the function that the network computes.

    ``"weights"`` minimises Σ‖θ‖² over all rescalings along the laws; at the minimum c = Σ_in ‖θ‖² − Σ_out ‖θ‖² is zero
    for every neuron. ``"gradients"`` minimises Σ‖∇θ‖²; a step of plain gradient descent from there does not change c.
    ``"relative-gradients"`` equalises ‖∇θ‖²/‖θ‖², by at most a factor 2 per call. The last two require gradients.

    Existing gradients and the state of ``optimizer`` are rescaled accordingly, so that training can continue. On error
    nothing is modified. Laws without outgoing slots have nothing to be balanced against and are skipped. So are neurons
    whose gradient is zero on one side, if the criterion is one of gradients.

    Args:
        laws: Laws as returned by :func:`~equipoise.discover`.
        optimizer: Optimizer of the model whose state to rescale: SGD, Adam, AdamW, NAdam, RAdam, Adamax, RMSprop,
            Adagrad, or a subclass of these.
        criterion: What to balance.
        inputs: Inputs of the model to confirm the result with: a tuple of arguments, a dictionary of keyword arguments,
            a single argument, or a PyG data object. If the outputs change by more than rounding, everything is undone.
        targets: Relative size by name of a module or parameter, 1 for all others. The squared norms of a layer with
            target t are divided by t before they are compared: 0.01 with ``"gradients"`` makes the gradients of the
            layer about ten times smaller than those of its neighbours, so that it learns later.

    Returns:
        The largest remaining imbalance of a neuron, relative to the sum of both sides.

    Raises:
        BalanceError: A neuron has norm zero on one side only, a value is not finite, the minimisation does not
            converge, or the outputs changed.
        ChoiceError: The criterion, or a name in ``targets``, is unknown.
        GradientError: The criterion needs gradients, and a parameter has none.
        LawError: A law does not match its model, or the optimizer does not train all of its parameters.
        OptimizerError: The optimizer's state has no known rescaling.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import equipoise as eq
        >>> mlp = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> x = torch.randn(5, 3)
        >>> output = mlp(x)
        >>> eq.rebalance_(eq.discover(mlp, x), inputs=x) < 1e-6
        True
        >>> torch.allclose(mlp(x), output, atol=1e-6)
        True
    """
    rescaling = Rescaling([law for law in check_laws(laws) if law.outgoing])
    return apply_rebalancing(rescaling, optimizer, criterion, inputs, targets)


@torch.no_grad()
def apply_rebalancing(
    rescaling: Rescaling,
    optimizer: Optimizer | None,
    criterion: str,
    inputs: Any = None,
    targets: Mapping[str, float] | None = None,
) -> float:
    """:func:`rebalance_` for laws whose :class:`Rescaling` is kept between calls."""
    if criterion not in CRITERIA:
        raise ChoiceError("criterion", criterion, CRITERIA)
    if not rescaling.laws:
        return 0.0
    for law in rescaling.laws:
        law.check_current()
    parameters = rescaling.parameters()
    state = [] if optimizer is None else collect_state(optimizer, parameters, rescaling.laws)
    scales = target_scales(rescaling, targets)
    weights, gradients = _measure(rescaling, parameters, criterion, scales)
    if criterion == "relative-gradients":
        s = sweep(rescaling, weights, gradients)
    elif criterion == "gradients":
        s = minimize(rescaling, gradients, -1, _tolerance(parameters))
    else:
        s = minimize(rescaling, weights, +1, _tolerance(parameters))
    guard = None if inputs is None else OutputGuard(rescaling.laws, inputs)
    scaled = _tensors_to_scale(parameters, state)
    backup = [tensor.clone() for tensors in scaled for tensor, _ in tensors] if guard is not None else []
    rescaling.rescale_(scaled, s)
    if guard is not None and (change := guard.relative_change()) > guard.tolerance:
        for tensor, copy in zip((tensor for tensors in scaled for tensor, _ in tensors), backup, strict=True):
            tensor.copy_(copy)
        raise BalanceError(
            f"rebalancing changed the outputs by {change:.1e} of their size, more than rounding; this was undone",
            where=type(rescaling.slots[0].model).__name__,
            remedy="the laws do not hold for this model: run discover again on the model as it is now",
        )
    return _largest_imbalance(rescaling, criterion, *_measure(rescaling, parameters, criterion, scales))


def _tensors_to_scale(
    parameters: Sequence[nn.Parameter], state: Sequence[Sequence[tuple[Tensor, int]]]
) -> list[list[tuple[Tensor, int]]]:
    """For every parameter: itself, its gradient and its optimizer state, with their exponents of λ."""
    tensors: list[list[tuple[Tensor, int]]] = [[(parameter, 1)] for parameter in parameters]
    for number, parameter in enumerate(parameters):
        if parameter.grad is not None:
            tensors[number].append((parameter.grad, -1))
        if state:
            tensors[number] += state[number]
    return tensors


def _measure(
    rescaling: Rescaling, parameters: Sequence[nn.Parameter], criterion: str, scales: Sequence[float]
) -> tuple[list[Array], list[Array]]:
    """Squares of weights and of gradients, as far as the criterion needs them, divided by the targets.

    Args:
        rescaling: The laws.
        parameters: Their parameters.
        criterion: The criterion.
        scales: The target of every parameter.

    Returns:
        Squares of the weights and of the gradients, by cell; an empty list for those that are not needed.
    """
    weights, gradients = [], []
    if criterion != "gradients":
        weights = rescaling.squares(parameters, scales if criterion == "weights" else None)
        _check_finite(rescaling, weights, parameters, "")
    if criterion != "weights":
        tensors = [
            slot.gradient if parameter.grad is None or parameter.grad.layout != torch.strided else parameter.grad
            for slot, parameter in zip(rescaling.slots, parameters, strict=True)
        ]
        gradients = rescaling.squares(tensors, scales)
        _check_finite(rescaling, gradients, tensors, "the gradient of ")
    return weights, gradients


def _largest_imbalance(
    rescaling: Rescaling, criterion: str, weights: Sequence[Array], gradients: Sequence[Array]
) -> float:
    """Largest relative imbalance of the neurons that the criterion can balance."""
    if criterion == "relative-gradients":
        sides = relative_gradients(rescaling, weights, gradients, np.zeros(rescaling.neurons))
    else:
        sides = rescaling.sides(rescaling.totals(weights if criterion == "weights" else gradients))
    usable = (sides[0] > 0) & (sides[1] > 0)
    imbalance = np.abs(sides[0] - sides[1])[usable] / (sides[0] + sides[1])[usable]
    return float(imbalance.max(initial=0.0))


def _tolerance(parameters: Sequence[nn.Parameter]) -> float:
    return 0.1 * min(TOLERANCE.get(parameter.dtype, LOW_PRECISION_TOLERANCE) for parameter in parameters)


def target_scales(rescaling: Rescaling, targets: Mapping[str, float] | None) -> list[float]:
    """The target of every parameter: that of the longest matching name, 1 without one."""
    if targets is None:
        return [1.0] * len(rescaling.slots)
    if not isinstance(targets, Mapping):
        raise LawError(
            f"targets are relative sizes by name, got a {type(targets).__name__}", remedy='pass {"convs.3": 0.01}'
        )
    names = [slot.name for slot in rescaling.slots]
    for target, size in targets.items():
        if not any(name == target or name.startswith(f"{target}.") for name in names):
            raise ChoiceError("target", target, names)
        if not is_number(size) or not 0 < size < float("inf"):
            raise LawError(f"a target must be a positive number, got {size!r}", where=target)
    scales = []
    for name in names:
        matching = [target for target in targets if name == target or name.startswith(f"{target}.")]
        scales.append(float(targets[max(matching, key=len)]) if matching else 1.0)
    return scales


def _check_finite(rescaling: Rescaling, cells: Sequence[Array], tensors: Sequence[Tensor], what: str) -> None:
    """Check that the squares of all tensors are finite, through the cells that they are summed to."""
    if all(np.isfinite(weights).all() for weights in cells):
        return
    slots = rescaling.slots
    sums = [tensor.detach().to_dense().abs().double().square().sum() for tensor in tensors]
    slot = next((slot for slot, total in zip(slots, sums, strict=True) if not total.isfinite()), slots[0])
    raise BalanceError(
        f"{what}{slot.name} is not finite",
        where=str(next(law for law in rescaling.laws if slot in law.slots)),
        remedy="reinitialise the model, or load a checkpoint from before the loss diverged",
    )

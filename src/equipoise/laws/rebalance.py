"""The network of least norm that computes the same function.

Rescaling the neurons of all laws by λ = exp(u) makes Σ‖θ‖² a convex function of u, whose gradient is the imbalance:

    F(u) = ½ Σ_e θ_e² exp(2 A_e(u)),     ∂F/∂u_i = c_i(u),     A_e(u) = Σ_{i raises e} u_i − Σ_{i lowers e} u_i

Its minimum is the one balanced network of that function. One neuron alone is balanced by λ_i⁴ = Σ_out‖θ‖² / Σ_in‖θ‖²;
repeating that neuron by neuron converges too, but takes a number of sweeps that grows with the square of the depth.
Newton's method on F, with conjugate gradients, takes a handful of steps at any depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from equipoise.errors import BalanceError, LawError, OptimizerError
from equipoise.laws.law import Law, check_laws
from equipoise.laws.slot import Slot

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}  # largest |c| over the norms of both sides
COARSE = 1e-2  # for types of lower precision
MOST_STEPS = 100
# Gradients scale by 1/λ where parameters scale by λ: the power of λ with which each piece of state follows.
STATE_POWERS: dict[type[Optimizer], dict[str, int]] = {
    SGD: {"momentum_buffer": -1},
    Adam: {"exp_avg": -1, "exp_avg_sq": -2, "max_exp_avg_sq": -2},
    AdamW: {"exp_avg": -1, "exp_avg_sq": -2, "max_exp_avg_sq": -2},
}


@torch.no_grad()
def rebalance_(laws: Sequence[Law], optimizer: Optimizer | None = None) -> float:
    """Balance every law in place without changing what the network computes.

    Gradients that are there are rescaled along, and so is the state of ``optimizer`` (SGD with momentum, Adam, AdamW),
    so that training goes on where it was. Either everything is changed or, with an error, nothing. Laws without an
    outgoing side have nothing to be balanced against and are passed over.

    Returns:
        The largest imbalance that is left, relative to the norms of both sides.

    Raises:
        BalanceError: a neuron has a zero norm on one side only, or a parameter is not finite.
        LawError: a law does not belong to the model, or not to what the optimizer trains.
        OptimizerError: the optimizer keeps state that nobody here knows how to rescale.

    Example:
        >>> from equipoise.laws.discover import discover
        >>> mlp = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> x = torch.randn(5, 3)
        >>> before = mlp(x)
        >>> rebalance_(discover(mlp, x)) < 1e-6, torch.allclose(mlp(x), before, atol=1e-6)
        (True, True)
    """
    laws = [law for law in check_laws(laws) if law.outgoing]
    if not laws:
        return 0.0
    _check_norms(laws)
    parameters = {id(slot.parameter): slot.parameter for law in laws for slot in law.slots}
    powers = _check_state(optimizer, parameters, laws)
    orbit = _Orbit.of(laws)
    exponents = orbit.exponents(_minimum(orbit, laws))
    for key, parameter in parameters.items():
        factors = exponents[key].exp().reshape(parameter.shape).to(parameter.device)
        _follow(parameter, factors, +1)
        if parameter.grad is not None:
            _follow(parameter.grad, factors, -1)
        for name, power in powers.items():
            state = optimizer.state[parameter].get(name) if optimizer is not None else None
            if state is not None:
                _follow(state, factors, power)
    return max(float(law.relative_imbalance().abs().max()) for law in laws)


@dataclass(frozen=True)
class _Orbit:
    """All rescalings of a set of laws: the squares of the parameters, and how u acts on them."""

    squares: dict[int, Tensor]
    terms: list[tuple[int, slice, int, Slot]]  # parameter, its law's part of u, sign, slot
    neurons: int

    @classmethod
    def of(cls, laws: Sequence[Law]) -> _Orbit:
        squares, terms, start = {}, [], 0
        for law in laws:
            part = slice(start, start := start + law.neurons)
            for sign, slot in law.terms:
                parameter = slot.parameter
                squares[id(parameter)] = parameter.detach().double().cpu().square().contiguous().flatten()
                terms.append((id(parameter), part, sign, slot))
        return cls(squares, terms, start)

    def exponents(self, u: Tensor) -> dict[int, Tensor]:
        """A(u), parameter by parameter."""
        exponents = {key: torch.zeros_like(square) for key, square in self.squares.items()}
        for key, part, sign, slot in self.terms:
            slot.entries(exponents[key]).add_(u[part, None], alpha=sign)
        return exponents

    def sums(self, values: dict[int, Tensor], signed: bool = True) -> Tensor:
        """Values summed neuron by neuron, incoming minus (unsigned: plus) outgoing: the adjoint of ``exponents``."""
        sums = torch.zeros(self.neurons, dtype=torch.float64)
        for key, part, sign, slot in self.terms:
            sums[part] += (sign if signed else 1) * slot.total(values[key])
        return sums

    def weights(self, u: Tensor) -> dict[int, Tensor]:
        """θ² after the rescaling by exp(u)."""
        return {key: self.squares[key] * (2.0 * a).exp() for key, a in self.exponents(u).items()}


def _minimum(orbit: _Orbit, laws: Sequence[Law]) -> Tensor:
    """u at which every c is zero, by Newton's method."""
    tolerance = 0.1 * min(TOLERANCE.get(slot.parameter.dtype, COARSE) for law in laws for slot in law.slots)
    u = torch.zeros(orbit.neurons, dtype=torch.float64)
    for _ in range(MOST_STEPS):
        weights = orbit.weights(u)
        c, both = orbit.sums(weights), orbit.sums(weights, signed=False)
        both = torch.where(both > 0, both, 1.0)  # a neuron of zero norm on both sides stays as it is
        worst = float((c / both).abs().max())
        if worst <= tolerance:
            return u

        def curvature(v: Tensor, weights: dict[int, Tensor] = weights) -> Tensor:
            return 2.0 * orbit.sums({key: weights[key] * a for key, a in orbit.exponents(v).items()})

        step = _conjugate_gradients(curvature, -c, 2.0 * both, accuracy=min(0.1, worst))
        largest = max(float(a.abs().max()) for a in orbit.exponents(step).values())
        u = u + step / max(1.0, largest)  # no entry changes by more than a factor e at once
    raise BalanceError(
        f"no balanced network was found in {MOST_STEPS} steps; the largest relative imbalance is still {worst:.1e}",
        where=str(laws[_law_of(int((c / both).abs().argmax()), laws)]),
        remedy="look for neurons that are connected through zeros only; equipoise.explain shows each layer's balance",
    )


def _law_of(place: int, laws: Sequence[Law]) -> int:
    """The number of the law to which one entry of u belongs."""
    return next(n for n in range(len(laws)) if place < sum(law.neurons for law in laws[: n + 1]))


def _conjugate_gradients(
    matrix: Callable[[Tensor], Tensor], target: Tensor, diagonal: Tensor, accuracy: float
) -> Tensor:
    """The solution of ``matrix(x) = target``, preconditioned by the diagonal, to a relative accuracy."""
    x, residual = torch.zeros_like(target), target.clone()
    scaled = residual / diagonal
    direction, size = scaled.clone(), residual @ scaled
    goal = accuracy**2 * size
    for _ in range(len(target)):
        if size <= goal:
            break
        image = matrix(direction)
        length = size / (direction @ image)
        x, residual = x + length * direction, residual - length * image
        scaled = residual / diagonal
        size, last = residual @ scaled, size
        direction = scaled + (size / last) * direction
    return x


def _check_norms(laws: Sequence[Law]) -> None:
    for law in laws:
        for slot in law.slots:
            if not bool(torch.isfinite(slot.parameter).all()):
                raise BalanceError(
                    f"{slot.name} is not finite",
                    where=str(law),
                    remedy="initialise the model anew, or load a checkpoint from before the loss diverged",
                )
        incoming, outgoing = law.norms()
        lone = ((incoming == 0) != (outgoing == 0)).nonzero().flatten().tolist()
        if lone:
            side = "incoming" if float(incoming[lone[0]]) == 0 else "outgoing"
            raise BalanceError(
                f"{len(lone)} neuron(s) cannot be balanced: zero norm on one side only "
                f"(neuron {lone[0]}: all {side} weights are 0)",
                where=str(law),
                remedy="no rescaling turns zero into something else: initialise these weights, or leave the law out",
            )


def _check_state(
    optimizer: Optimizer | None, parameters: dict[int, nn.Parameter], laws: Sequence[Law]
) -> dict[str, int]:
    """The powers with which the optimizer's state follows; errors before anything is changed."""
    if optimizer is None:
        return {}
    if not isinstance(optimizer, Optimizer):
        raise OptimizerError(f"expected a torch.optim.Optimizer, got {type(optimizer).__name__}")
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for law in laws:
        for slot in law.slots:
            if id(slot.parameter) not in trained:
                raise LawError(
                    f"{slot.name} is not among the parameters that this optimizer trains",
                    where=str(law),
                    remedy="pass the optimizer of the model whose laws these are, with all its parameters",
                )
    for kind, powers in STATE_POWERS.items():
        if type(optimizer) is kind:
            return powers
    if any(optimizer.state.get(parameter) for parameter in parameters.values()):
        raise OptimizerError(
            f"the state of {type(optimizer).__name__} cannot follow a rescaling",
            remedy="use SGD, Adam or AdamW, or rebalance before the first step and without optimizer=",
        )
    return {}


def _follow(values: Tensor, factors: Tensor, power: int) -> None:
    values.copy_(values.to(factors) * factors**power)

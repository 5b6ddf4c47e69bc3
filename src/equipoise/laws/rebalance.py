"""Function-preserving rebalancing: the network of least norm that computes the same function.

Rescaling the neurons of all laws by λ = exp(u) turns ½ Σ‖θ‖² into a convex function of u whose gradient is the
imbalance:

    F(u) = ½ Σ_e θ_e² exp(2 A_e(u)),     ∂F/∂u_i = c_i(u),     A_e(u) = Σ_{i: e incoming} u_i − Σ_{i: e outgoing} u_i

Its minimum is the unique balanced network that computes the same function. A single neuron is balanced by
λ_i⁴ = Σ_out‖θ‖² / Σ_in‖θ‖². Coordinate descent with this update converges as well, but the number of sweeps grows with
the square of the depth. Newton's method with conjugate gradients takes a handful of steps at any depth.
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

# Maximum relative imbalance, by dtype of the parameters:
TOLERANCE = {torch.float64: 1e-12, torch.complex128: 1e-12, torch.float32: 1e-6, torch.complex64: 1e-6}
LOW_PRECISION_TOLERANCE = 1e-2  # for all other dtypes
MAX_NEWTON_STEPS = 100
# Gradients scale by 1/λ where parameters scale by λ. The exponent of λ for every entry of the optimizer's state:
STATE_EXPONENTS: dict[type[Optimizer], dict[str, int]] = {
    SGD: {"momentum_buffer": -1},
    Adam: {"exp_avg": -1, "exp_avg_sq": -2, "max_exp_avg_sq": -2},
    AdamW: {"exp_avg": -1, "exp_avg_sq": -2, "max_exp_avg_sq": -2},
}


@torch.no_grad()
def rebalance_(laws: Sequence[Law], optimizer: Optimizer | None = None) -> float:
    """Balance every law in place without changing the function that the network computes.

    Minimises Σ‖θ‖² over all rescalings along the laws; at the minimum c = Σ_in ‖θ‖² − Σ_out ‖θ‖² is zero for every
    neuron. Existing gradients and the state of ``optimizer`` are rescaled accordingly, so that training can continue.
    On error nothing is modified. Laws without outgoing slots have nothing to be balanced against and are skipped.

    Args:
        laws: Laws as returned by :func:`~equipoise.discover`.
        optimizer: Optimizer of the model (SGD with or without momentum, Adam, AdamW) whose state to rescale.

    Returns:
        The largest remaining imbalance, relative to the norm of both sides.

    Raises:
        BalanceError: A neuron has norm zero on one side only, a parameter is not finite, or the minimisation does not
            converge.
        LawError: A law does not match its model, or the optimizer does not train all of its parameters.
        OptimizerError: The optimizer's state has no known rescaling.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import equipoise as eq
        >>> mlp = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> x = torch.randn(5, 3)
        >>> output = mlp(x)
        >>> eq.rebalance_(eq.discover(mlp, x)) < 1e-6
        True
        >>> torch.allclose(mlp(x), output, atol=1e-6)
        True
    """
    laws = [law for law in check_laws(laws) if law.outgoing]
    if not laws:
        return 0.0
    for law in laws:
        law.check_current()
    _check_norms(laws)
    parameters = {id(slot.parameter): slot.parameter for law in laws for slot in law.slots}
    state_exponents = _state_exponents(optimizer, parameters, laws)
    objective = _NormObjective.from_laws(laws)
    log_factors = objective.log_factors(_minimize(objective, laws))
    for key, parameter in parameters.items():
        factors = log_factors[key].exp().reshape(parameter.shape).to(parameter.device)
        _scale_(parameter, factors, +1)
        if parameter.grad is not None:
            _scale_(parameter.grad, factors, -1)
        for name, exponent in state_exponents.items():
            state = optimizer.state[parameter].get(name) if optimizer is not None else None
            if state is not None:
                _scale_(state, factors, exponent)
    return max(float(law.relative_imbalance().abs().max()) for law in laws)


@dataclass(frozen=True)
class _NormObjective:
    """The objective F(u), by its coefficients and the linear map A; parameters are keyed by their id.

    Attributes:
        squares: θ², flattened, in float64 on the CPU.
        terms: Parameter, range of its law in u, sign and slot, for every slot of every law.
        neurons: Number of entries of u.
    """

    squares: dict[int, Tensor]
    terms: list[tuple[int, slice, int, Slot]]
    neurons: int

    @classmethod
    def from_laws(cls, laws: Sequence[Law]) -> _NormObjective:
        squares, terms, start = {}, [], 0
        for law in laws:
            law_range = slice(start, start := start + law.neurons)
            for sign, slot in law.terms:
                parameter = slot.parameter
                squares[id(parameter)] = parameter.detach().abs().double().cpu().square().contiguous().flatten()
                terms.append((id(parameter), law_range, sign, slot))
        return cls(squares, terms, start)

    def log_factors(self, u: Tensor) -> dict[int, Tensor]:
        """A(u): logarithm of the factor of every entry."""
        log_factors = {key: torch.zeros_like(square) for key, square in self.squares.items()}
        for key, law_range, sign, slot in self.terms:
            slot.entries(log_factors[key]).add_(u[law_range].reshape(slot.groups, 1, -1, 1), alpha=sign)
        return log_factors

    def sum_per_neuron(self, values: dict[int, Tensor], signed: bool = True) -> Tensor:
        """Sum of incoming entries minus (``signed=False``: plus) outgoing entries: the adjoint of ``log_factors``."""
        sums = torch.zeros(self.neurons, dtype=torch.float64)
        for key, law_range, sign, slot in self.terms:
            sums[law_range] += (sign if signed else abs(sign)) * slot.sum_per_neuron(values[key])
        return sums

    def rescaled_squares(self, u: Tensor) -> dict[int, Tensor]:
        """θ² after the rescaling by exp(u)."""
        return {key: self.squares[key] * (2.0 * a).exp() for key, a in self.log_factors(u).items()}


def _minimize(objective: _NormObjective, laws: Sequence[Law]) -> Tensor:
    """Minimise F by a damped Newton method.

    Args:
        objective: The objective F.
        laws: The laws it was built from, for tolerances and messages.

    Returns:
        u with c(u) = 0 up to the tolerance of the parameters' dtype.

    Raises:
        BalanceError: No convergence within ``MAX_NEWTON_STEPS`` steps.
    """
    dtypes = [slot.parameter.dtype for law in laws for slot in law.slots]
    tolerance = 0.1 * min(TOLERANCE.get(dtype, LOW_PRECISION_TOLERANCE) for dtype in dtypes)
    u = torch.zeros(objective.neurons, dtype=torch.float64)
    for _ in range(MAX_NEWTON_STEPS):
        squares = objective.rescaled_squares(u)
        c, norms = objective.sum_per_neuron(squares), objective.sum_per_neuron(squares, signed=False)
        norms = torch.where(norms > 0, norms, 1.0)  # a neuron with norm zero on both sides does not change
        worst = float((c / norms).abs().max())
        if worst <= tolerance:
            return u

        def hessian_product(v: Tensor, squares: dict[int, Tensor] = squares) -> Tensor:
            return 2.0 * objective.sum_per_neuron(
                {key: squares[key] * a for key, a in objective.log_factors(v).items()}
            )

        step = _conjugate_gradients(hessian_product, -c, 2.0 * norms, rtol=min(0.1, worst))
        largest = max(float(a.abs().max()) for a in objective.log_factors(step).values())
        u = u + step / max(1.0, largest)  # damping: no entry changes by more than a factor e per step
    raise BalanceError(
        f"balancing did not converge in {MAX_NEWTON_STEPS} steps; the largest relative imbalance is {worst:.1e}",
        where=str(laws[_law_index(int((c / norms).abs().argmax()), laws)]),
        remedy="look for neurons that are connected through zeros only; equipoise.explain shows the balance per law",
    )


def _law_index(neuron: int, laws: Sequence[Law]) -> int:
    """Index of the law to which an entry of u belongs."""
    return next(n for n in range(len(laws)) if neuron < sum(law.neurons for law in laws[: n + 1]))


def _conjugate_gradients(matvec: Callable[[Tensor], Tensor], rhs: Tensor, diagonal: Tensor, rtol: float) -> Tensor:
    """Solve ``matvec(x) = rhs`` by conjugate gradients with a diagonal preconditioner, to relative tolerance."""
    x, residual = torch.zeros_like(rhs), rhs.clone()
    preconditioned = residual / diagonal
    direction, squared_residual = preconditioned.clone(), residual @ preconditioned
    tolerance = rtol**2 * squared_residual
    for _ in range(len(rhs)):
        if squared_residual <= tolerance:
            break
        image = matvec(direction)
        step_size = squared_residual / (direction @ image)
        x, residual = x + step_size * direction, residual - step_size * image
        preconditioned = residual / diagonal
        squared_residual, previous = residual @ preconditioned, squared_residual
        direction = preconditioned + (squared_residual / previous) * direction
    return x


def _check_norms(laws: Sequence[Law]) -> None:
    """Raise :class:`BalanceError` for parameters that are not finite and neurons with norm zero on one side only."""
    for law in laws:
        for slot in law.slots:
            if not bool(torch.isfinite(slot.parameter).all()):
                raise BalanceError(
                    f"{slot.name} is not finite",
                    where=str(law),
                    remedy="reinitialise the model, or load a checkpoint from before the loss diverged",
                )
        incoming, outgoing = law.norms()
        one_sided = ((incoming == 0) != (outgoing == 0)).nonzero().flatten().tolist()
        if one_sided:
            side = "incoming" if float(incoming[one_sided[0]]) == 0 else "outgoing"
            raise BalanceError(
                f"{len(one_sided)} neuron(s) cannot be balanced: zero norm on one side only "
                f"(neuron {one_sided[0]}: all {side} weights are 0)",
                where=str(law),
                remedy="no rescaling makes a zero weight nonzero: initialise these weights, or omit the law",
            )


def _state_exponents(
    optimizer: Optimizer | None, parameters: dict[int, nn.Parameter], laws: Sequence[Law]
) -> dict[str, int]:
    """Look up the exponents of λ for the optimizer's state, and validate the optimizer.

    Args:
        optimizer: The optimizer, if any.
        parameters: Parameters to rescale, by id.
        laws: Laws to balance.

    Returns:
        The exponent of every state entry, by name.

    Raises:
        LawError: The optimizer does not train a parameter of the laws.
        OptimizerError: The argument is not an optimizer, or its state has no known rescaling.
    """
    if optimizer is None:
        return {}
    if not isinstance(optimizer, Optimizer):
        raise OptimizerError(
            f"expected a torch.optim.Optimizer, got {type(optimizer).__name__}",
            remedy="pass the optimizer that trains the model, or None",
        )
    optimized = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for law in laws:
        for slot in law.slots:
            if id(slot.parameter) not in optimized:
                raise LawError(
                    f"{slot.name} is not among the optimizer's parameters",
                    where=str(law),
                    remedy="pass the optimizer that trains all parameters of this model",
                )
    for optimizer_type, exponents in STATE_EXPONENTS.items():
        if type(optimizer) is optimizer_type:
            return exponents
    if any(optimizer.state.get(parameter) for parameter in parameters.values()):
        raise OptimizerError(
            f"the state of {type(optimizer).__name__} cannot be rescaled",
            remedy="use SGD, Adam or AdamW, or rebalance before the first step and without optimizer=",
        )
    return {}


def _scale_(values: Tensor, factors: Tensor, exponent: int) -> None:
    values.copy_(values.to(factors.device) * factors**exponent)

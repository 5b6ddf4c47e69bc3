"""A law: what rises with λ, what falls with 1/λ, while the network computes the same.

For every neuron i that such a rescaling leaves the function alone, any loss has

    δ_i = Σ_in ⟨θ, ∇θ⟩ − Σ_out ⟨θ, ∇θ⟩ = 0             the residual     (gradient structure)
    c_i = Σ_in ‖θ‖²    − Σ_out ‖θ‖²                     the imbalance    (constant under gradient flow)

and one step of plain gradient descent with rate γ and weight decay μ moves c by a known amount, exactly:

    c(t+1) = (1−γμ)² c(t) − 2γ(1−γμ) δ(t) + γ² (Σ_in ‖∇θ‖² − Σ_out ‖∇θ‖²)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Literal

import torch
from torch import Tensor, nn

from equipoise.errors import ChoiceError, LawError
from equipoise.laws.slot import Slot

Per = Literal["neuron", "layer"]


@dataclass(frozen=True)
class Law:
    """Slots that rise with λ (``incoming``) and slots that fall (``outgoing``), neuron by neuron.

    ``outgoing`` is empty where the incoming weights are scale-free by themselves (weight normalisation): their norm is
    conserved, and there is nothing to balance it against.

    Example:
        >>> mlp = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False))
        >>> law = Law((Slot(mlp, "0.weight", (4, 3), 4, inner=3),), (Slot(mlp, "2.weight", (2, 4), 4),))
        >>> print(law)
        0.weight[i,:] = 2.weight[:,i]   (4 neurons)
    """

    incoming: tuple[Slot, ...]
    outgoing: tuple[Slot, ...]

    def __post_init__(self) -> None:
        if not self.incoming:
            raise LawError("a law needs at least one incoming slot", remedy="name the slots that rise with λ")
        sizes = {str(slot): slot.neurons for slot in self.slots}
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{name}: {size}" for name, size in sizes.items())
            raise LawError("the slots of a law must have the same number of neurons", where=listed)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Incoming slots, then outgoing ones."""
        return self.incoming + self.outgoing

    @property
    def neurons(self) -> int:
        """How many neurons the law covers."""
        return self.incoming[0].neurons

    @property
    def terms(self) -> Iterator[tuple[int, Slot]]:
        """Every slot with its sign: +1 rises with λ, −1 falls."""
        yield from ((+1, slot) for slot in self.incoming)
        yield from ((-1, slot) for slot in self.outgoing)

    def norms(self) -> tuple[Tensor, Tensor]:
        """Σ_in ‖θ‖² and Σ_out ‖θ‖² of every neuron."""
        incoming = total(slot.squared_norm() for slot in self.incoming)
        outgoing = (
            total(slot.squared_norm() for slot in self.outgoing) if self.outgoing else incoming.new_zeros(self.neurons)
        )
        return incoming, outgoing

    def imbalance(self) -> Tensor:
        """c of every neuron."""
        incoming, outgoing = self.norms()
        return incoming - outgoing

    def relative_imbalance(self) -> Tensor:
        """c over the sum of both sides, in [−1, 1]: 0 is balance, ±1 a side that outweighs the other utterly."""
        incoming, outgoing = self.norms()
        both = incoming + outgoing
        return torch.where(both > 0, (incoming - outgoing) / both.clamp_min(torch.finfo(both.dtype).tiny), both)

    def residual(self) -> Tensor:
        """δ of every neuron, after a backward pass: rounding error if the law holds."""
        return total(sign * slot.gradient_product() for sign, slot in self.terms)

    def predicted_drift(self, lr: float, weight_decay: float = 0.0) -> Tensor:
        """c(t+1) − c(t) of every neuron for the step of plain gradient descent that is about to be taken.

        Exact, not first order, for ``torch.optim.SGD(lr=lr, weight_decay=weight_decay)`` without momentum.
        """
        keep = 1.0 - lr * weight_decay
        gradients = total(sign * slot.squared_gradient() for sign, slot in self.terms)
        return (keep**2 - 1.0) * self.imbalance() - 2.0 * lr * keep * self.residual() + lr**2 * gradients

    @torch.no_grad()
    def rescale_(self, factors: Tensor) -> None:
        """Multiply neuron i's incoming weights by λ_i and its outgoing ones by 1/λ_i, in place."""
        if factors.shape != (self.neurons,) or not bool((factors > 0).all()):
            raise LawError(
                f"expected {self.neurons} positive factors, got a tensor of shape {tuple(factors.shape)}",
                where=str(self),
                remedy="a rescaling has one λ > 0 for every neuron of the law",
            )
        parameters = [slot.parameter for slot in self.slots]  # all looked up before any is changed
        for (sign, slot), parameter in zip(self.terms, parameters, strict=True):
            parameter.mul_(slot.spread(factors.to(parameter) ** sign, elsewhere=1.0))

    def bind(self, model: nn.Module) -> Law:
        """The same law of another network of the same make, such as a copy or a reloaded one."""
        return Law(tuple(slot.bind(model) for slot in self.incoming), tuple(slot.bind(model) for slot in self.outgoing))

    def __str__(self) -> str:
        left = " + ".join(map(str, self.incoming))
        right = " + ".join(map(str, self.outgoing)) or "0"
        return f"{left} = {right}   ({self.neurons} neuron{'s' if self.neurons > 1 else ''})"


def imbalance(laws: Iterable[Law], per: Per = "neuron") -> list[Tensor]:
    """c of every law: one tensor a law, an entry a neuron; ``per="layer"`` sums over neurons (Corollary 2.3)."""
    return [_per(law.imbalance(), per) for law in check_laws(laws)]


def residual(laws: Iterable[Law], per: Per = "neuron") -> list[Tensor]:
    """δ of every law after a backward pass: one tensor a law; ``per="layer"`` sums over neurons."""
    return [_per(law.residual(), per) for law in check_laws(laws)]


def check_laws(laws: object) -> list[Law]:
    """``laws`` as a list, or a :class:`LawError` that says what was given instead."""
    given = list(laws) if isinstance(laws, Iterable) else None
    checked = [law for law in given or () if isinstance(law, Law)]
    if given is None or len(checked) < len(given):
        strange = laws if given is None else next(entry for entry in given if not isinstance(entry, Law))
        raise LawError(
            f"expected a list of laws, got a {type(strange).__name__}",
            remedy="pass what discover(model, *inputs) returns; one law alone goes in brackets: [law]",
        )
    return checked


def total(values: Iterable[Tensor]) -> Tensor:
    """The sum of tensors of one shape."""
    return reduce(add, values)


def _per(values: Tensor, per: Per) -> Tensor:
    if per not in ("neuron", "layer"):
        raise ChoiceError("per", per, ("neuron", "layer"))
    return values if per == "neuron" else values.sum()

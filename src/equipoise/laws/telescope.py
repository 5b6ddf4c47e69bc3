"""Telescoping: the laws of consecutive layers, summed over neurons and layers.

Where the outgoing weights of one law are the incoming weights of the next, both sums run over all entries of the same
tensor and cancel. For L attention layers

    Σ⟨W¹,∇W¹⟩ − Σ_l Σ⟨a^l,∇a^l⟩ = Σ⟨W^L,∇W^L⟩

remains: the attention gradients of all layers share a budget that the first and the last layer set. A law with
exponents other than ±1 is multiplied by a constant first, so that the shared weights cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from torch import Tensor

from equipoise.errors import LawError
from equipoise.laws.law import Law, check_laws
from equipoise.laws.slot import Slot

Term = tuple[Fraction, Slot]


@dataclass(frozen=True)
class Telescope:
    """A chain of laws summed over neurons and layers; weights shared by consecutive laws cancel.

    For L attention layers the remaining identity is Σ⟨W¹,∇W¹⟩ − Σ_l Σ⟨a^l,∇a^l⟩ = Σ⟨W^L,∇W^L⟩. Since the number of
    attention terms grows with depth while the two ends stay, it bounds the gradients of deep attention networks.
    Build it with :func:`~equipoise.telescope`.

    Args:
        terms: Slots that do not cancel, summed over all their entries, each with its coefficient: positive on the
            left-hand side of the identity, negative on the right.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import equipoise as eq
        >>> mlp = nn.Sequential(
        ...     nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 5, bias=False), nn.ReLU(), nn.Linear(5, 2)
        ... ).double()
        >>> x = torch.randn(6, 3, dtype=torch.float64)
        >>> identity = eq.telescope(eq.discover(mlp, x))
        >>> isinstance(identity, eq.Telescope)
        True
        >>> print(identity)
        Σ 0.weight[i,:] = Σ 4.weight[:,i]
        >>> mlp(x).square().mean().backward()
        >>> bool(identity.residual().abs() < 1e-12)
        True
    """

    terms: tuple[Term, ...]

    @property
    def incoming(self) -> tuple[Slot, ...]:
        """Slots on the left-hand side."""
        return tuple(slot for coefficient, slot in self.terms if coefficient > 0)

    @property
    def outgoing(self) -> tuple[Slot, ...]:
        """Slots on the right-hand side."""
        return tuple(slot for coefficient, slot in self.terms if coefficient < 0)

    def imbalance(self) -> Tensor:
        """Σ_in ‖θ‖² − Σ_out ‖θ‖²: constant under gradient flow."""
        return self._sum(Slot.squared_norm)

    def residual(self) -> Tensor:
        """Σ_in ⟨θ,∇θ⟩ − Σ_out ⟨θ,∇θ⟩ after a backward pass: zero up to rounding if every law of the chain holds."""
        return self._sum(Slot.gradient_product)

    def _sum(self, quantity: Callable[[Slot], Tensor]) -> Tensor:
        first, *others = [float(coefficient) * quantity(slot).sum() for coefficient, slot in self.terms]
        return sum(others, start=first)

    def __str__(self) -> str:
        sides = [[(abs(n), slot) for n, slot in self.terms if (n > 0) == positive] for positive in (True, False)]
        return " = ".join(" + ".join(_term(n, slot) for n, slot in side) or "0" for side in sides)


def telescope(laws: Sequence[Law]) -> Telescope:
    """Sum the laws of consecutive layers into one identity between the first and the last layer.

    If the outgoing weights of one law are the incoming weights of the next, both sums over neurons run over all entries
    of the same tensor and cancel. The residual of the result checks the whole chain with one number.

    Args:
        laws: Laws of consecutive layers, in order, as returned by :func:`~equipoise.discover`.

    Returns:
        The slots that do not cancel.

    Raises:
        LawError: ``laws`` is empty or not a list of laws, or consecutive laws share no weights.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import equipoise as eq
        >>> mlp = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
        >>> print(eq.telescope(eq.discover(mlp, torch.randn(6, 3))))
        Σ 0.weight[i,:] + Σ 0.bias[i] + Σ 2.bias[i] = Σ 4.weight[:,i]
    """
    laws = check_laws(laws)
    if not laws:
        raise LawError("no laws to telescope", remedy="pass the laws of consecutive layers, as discover returns them")
    total: list[Term] = []
    for number, law in enumerate(laws):
        law_terms = [(Fraction(exponent), slot) for exponent, slot in law.terms]
        factor = _cancelling_factor(total, law_terms)
        if number and factor is None:
            raise LawError(
                "the laws do not form a chain: consecutive laws share no weights",
                where=f"between law {number - 1} and law {number}: {law}",
                remedy="pass the laws of consecutive layers, in order",
            )
        for coefficient, slot in law_terms:
            total = _add_term(total, (factor or 1) * coefficient, slot)
    return Telescope(tuple(sorted(total, key=lambda term: term[0] < 0)))


def _term(coefficient: Fraction, slot: Slot) -> str:
    return f"Σ {slot}" if coefficient == 1 else f"{coefficient} Σ {slot}"


def _cancelling_factor(total: list[Term], law_terms: list[Term]) -> Fraction | None:
    """Factor of the law that makes its first incoming slot cancel with an outgoing slot of the total; None if none."""
    for coefficient, slot in total:
        for exponent, other in law_terms:
            if coefficient < 0 < exponent and _same_entries(slot, other):
                return -coefficient / exponent
    return None


def _add_term(total: list[Term], coefficient: Fraction, slot: Slot) -> list[Term]:
    """Add a term; terms over the same entries of the same parameter are combined, or cancel."""
    for number, (existing, other) in enumerate(total):
        if existing * coefficient < 0 and _same_entries(slot, other):
            combined = existing + coefficient
            return [*total[:number], *([(combined, other)] if combined else []), *total[number + 1 :]]
    return [*total, (coefficient, slot)]


def _same_entries(one: Slot, other: Slot) -> bool:
    if one.name != other.name or one.model is not other.model:
        return False
    return (one.covers_parameter and other.covers_parameter) or one == other

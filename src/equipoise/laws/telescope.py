"""From the first to the last layer: a chain of laws summed over neurons and layers.

Where one law's outgoing weights are the next one's incoming weights, both sums over neurons are the sum over all
entries, and cancel. What is left for L layers of attention is

    Σ⟨W¹,∇W¹⟩ − Σ_l Σ⟨a^l,∇a^l⟩ = Σ⟨W^L,∇W^L⟩

so that ever more attention has to share what first and last layer allow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from equipoise.errors import LawError
from equipoise.laws.law import Law, check_laws, total
from equipoise.laws.slot import Slot


@dataclass(frozen=True)
class Telescope:
    """A chain of laws summed over neurons and layers: what is read and written in between cancels.

    For L layers of attention, Σ⟨W¹,∇W¹⟩ − Σ_l Σ⟨a^l,∇a^l⟩ = Σ⟨W^L,∇W^L⟩: the same sum has to do for ever more layers.
    """

    incoming: tuple[Slot, ...]
    outgoing: tuple[Slot, ...]

    def imbalance(self) -> Tensor:
        """Σ_in ‖θ‖² − Σ_out ‖θ‖²: constant under gradient flow."""
        return self._sum(Slot.squared_norm)

    def residual(self) -> Tensor:
        """Σ_in ⟨θ,∇θ⟩ − Σ_out ⟨θ,∇θ⟩ after a backward pass: rounding error if every law of the chain holds."""
        return self._sum(Slot.gradient_product)

    def _sum(self, quantity: Callable[[Slot], Tensor]) -> Tensor:
        rising = [quantity(slot).sum() for slot in self.incoming]
        return total(rising + [-quantity(slot).sum() for slot in self.outgoing])

    def __str__(self) -> str:
        left, right = (" + ".join(f"Σ {slot}" for slot in side) or "0" for side in (self.incoming, self.outgoing))
        return f"{left} = {right}"


def telescope(laws: Sequence[Law]) -> Telescope:
    """The identity from the first to the last layer of a chain of laws, as a check of the whole chain.

    Where one law's outgoing weights are the next one's incoming weights, both sums over neurons are the sum over all
    entries, and cancel.

    Raises:
        LawError: if nothing cancels between one law and the next, so that the laws are no chain.
    """
    laws = check_laws(laws)
    if not laws:
        raise LawError("no law to telescope", remedy="pass the laws of consecutive layers, as discover returns them")
    incoming: list[Slot] = []
    outgoing: list[Slot] = []
    for number, law in enumerate(laws):
        rising, falling = _cancel(list(law.incoming), outgoing)
        if number and len(falling) == len(outgoing):
            raise LawError(
                "the laws are no chain: nothing that one reads is written by the next",
                where=f"between law {number - 1} and law {number}: {law}",
                remedy="pass the laws of consecutive layers, in order",
            )
        rising, falling_more = _cancel(rising, list(law.outgoing))
        incoming, outgoing = incoming + rising, falling + falling_more
    return Telescope(tuple(incoming), tuple(outgoing))


def _cancel(rising: list[Slot], falling: list[Slot]) -> tuple[list[Slot], list[Slot]]:
    """Both lists without the slots that sum over the same entries of the same parameter."""
    left = list(falling)
    kept = []
    for slot in rising:
        twin = next((other for other in left if _same_entries(slot, other)), None)
        if twin is None:
            kept.append(slot)
        else:
            left.remove(twin)
    return kept, left


def _same_entries(one: Slot, other: Slot) -> bool:
    if one.name != other.name or one.model is not other.model:
        return False
    whole = one.neurons == one.length and other.neurons == other.length
    return whole or one == other

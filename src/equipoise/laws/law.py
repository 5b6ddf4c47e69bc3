"""Rescaling laws and the quantities they define.

A law states that multiplying the incoming weights of neuron i by λ_i > 0 and its outgoing weights by 1/λ_i does not
change the function that the network computes. It follows for any loss that

    δ_i = Σ_in ⟨θ, ∇θ⟩ − Σ_out ⟨θ, ∇θ⟩ = 0     the residual vanishes (gradient structure, Theorem 2.1)
    c_i = Σ_in ‖θ‖²    − Σ_out ‖θ‖²            the imbalance is constant under gradient flow (Corollary 2.2)

and that one step of plain gradient descent with learning rate γ and weight decay μ changes c exactly as

    c(t+1) = (1−γμ)² c(t) − 2γ(1−γμ) δ(t) + γ² (Σ_in ‖∇θ‖² − Σ_out ‖∇θ‖²)

:func:`telescope` sums the laws of consecutive layers over neurons and layers. Where the outgoing weights of one law are
the incoming weights of the next, both sums run over all entries of the same tensor and cancel. For L attention layers

    Σ⟨W¹,∇W¹⟩ − Σ_l Σ⟨a^l,∇a^l⟩ = Σ⟨W^L,∇W^L⟩

remains: the attention gradients of all layers share a budget that the first and the last layer set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Literal

import torch
from torch import Tensor, nn

from equipoise.errors import ChoiceError, LawError
from equipoise.laws.slot import Slot

Granularity = Literal["neuron", "layer"]


@dataclass(frozen=True)
class Law:
    """A rescaling that leaves the network's function unchanged, one factor λ_i > 0 per neuron.

    Incoming slots are multiplied by λ_i, outgoing slots by 1/λ_i. ``outgoing`` is empty if the incoming weights are
    scale-free on their own (e.g. the direction of a weight normalisation): their norm is conserved, and there is
    nothing to balance it against.

    Args:
        incoming: Slots that scale with λ; at least one.
        outgoing: Slots that scale with 1/λ.

    Raises:
        LawError: There is no incoming slot, or the slots differ in their number of neurons.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import equipoise as eq
        >>> mlp = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False)).double()
        >>> rows = eq.Slot(mlp, "0.weight", (4, 3), neurons=4, inner=3)
        >>> columns = eq.Slot(mlp, "2.weight", (2, 4), neurons=4)
        >>> law = eq.Law(incoming=(rows,), outgoing=(columns,))
        >>> print(law)
        0.weight[i,:] = 2.weight[:,i]   (4 neurons)

        The gradient of any loss satisfies the law, and rescaling does not change the output:

        >>> x = torch.randn(5, 3, dtype=torch.float64)
        >>> output = mlp(x)
        >>> output.square().mean().backward()
        >>> bool((law.residual().abs() < 1e-12).all())
        True
        >>> law.rescale_(torch.tensor([2.0, 0.5, 3.0, 1.0]))
        >>> torch.allclose(mlp(x), output)
        True
    """

    incoming: tuple[Slot, ...]
    outgoing: tuple[Slot, ...]

    def __post_init__(self) -> None:
        if not self.incoming:
            raise LawError("a law needs at least one incoming slot", remedy="pass the slots that scale with λ")
        sizes = {str(slot): slot.neurons for slot in self.slots}
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{name}: {size}" for name, size in sizes.items())
            raise LawError(
                "the slots of a law must have the same number of neurons",
                where=listed,
                remedy="pass slots with equal neurons=",
            )

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Incoming slots followed by outgoing slots."""
        return self.incoming + self.outgoing

    @property
    def neurons(self) -> int:
        """Number of neurons that the law covers."""
        return self.incoming[0].neurons

    @property
    def terms(self) -> Iterator[tuple[int, Slot]]:
        """Every slot with its sign: +1 for incoming, −1 for outgoing."""
        yield from ((+1, slot) for slot in self.incoming)
        yield from ((-1, slot) for slot in self.outgoing)

    def norms(self) -> tuple[Tensor, Tensor]:
        """Σ_in ‖θ‖² and Σ_out ‖θ‖², one entry per neuron."""
        incoming = _add_tensors(slot.squared_norm() for slot in self.incoming)
        if not self.outgoing:
            return incoming, incoming.new_zeros(self.neurons)
        return incoming, _add_tensors(slot.squared_norm() for slot in self.outgoing)

    def imbalance(self) -> Tensor:
        """c = Σ_in ‖θ‖² − Σ_out ‖θ‖², one entry per neuron."""
        incoming, outgoing = self.norms()
        return incoming - outgoing

    def relative_imbalance(self) -> Tensor:
        """c / (Σ_in ‖θ‖² + Σ_out ‖θ‖²) in [−1, 1]: 0 if balanced, ±1 if one side is zero, 0 if both are."""
        incoming, outgoing = self.norms()
        both = incoming + outgoing
        return torch.where(both > 0, (incoming - outgoing) / both.clamp_min(torch.finfo(both.dtype).tiny), both)

    def residual(self) -> Tensor:
        """δ = Σ_in ⟨θ,∇θ⟩ − Σ_out ⟨θ,∇θ⟩ after a backward pass: zero up to rounding if the law holds."""
        return _add_tensors(sign * slot.gradient_product() for sign, slot in self.terms)

    def predicted_drift(self, lr: float, weight_decay: float = 0.0) -> Tensor:
        """Predict c(t+1) − c(t) for the next step of plain gradient descent.

        The prediction is exact, not first order, for ``torch.optim.SGD(lr=lr, weight_decay=weight_decay)`` without
        momentum. Call it after ``loss.backward()`` and before ``optimizer.step()``.

        Args:
            lr: Learning rate of the step.
            weight_decay: Weight decay of the step, added to the gradient.

        Returns:
            The change of the imbalance, one entry per neuron.
        """
        decay = 1.0 - lr * weight_decay
        gradients = _add_tensors(sign * slot.squared_gradient() for sign, slot in self.terms)
        return (decay**2 - 1.0) * self.imbalance() - 2.0 * lr * decay * self.residual() + lr**2 * gradients

    @torch.no_grad()
    def rescale_(self, factors: Tensor) -> None:
        """Multiply incoming weights by λ_i and outgoing weights by 1/λ_i, in place.

        Args:
            factors: λ > 0, one entry per neuron.

        Raises:
            LawError: ``factors`` has the wrong shape or an entry that is not positive.
        """
        if factors.shape != (self.neurons,) or not bool((factors > 0).all()):
            raise LawError(
                f"expected {self.neurons} positive factors, got a tensor of shape {tuple(factors.shape)}",
                where=str(self),
                remedy="pass one λ > 0 per neuron of the law",
            )
        parameters = [slot.parameter for slot in self.slots]  # raises before any parameter is modified
        for (sign, slot), parameter in zip(self.terms, parameters, strict=True):
            parameter.mul_(slot.broadcast(factors.to(parameter) ** sign, fill_value=1.0))

    def bind(self, model: nn.Module) -> Law:
        """Return the same law of another model with the same architecture, e.g. a copy or a reloaded checkpoint."""
        return Law(tuple(slot.bind(model) for slot in self.incoming), tuple(slot.bind(model) for slot in self.outgoing))

    def __str__(self) -> str:
        left = " + ".join(map(str, self.incoming))
        right = " + ".join(map(str, self.outgoing)) or "0"
        return f"{left} = {right}   ({self.neurons} neuron{'s' if self.neurons > 1 else ''})"


def imbalance(laws: Iterable[Law], per: Granularity = "neuron") -> list[Tensor]:
    """Compute the imbalance c = Σ_in ‖θ‖² − Σ_out ‖θ‖² of every law.

    Gradient flow conserves c. At finite learning rates :meth:`Law.predicted_drift` gives its exact change.

    Args:
        laws: Laws as returned by :func:`~equipoise.discover`.
        per: ``"neuron"`` for one entry per neuron, ``"layer"`` for the sum over neurons (Corollary 2.3).

    Returns:
        One tensor per law.

    Raises:
        LawError: ``laws`` is not a list of laws, or a law does not match its model.
        ChoiceError: ``per`` is neither ``"neuron"`` nor ``"layer"``.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import equipoise as eq
        >>> mlp = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> laws = eq.discover(mlp, torch.randn(5, 3))
        >>> [c.shape for c in eq.imbalance(laws)]
        [torch.Size([4])]
    """
    return [_reduce(law.imbalance(), per) for law in check_laws(laws)]


def residual(laws: Iterable[Law], per: Granularity = "neuron") -> list[Tensor]:
    """Compute the residual δ = Σ_in ⟨θ,∇θ⟩ − Σ_out ⟨θ,∇θ⟩ of every law after a backward pass.

    δ is zero up to rounding for any loss and any optimizer if the law holds.

    Args:
        laws: Laws as returned by :func:`~equipoise.discover`.
        per: ``"neuron"`` for one entry per neuron, ``"layer"`` for the sum over neurons.

    Returns:
        One tensor per law.

    Raises:
        GradientError: A parameter has no gradient.
        LawError: ``laws`` is not a list of laws, or a law does not match its model.
        ChoiceError: ``per`` is neither ``"neuron"`` nor ``"layer"``.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import equipoise as eq
        >>> mlp = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
        >>> x = torch.randn(5, 3, dtype=torch.float64)
        >>> laws = eq.discover(mlp, x)
        >>> mlp(x).square().mean().backward()
        >>> bool(eq.residual(laws)[0].abs().max() < 1e-12)
        True
    """
    return [_reduce(law.residual(), per) for law in check_laws(laws)]


def check_laws(laws: object) -> list[Law]:
    """Return ``laws`` as a list, or raise :class:`LawError` if it is not an iterable of laws."""
    elements = list(laws) if isinstance(laws, Iterable) else None
    checked = [law for law in elements or () if isinstance(law, Law)]
    if elements is None or len(checked) < len(elements):
        offending = laws if elements is None else next(item for item in elements if not isinstance(item, Law))
        raise LawError(
            f"expected a list of laws, got a {type(offending).__name__}",
            remedy="pass the result of discover(model, *inputs); put a single law into a list: [law]",
        )
    return checked


@dataclass(frozen=True)
class Telescope:
    """A chain of laws summed over neurons and layers; weights shared by consecutive laws cancel.

    For L attention layers the remaining identity is Σ⟨W¹,∇W¹⟩ − Σ_l Σ⟨a^l,∇a^l⟩ = Σ⟨W^L,∇W^L⟩. Since the number of
    attention terms grows with depth while the two ends stay, it bounds the gradients of deep attention networks.
    Build it with :func:`~equipoise.telescope`.

    Args:
        incoming: Slots on the left-hand side, summed over all their entries.
        outgoing: Slots on the right-hand side, summed over all their entries.

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

    incoming: tuple[Slot, ...]
    outgoing: tuple[Slot, ...]

    def imbalance(self) -> Tensor:
        """Σ_in ‖θ‖² − Σ_out ‖θ‖²: constant under gradient flow."""
        return self._signed_sum(Slot.squared_norm)

    def residual(self) -> Tensor:
        """Σ_in ⟨θ,∇θ⟩ − Σ_out ⟨θ,∇θ⟩ after a backward pass: zero up to rounding if every law of the chain holds."""
        return self._signed_sum(Slot.gradient_product)

    def _signed_sum(self, quantity: Callable[[Slot], Tensor]) -> Tensor:
        incoming = [quantity(slot).sum() for slot in self.incoming]
        return _add_tensors(incoming + [-quantity(slot).sum() for slot in self.outgoing])

    def __str__(self) -> str:
        left, right = (" + ".join(f"Σ {slot}" for slot in side) or "0" for side in (self.incoming, self.outgoing))
        return f"{left} = {right}"


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
    incoming: list[Slot] = []
    outgoing: list[Slot] = []
    for number, law in enumerate(laws):
        law_incoming, remaining = _cancel(list(law.incoming), outgoing)
        if number and len(remaining) == len(outgoing):
            raise LawError(
                "the laws do not form a chain: consecutive laws share no weights",
                where=f"between law {number - 1} and law {number}: {law}",
                remedy="pass the laws of consecutive layers, in order",
            )
        law_incoming, law_outgoing = _cancel(law_incoming, list(law.outgoing))
        incoming, outgoing = incoming + law_incoming, remaining + law_outgoing
    return Telescope(tuple(incoming), tuple(outgoing))


def _cancel(incoming: list[Slot], outgoing: list[Slot]) -> tuple[list[Slot], list[Slot]]:
    """Remove pairs of slots that sum over the same entries of the same parameter."""
    uncancelled, remaining = [], list(outgoing)
    for slot in incoming:
        match = next((other for other in remaining if _same_entries(slot, other)), None)
        if match is None:
            uncancelled.append(slot)
        else:
            remaining.remove(match)
    return uncancelled, remaining


def _same_entries(one: Slot, other: Slot) -> bool:
    if one.name != other.name or one.model is not other.model:
        return False
    cover_parameter = one.neurons == one.length and other.neurons == other.length
    return cover_parameter or one == other


def _add_tensors(tensors: Iterable[Tensor]) -> Tensor:
    return reduce(add, tensors)


def _reduce(values: Tensor, per: Granularity) -> Tensor:
    if per not in ("neuron", "layer"):
        raise ChoiceError("per", per, ("neuron", "layer"))
    return values if per == "neuron" else values.sum()

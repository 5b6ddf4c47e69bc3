"""Rescaling laws and the quantities they define.

A law states that multiplying the incoming weights of neuron i by λ_i > 0 and its outgoing weights by 1/λ_i does not
change the function that the network computes. It follows for any loss that

    δ_i = Σ_in ⟨θ, ∇θ⟩ − Σ_out ⟨θ, ∇θ⟩ = 0     the residual vanishes (gradient structure, Theorem 2.1)
    c_i = Σ_in ‖θ‖²    − Σ_out ‖θ‖²            the imbalance is constant under gradient flow (Corollary 2.2)

and that one step of plain gradient descent with learning rate γ and weight decay μ changes c exactly as

    c(t+1) = (1−γμ)² c(t) − 2γ(1−γμ) δ(t) + γ² (Σ_in ‖∇θ‖² − Σ_out ‖∇θ‖²)

Where a function of degree other than 1 lies in between, slot k is multiplied by λ^n_k with other exponents than ±1. For
B ReLU(A h)², rows of A scale with λ and columns of B with λ⁻². Every sum above then has the weights |n_k|:

    δ_i = Σ_k n_k ⟨θ_k, ∇θ_k⟩ = 0,     c_i = Σ_k n_k ‖θ_k‖²
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Literal

import torch
from torch import Tensor, nn

from equipoise.errors import ChoiceError, ExpiredLawError, LawError
from equipoise.laws.slot import Slot
from equipoise.laws.validation import describe_value

Granularity = Literal["neuron", "layer"]


@dataclass(frozen=True)
class Law:
    """A rescaling that leaves the network's function unchanged, one factor λ_i > 0 per neuron.

    Incoming slots are multiplied by λ_i, outgoing slots by 1/λ_i, or by powers of it: see ``exponents``. ``outgoing``
    is empty if the incoming weights are scale-free on their own (e.g. the direction of a weight normalisation): their
    norm is conserved, and there is nothing to balance it against.

    Args:
        incoming: Slots that scale with λ; at least one.
        outgoing: Slots that scale with 1/λ.
        exponents: Size ``|n|`` of the exponent of every slot, incoming slots first; by default all are 1.
        buffers: Buffers on whose values the law rests, by name, with these values. In evaluation mode a batch norm with
            a running mean of 0 lets pass a rescaling that it no longer does once the mean has changed.

    Raises:
        LawError: There is no incoming slot, the slots differ in their number of neurons, or ``exponents`` are not
            positive, one per slot.

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
    exponents: tuple[int, ...] = ()
    buffers: Mapping[str, Tensor] = field(default_factory=dict, repr=False, compare=False)

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
        if not self.exponents:
            object.__setattr__(self, "exponents", (1,) * len(self.slots))
        if len(self.exponents) != len(self.slots) or min(self.exponents) < 1:
            raise LawError(
                f"expected {len(self.slots)} positive exponents, got {self.exponents}",
                where=", ".join(map(str, self.slots)),
                remedy="pass the size of the exponent of every slot, incoming slots first",
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
        """Every slot with its exponent n: positive for incoming, negative for outgoing."""
        signs = [1] * len(self.incoming) + [-1] * len(self.outgoing)
        for sign, exponent, slot in zip(signs, self.exponents, self.slots, strict=True):
            yield sign * exponent, slot

    def norms(self) -> tuple[Tensor, Tensor]:
        """Σ_in n ‖θ‖² and Σ_out ``|n|`` ‖θ‖², one entry per neuron."""
        weighted = [abs(exponent) * slot.squared_norm() for exponent, slot in self.terms]
        incoming = _add_tensors(weighted[: len(self.incoming)])
        outgoing = weighted[len(self.incoming) :]
        return incoming, _add_tensors(outgoing) if outgoing else torch.zeros_like(incoming)

    def imbalance(self) -> Tensor:
        """c = Σ_k n_k ‖θ_k‖² = Σ_in ‖θ‖² − Σ_out ‖θ‖² if all exponents are ±1, one entry per neuron."""
        incoming, outgoing = self.norms()
        return incoming - outgoing

    def relative_imbalance(self) -> Tensor:
        """c relative to the sum of both :meth:`norms`, in [−1, 1]: 0 if balanced, ±1 if one side is zero, 0 if both."""
        incoming, outgoing = self.norms()
        both = incoming + outgoing
        return torch.where(both > 0, (incoming - outgoing) / both.clamp_min(torch.finfo(both.dtype).tiny), both)

    def residual(self) -> Tensor:
        """δ = Σ_k n_k ⟨θ_k,∇θ_k⟩ after a backward pass: zero up to rounding if the law holds."""
        return _add_tensors(exponent * slot.gradient_product() for exponent, slot in self.terms)

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
        gradients = _add_tensors(exponent * slot.squared_gradient() for exponent, slot in self.terms)
        return (decay**2 - 1.0) * self.imbalance() - 2.0 * lr * decay * self.residual() + lr**2 * gradients

    @torch.no_grad()
    def rescale_(self, factors: Tensor) -> None:
        """Multiply every slot by λ_i to the power of its exponent, in place: incoming by λ_i, outgoing by 1/λ_i.

        Args:
            factors: λ > 0, one entry per neuron.

        Raises:
            LawError: ``factors`` has the wrong shape or an entry that is not positive, or the law is no longer valid
                (:class:`~equipoise.errors.ExpiredLawError`).
        """
        if not isinstance(factors, Tensor) or factors.shape != (self.neurons,) or not bool((factors > 0).all()):
            raise LawError(
                f"expected {self.neurons} positive factors, got {describe_value(factors)}",
                where=str(self),
                remedy="pass a tensor with one λ > 0 per neuron of the law",
            )
        if not bool(factors.isfinite().all()):
            raise LawError("a factor is infinite", where=str(self), remedy="pass finite factors")
        self.check_current()
        parameters = [slot.parameter for slot in self.slots]  # raises before any parameter is modified
        for (exponent, slot), parameter in zip(self.terms, parameters, strict=True):
            values = factors.to(parameter.device, parameter.real.dtype) ** exponent
            parameter.mul_(slot.broadcast(values, fill_value=1.0))

    def check_current(self) -> None:
        """Check that the buffers on which the law rests have not changed since it was found.

        Raises:
            ExpiredLawError: A buffer has another value, or is missing.
        """
        current = dict(self.incoming[0].model.named_buffers()) if self.buffers else {}
        for name, value in self.buffers.items():
            buffer = current.get(name)
            if buffer is None or buffer.shape != value.shape or not torch.equal(buffer.to(value), value):
                raise ExpiredLawError(
                    f"the law holds only for the value that the buffer {name} had when the law was found",
                    where=str(self),
                    remedy="run discover again on the model as it is now",
                )

    def bind(self, model: nn.Module) -> Law:
        """Return the same law of another model with the same architecture, e.g. a copy or a reloaded checkpoint."""
        incoming, outgoing = (tuple(slot.bind(model) for slot in side) for side in (self.incoming, self.outgoing))
        return Law(incoming, outgoing, self.exponents, self.buffers)

    @property
    def conserved(self) -> str:
        """The quantity that gradient flow conserves, c_i = Σ_k n_k ‖θ_k‖², as text."""
        terms = [(exponent, f"‖{slot}‖²") for exponent, slot in self.terms]
        text = "".join(
            f" {'+' if exponent > 0 else '−'} {'' if abs(exponent) == 1 else f'{abs(exponent)} '}{norm}"
            for exponent, norm in terms
        )
        return text.removeprefix(" + ")

    def __str__(self) -> str:
        texts = [str(slot) if n in (-1, 1) else f"{abs(n)} × {slot}" for n, slot in self.terms]
        left, right = texts[: len(self.incoming)], texts[len(self.incoming) :]
        count = f"{self.neurons} neuron{'s' if self.neurons > 1 else ''}"
        return f"{' + '.join(left)} = {' + '.join(right) or '0'}   ({count})"


def imbalance(laws: Iterable[Law], per: Granularity = "neuron") -> list[Tensor]:
    """Compute the imbalance c = Σ_in ‖θ‖² − Σ_out ‖θ‖² of every law.

    Terms of a law with exponents n other than ±1 have the weight ``|n|``. Gradient flow conserves c. At finite learning
    rates :meth:`Law.predicted_drift` gives its exact change.

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

    δ is zero up to rounding for any loss and any optimizer if the law holds. Terms of a law with exponents n other than
    ±1 have the weight ``|n|``.

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


def check_laws_of(model: nn.Module, laws: object) -> list[Law]:
    """Return ``laws`` as a list, or raise :class:`LawError` if they are no laws, or those of another model."""
    checked, known = check_laws(laws), set(model.parameters())
    for law in checked:
        if any(slot.parameter not in known for slot in law.slots):
            raise LawError(
                "the law belongs to another model",
                where=str(law),
                remedy="discover the laws of this model, or bind them to it: [law.bind(model) for law in laws]",
            )
    return checked


def _add_tensors(tensors: Iterable[Tensor]) -> Tensor:
    return reduce(add, tensors)


def _reduce(values: Tensor, per: Granularity) -> Tensor:
    if per not in ("neuron", "layer"):
        raise ChoiceError("per", per, ("neuron", "layer"))
    return values if per == "neuron" else values.sum()

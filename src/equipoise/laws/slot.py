"""A parameter seen neuron by neuron.

A *slot* says which entries of one parameter belong to neuron ``i``. Read in memory order, every parameter is a block of
shape ``(outer, length, inner)``; the neurons are ``start … start + neurons`` of the middle axis, and everything else is
summed over:

    =====================================  ========================  ======  ======
    rows of a (64, 32) weight              ``weight[i,:]``           length  64, inner 32
    its columns                            ``weight[:,i]``           length  32, inner 1
    a (1, 8, 64) attention, flattened      ``att[i]``                length 512, inner 1
    the same, heads averaged               ``att[:,i]``              length  64, inner 1
    512 rows folded over 8 averaged heads  ``weight[64h+i,:]``       length  64, inner 32
    the second 64 of 128 columns           ``weight[:,64+i]``        length 128, start 64
    =====================================  ========================  ======  ======

One axis, several flattened, one folded, or a window of one: three numbers describe them all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor, nn

from equipoise.errors import GradientError, LawError


@dataclass(frozen=True)
class Slot:
    """The entries of one parameter that belong to each of ``neurons`` neurons.

    Args:
        model: the network that holds the parameter; it is looked up by name at each use, so it is always the live one.
        name: the parameter's name in ``model.named_parameters()``.
        shape: the parameter's shape.
        neurons: how many neurons the slot runs over.
        inner: how many consecutive entries lie below one neuron.
        length: how many neurons lie side by side; ``neurons`` of them from ``start`` on are this slot's.
        start: the first of them.

    Example:
        >>> linear = nn.Linear(3, 2)
        >>> rows = Slot(linear, "weight", (2, 3), neurons=2, inner=3)
        >>> str(rows), torch.equal(rows.squared_norm(), linear.weight.square().sum(1))
        ('weight[i,:]', True)
    """

    model: nn.Module = field(repr=False)
    name: str
    shape: tuple[int, ...]
    neurons: int
    inner: int = 1
    length: int = 0
    start: int = 0

    def __post_init__(self) -> None:
        if self.length == 0:
            object.__setattr__(self, "length", self.neurons)
        fits = self.neurons >= 1 and self.inner >= 1 and 0 <= self.start <= self.length - self.neurons
        if not fits or prod(self.shape) % (self.length * self.inner):
            raise LawError(
                f"a slot of {self.neurons} neurons from {self.start} of {self.length}, {self.inner} entries each, "
                f"does not divide a parameter of shape {self.shape}",
                where=self.name,
                remedy="length × inner must divide the number of entries, and the neurons must lie within the length",
            )

    @property
    def parameter(self) -> nn.Parameter:
        """The live parameter; a :class:`LawError` if the model no longer has it in this shape."""
        try:
            parameter = self.model.get_parameter(self.name)
        except AttributeError:
            raise LawError(
                f"{type(self.model).__name__} has no parameter {self.name!r}",
                where=str(self),
                remedy="the law belongs to another model, or this one was changed: discover its laws again",
            ) from None
        if tuple(parameter.shape) != self.shape:
            raise LawError(
                f"{self.name} has shape {tuple(parameter.shape)}, the law was found for {self.shape}",
                where=type(self.model).__name__,
                remedy="the law belongs to another model, or this one was changed: discover its laws again",
            )
        return parameter

    @property
    def gradient(self) -> Tensor:
        """The parameter's gradient; a :class:`GradientError` before a backward pass."""
        gradient = self.parameter.grad
        if gradient is None:
            raise GradientError(
                f"{self.name} has no gradient",
                where=type(self.model).__name__,
                remedy="call loss.backward() first, and zero_grad() only after",
            )
        return gradient.to_dense() if gradient.layout != torch.strided else gradient

    def entries(self, values: Tensor) -> Tensor:
        """``values``, shaped like the parameter, as (outer, neurons, inner)."""
        return values.reshape(-1, self.length, self.inner)[:, self.start : self.start + self.neurons]

    def total(self, values: Tensor) -> Tensor:
        """``values``, shaped like the parameter, summed neuron by neuron."""
        return self.entries(values).sum(dim=(0, 2))

    def squared_norm(self) -> Tensor:
        """‖θ_i‖² of every neuron i."""
        return self.total(self.parameter.detach().square())

    def gradient_product(self) -> Tensor:
        """⟨θ_i, ∇θ_i⟩ of every neuron i, after a backward pass."""
        return self.total(self.parameter.detach() * self.gradient)

    def squared_gradient(self) -> Tensor:
        """‖∇θ_i‖² of every neuron i, after a backward pass."""
        return self.total(self.gradient.square())

    def spread(self, values: Tensor, elsewhere: float) -> Tensor:
        """One value a neuron, laid over the parameter's shape; ``elsewhere`` outside the slot."""
        spread = values.new_full((prod(self.shape),), elsewhere)
        self.entries(spread).copy_(values[:, None])
        return spread.reshape(self.shape)

    def bind(self, model: nn.Module) -> Slot:
        """The same slot of another network of the same make."""
        slot = Slot(model, self.name, self.shape, self.neurons, self.inner, self.length, self.start)
        _ = slot.parameter  # raises where it does not fit
        return slot

    @property
    def run(self) -> tuple[int, int]:
        """First and last of the parameter's axes that the neuron index runs over."""
        strides = [prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        wide = [axis for axis, size in enumerate(self.shape) if size > 1]
        if not wide:
            return 0, max(len(self.shape) - 1, 0)
        last = min((axis for axis in wide if strides[axis] <= self.inner), default=wide[-1])
        top = self.inner * self.length
        first = max((axis for axis in wide if strides[axis] * self.shape[axis] >= top), default=wide[0])
        return min(first, last), last

    def __str__(self) -> str:
        if self.neurons == self.length == 1:
            return self.name if prod(self.shape) == 1 else f"{self.name}[:]"
        first, last = self.run
        below = self.inner // prod(self.shape[last + 1 :])
        above = prod(self.shape[first : last + 1]) // (below * self.length)
        index = [f"{self.length * below}h"] if above > 1 else []
        index += [f"{self.start * below}"] if self.start else []
        index += ["i" if below == 1 else f"{below}i"] + (["k"] if below > 1 else [])
        axes = [":" for size in self.shape[:first] if size > 1]
        axes += ["+".join(index)]
        axes += [":" for size in self.shape[last + 1 :] if size > 1]
        return f"{self.name}[{','.join(axes)}]"

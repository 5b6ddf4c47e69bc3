"""Slots: the entries of a parameter that belong to each neuron.

In memory order every parameter is a block of shape ``(outer, length, inner)``. A slot selects the neurons ``start``
to ``start + neurons - 1`` of the middle axis; reductions run over the two other axes. These integers cover a single
axis, several flattened axes, a folded axis and a window of an axis. Where two separate axes number the neurons (the
groups of a convolution, and the channels within a group), the block is ``(outer, groups, middle, length, inner)``:

    =====================================  ===================  ======  =====  =====
    entries of neuron i                    printed as           length  inner  start
    =====================================  ===================  ======  =====  =====
    rows of a (64, 32) weight              ``weight[i,:]``          64     32      0
    columns of a (64, 32) weight           ``weight[:,i]``          32      1      0
    (1, 8, 64) attention, flattened        ``att[i]``              512      1      0
    (1, 8, 64) attention, averaged heads   ``att[:,i]``             64      1      0
    512 rows folded over 8 averaged heads  ``weight[64h+i,:]``      64     32      0
    second 64 of 128 columns               ``weight[:,64+i]``      128      1     64
    =====================================  ===================  ======  =====  =====

The input channels of ``Conv2d(16, 16, 3, groups=4)``, whose weight has the shape (16, 4, 3, 3), are 4 groups of length
4 with ``middle=4`` and ``inner=9``, printed as ``weight[4(i//4)+k,i%4,:,:]``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from equipoise.errors import GradientError, LawError


@dataclass(frozen=True)
class Slot:
    """The entries of one parameter that belong to each of ``neurons`` neurons.

    Viewed as ``(outer, length, inner)``, the parameter's entries ``[:, start + i, :]`` belong to neuron i. A slot
    stores the parameter's name, not the tensor, so it always refers to the model's current parameter. An entry of a
    complex parameter counts as its real and its imaginary part.

    Args:
        model: Module that holds the parameter.
        name: Name of the parameter in ``model.named_parameters()``.
        shape: Shape of the parameter.
        neurons: Number of neurons.
        inner: Number of consecutive entries per neuron.
        length: Size of the axis that holds the neurons; defaults to ``neurons``.
        start: Index of the first neuron on that axis.
        groups: Size of a second axis that numbers the neurons, in front of the first.
        middle: Number of entries between both axes.

    Raises:
        LawError: The axes do not divide the number of entries, or the neurons exceed them.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import equipoise as eq
        >>> linear = nn.Linear(3, 2)
        >>> rows = eq.Slot(linear, "weight", (2, 3), neurons=2, inner=3)
        >>> columns = eq.Slot(linear, "weight", (2, 3), neurons=3)
        >>> print(rows, columns)
        weight[i,:] weight[:,i]
        >>> torch.allclose(rows.squared_norm(), linear.weight.square().sum(dim=1))
        True
        >>> linear(torch.ones(1, 3)).sum().backward()
        >>> rows.gradient_product().shape, columns.gradient_product().shape
        (torch.Size([2]), torch.Size([3]))
    """

    model: nn.Module = field(repr=False)
    name: str
    shape: tuple[int, ...]
    neurons: int
    inner: int = 1
    length: int = 0
    start: int = 0
    groups: int = 1
    middle: int = 1

    def __post_init__(self) -> None:
        if self.length == 0:
            object.__setattr__(self, "length", self.neurons // max(self.groups, 1))
        sizes = (self.neurons, self.inner, self.length, self.groups, self.middle)
        valid = min(sizes) >= 1 and self.neurons % self.groups == 0
        valid = valid and 0 <= self.start <= self.length - self.neurons // self.groups
        if not valid or prod(self.shape) % (self.groups * self.middle * self.length * self.inner):
            raise LawError(
                f"a slot with neurons={self.neurons}, inner={self.inner}, length={self.length}, start={self.start}, "
                f"groups={self.groups}, middle={self.middle} does not divide a parameter of shape {self.shape}",
                where=self.name,
                remedy="groups * middle * length * inner must divide the number of entries, and start + neurons must "
                "not exceed length",
            )

    @property
    def parameter(self) -> nn.Parameter:
        """The model's current parameter; raises :class:`LawError` if it is missing or has another shape."""
        try:
            parameter = self.model.get_parameter(self.name)
        except AttributeError:
            raise LawError(
                f"{type(self.model).__name__} has no parameter {self.name!r}",
                where=str(self),
                remedy="the law belongs to another model, or this model has changed: run discover again",
            ) from None
        if is_lazy(parameter):
            raise LawError(
                f"{self.name} is an uninitialised lazy parameter",
                where=type(self.model).__name__,
                remedy="run the model once on its inputs first: model(x, edge_index)",
            )
        if tuple(parameter.shape) != self.shape:
            raise LawError(
                f"{self.name} has shape {tuple(parameter.shape)}, but the law expects {self.shape}",
                where=type(self.model).__name__,
                remedy="the law belongs to another model, or this model has changed: run discover again",
            )
        return parameter

    @property
    def gradient(self) -> Tensor:
        """The parameter's gradient as a dense tensor; raises :class:`GradientError` before the backward pass."""
        gradient = self.parameter.grad
        if gradient is None:
            raise GradientError(
                f"{self.name} has no gradient",
                where=type(self.model).__name__,
                remedy="call loss.backward() first, and zero_grad() only afterwards",
            )
        return gradient.to_dense() if gradient.layout != torch.strided else gradient

    def entries(self, values: Tensor) -> Tensor:
        """View a tensor of the parameter's shape as ``(outer, groups, middle, neurons per group, inner)``."""
        block = values.reshape(-1, self.groups, self.middle, self.length, self.inner)
        return block[:, :, :, self.start : self.start + self.neurons // self.groups]

    def sum_per_neuron(self, values: Tensor) -> Tensor:
        """Sum a tensor of the parameter's shape over the entries of each neuron."""
        return self.entries(values).sum(dim=(0, 2, 4)).flatten()

    def squared_norm(self) -> Tensor:
        """‖θ_i‖² for every neuron i."""
        return self.sum_per_neuron(inner_products(self.parameter.detach(), self.parameter.detach()))

    def gradient_product(self) -> Tensor:
        """⟨θ_i, ∇θ_i⟩ for every neuron i; requires a backward pass."""
        return self.sum_per_neuron(inner_products(self.parameter.detach(), self.gradient))

    def squared_gradient(self) -> Tensor:
        """‖∇θ_i‖² for every neuron i; requires a backward pass."""
        return self.sum_per_neuron(inner_products(self.gradient, self.gradient))

    def broadcast(self, values: Tensor, fill_value: float) -> Tensor:
        """Expand one value per neuron to the parameter's shape: the adjoint of :meth:`sum_per_neuron`.

        Args:
            values: One value per neuron.
            fill_value: Value of the entries outside the slot.

        Returns:
            A new tensor of the parameter's shape.
        """
        expanded = values.new_full((prod(self.shape),), fill_value)
        self.entries(expanded).copy_(values.reshape(self.groups, 1, -1, 1))
        return expanded.reshape(self.shape)

    def bind(self, model: nn.Module) -> Slot:
        """Return the same slot of another model; raises :class:`LawError` if the parameter does not match."""
        slot = replace(self, model=model)
        _ = slot.parameter  # checks name and shape
        return slot

    @property
    def covers_parameter(self) -> bool:
        """Whether every entry of the parameter belongs to a neuron."""
        return self.neurons == self.groups * self.length

    @property
    def axes(self) -> tuple[int, int]:
        """First and last axis of the parameter that the neuron index covers."""
        strides = [prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        non_singleton = [axis for axis, size in enumerate(self.shape) if size > 1]
        if not non_singleton:
            return 0, max(len(self.shape) - 1, 0)
        last = min((axis for axis in non_singleton if strides[axis] <= self.inner), default=non_singleton[-1])
        block = self.inner * self.length
        first = max(
            (axis for axis in non_singleton if strides[axis] * self.shape[axis] >= block), default=non_singleton[0]
        )
        return min(first, last), last

    def __str__(self) -> str:
        if self.groups > 1:
            return self._grouped_name()
        if self.neurons == self.length == 1:
            return self.name if prod(self.shape) == 1 else f"{self.name}[:]"
        first, last = self.axes
        consecutive = self.inner // prod(self.shape[last + 1 :])
        blocks = prod(self.shape[first : last + 1]) // (consecutive * self.length)
        index = [f"{self.length * consecutive}h"] if blocks > 1 else []
        index += [f"{self.start * consecutive}"] if self.start else []
        index += ["i" if consecutive == 1 else f"{consecutive}i"] + (["k"] if consecutive > 1 else [])
        subscripts = [":" for size in self.shape[:first] if size > 1]
        subscripts += ["+".join(index)]
        subscripts += [":" for size in self.shape[last + 1 :] if size > 1]
        return f"{self.name}[{','.join(subscripts)}]"

    def _grouped_name(self) -> str:
        """Name of a slot whose neuron i is entry i % length of group i // length."""
        subscripts, stride = [], prod(self.shape)
        group, position = f"i//{self.length}", f"i%{self.length}"
        for size in self.shape:
            stride //= size
            if stride == self.inner and size == self.length:
                subscripts.append(position)
            elif stride <= self.inner * self.length * self.middle < stride * size:
                block = self.inner * self.length * self.middle // stride
                subscripts.append(group if block == 1 else f"{block}({group})+k")
            elif size > 1:
                subscripts.append(":")
        return f"{self.name}[{','.join(subscripts)}]"


def inner_products(one: Tensor, other: Tensor) -> Tensor:
    """Entrywise products, real also for complex tensors: Re(conj(a) b), the product of two pairs of real numbers."""
    if one.is_complex():
        return one.real * other.real + one.imag * other.imag
    return one * other

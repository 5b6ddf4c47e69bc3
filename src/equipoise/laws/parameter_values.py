"""Values of the parameters of a probe: random ones, and those of the user's model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import Generator, Tensor

from equipoise.laws.gates import single_normal

NO_EFFECT = 1e-13  # |θ·∇θ| of an entry, relative to the largest: a smaller one is rounding
MIN_SCALE_LENGTH = 16  # as many entries of a parameter are hardly positive by coincidence


class ParameterValues:
    """Sets the parameters of a float64 copy of a model.

    Args:
        parameters: Parameters of the copy, by name, with the values of the user's model.
        generator: Source of random numbers.

    Attributes:
        own: Values of the user's model.
        scales: Parameters that stay positive: those that are positive and constant, or positive and long.
        maybe_scales: Other positive parameters. A bias of three entries is often positive; were it kept positive and
            large, a LeakyReLU after it would be linear, and attention scores would lose a term.
        samples: Products θ·∇θ at random parameters, by name, from which :attr:`without_effect` is computed.
    """

    def __init__(self, parameters: Mapping[str, Tensor], generator: Generator) -> None:
        self._parameters, self._generator = parameters, generator
        self.own = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        positive = {name for name, p in self.own.items() if not p.is_complex() and bool((p > 0).all())}
        self.scales = {name for name in positive if _is_constant_or_long(self.own[name])}
        self.maybe_scales = positive - self.scales
        self.samples: Sequence[Mapping[str, Tensor]] = ()
        self._zeroed: dict[str, Tensor] = {}

    def draw(self, mean: float = 0.0) -> None:
        """Draw random parameters; scales stay positive.

        Args:
            mean: Mean of the parameters, in standard deviations. With a positive mean fewer ReLUs are dead.
        """
        for name, parameter in self._parameters.items():
            rows = max(1, parameter.shape[0]) if parameter.ndim else 1
            std = (2.0 / (rows + parameter.numel() / rows)) ** 0.5
            values = single_normal(parameter.shape, self._generator, parameter.dtype).add_(mean).mul_(std)
            parameter.data.copy_(values.abs_().add_(0.5) if name in self.scales else values)
        self._set_zeros()

    def load(self, values: Mapping[str, Tensor]) -> None:
        """Set parameters by name."""
        for name, value in values.items():
            self._parameters[name].data.copy_(value)

    @contextmanager
    def at_own(self) -> Iterator[None]:
        """Use the values of the user's model within the context."""
        saved = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        try:
            self.load(self.own)
            self._set_zeros()
            yield
        finally:
            self.load(saved)

    @cached_property
    def without_effect(self) -> dict[str, Tensor]:
        """Masks of the entries of parameters whose gradient is rounding in all samples, by name.

        A softmax cancels the bias of its keys, a batch norm the bias before it.
        """
        largest: dict[str, Tensor] = {}
        for sample in self.samples:
            for name in sample.keys() & self._parameters.keys():
                size = sample[name].abs()
                largest[name] = torch.maximum(largest[name], size) if name in largest else size
        bound = NO_EFFECT * max((float(size.max()) for size in largest.values()), default=0.0)
        masks = {name: (size > 0) & (size <= bound) for name, size in largest.items()}
        return {name: mask for name, mask in masks.items() if bool(mask.any())}

    @contextmanager
    def zero_without_effect(self) -> Iterator[None]:
        """Keep the entries without effect at zero within the context, so that no rescaling amplifies their rounding."""
        self._zeroed = self.without_effect
        try:
            yield
        finally:
            self._zeroed = {}

    def _set_zeros(self) -> None:
        for name, mask in self._zeroed.items():
            self._parameters[name].data[mask] = 0.0


def _is_constant_or_long(values: Tensor) -> bool:
    return values.numel() >= MIN_SCALE_LENGTH or values.numel() == 0 or bool(values.amax() == values.amin())

"""Gates: fixed positive factors that keep the activations of a deep network in range.

A gate multiplies every entry of a submodule's output. It normalises each row and perturbs it differently at every node.
Gates commute with a rescaling, which also multiplies entries by positive numbers, so they change no law. Without gates
the activations of a deep network explode, vanish or become equal at all nodes (oversmoothing), and terms that matter
are lost to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.utils._pytree import tree_map

GATE_STD = 0.25  # gates are exp(0.25 · normal); with a larger deviation the gradients of deep networks explode


class Gates:
    """Gates of all submodules of a network, drawn in the first forward pass after a reset.

    Args:
        model: Network whose submodules get a forward hook.
        generator: Source of random numbers.
    """

    def __init__(self, model: nn.Module, generator: Generator) -> None:
        self._generator = generator
        self._factors: dict[nn.Module, list[Tensor]] = {}  # one entry per call of the module
        self._calls: dict[nn.Module, int] = {}
        self._active = False
        for module in model.modules():
            if module is not model:
                module.register_forward_hook(self._hook)

    def reset(self) -> None:
        """Forget all gates, so that the next pass draws new ones."""
        self._factors = {}

    @contextmanager
    def active(self, active: bool = True) -> Iterator[None]:
        """Apply the gates to one forward pass within the context, or leave them out."""
        self._calls, self._active = {}, active
        try:
            yield
        finally:
            self._active = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the gates out of calls within the context, in the middle of a forward pass."""
        active, self._active = self._active, False
        try:
            yield
        finally:
            self._active = active

    def _hook(self, module: nn.Module, _: Any, output: Any) -> Any:
        if not self._active:
            return output
        if isinstance(output, Tensor):
            return self._apply(output, module)
        return tree_map(lambda leaf: self._apply(leaf, module), output)

    def _apply(self, leaf: Any, module: nn.Module) -> Any:
        if not isinstance(leaf, Tensor) or leaf.layout != torch.strided or leaf.is_nested:
            return leaf
        if not leaf.is_floating_point() and not leaf.is_complex():
            return leaf
        factors = self._factors.setdefault(module, [])
        call = self._calls.get(module, 0)
        self._calls[module] = call + 1
        if call == len(factors):
            factors.append(self._draw(leaf.detach()))
        return leaf * factors[call]

    def _draw(self, leaf: Tensor) -> Tensor:
        rms = leaf.abs().square().mean(dim=-1 if leaf.ndim > 1 else None, keepdim=True).sqrt()
        factors = random_factors(leaf.shape, self._generator).to(leaf.device)
        return torch.where((rms > 0) & rms.isfinite(), factors / rms, factors)


def random_factors(shape: torch.Size, generator: Generator) -> Tensor:
    """Positive random factors around 1, in float64."""
    return (GATE_STD * normal(shape, generator)).exp()


def normal(shape: torch.Size, generator: Generator, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers, drawn in single precision, which is several times as fast."""
    return single_normal(shape, generator, dtype).to(dtype)


def single_normal(shape: torch.Size, generator: Generator, dtype: torch.dtype) -> Tensor:
    """Standard normal numbers in single precision, complex if ``dtype`` is complex."""
    return torch.randn(shape, generator=generator, dtype=torch.complex64 if dtype.is_complex else torch.float32)

"""What goes through the layers of a network in a forward pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from equipoise.nn.looking import Coefficients, Look
from equipoise.train.watched import Watched

ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh)


@dataclass(frozen=True)
class Pass:
    """What one layer read and wrote in a forward pass; references, not copies.

    Attributes:
        plain: whether it was called with nothing but these: no edge features, no sizes.
        attention: where the layer shows it.
    """

    x: Tensor | None
    edge_index: Tensor | None
    plain: bool
    output: Tensor | None
    attention: Coefficients | None = None


class Capture:
    """Forward hooks that keep the last pass through every layer while they are on.

    What a layer wrote is kept as the activation after it left it, where that is a module of the model.
    """

    def __init__(self, model: nn.Module, layers: list[Watched]) -> None:
        self.layers = layers
        self.activations = [module for module in model.modules() if isinstance(module, ACTIVATIONS)]
        self.passes: dict[int, Pass] = {}
        self._handles: list[RemovableHandle] = []

    def on(self) -> None:
        """Keep passes from now on."""
        if not self._handles:
            looks: list[tuple[nn.Module, Look]] = [
                *((layer.module, _AtLayer(self.passes, number)) for number, layer in enumerate(self.layers, start=1)),
                *((module, _AtActivation(self.passes)) for module in self.activations),
            ]
            self._handles = [module.register_forward_hook(look, with_kwargs=True) for module, look in looks]

    def off(self) -> None:
        """Keep no more of them, and let go of those that are kept."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.passes.clear()


@dataclass(frozen=True)
class _AtLayer(Look):
    passes: dict[int, Pass]
    number: int

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        del module
        attention = named.get("attention")
        shown = isinstance(attention, Coefficients)
        x, *rest = [*inputs, *({} if shown else named).values()] or [None]
        edges = [entry for entry in rest if _is_edge_index(entry)]
        others = [entry for entry in rest if not (entry is None or isinstance(entry, bool) or _is_edge_index(entry))]
        result = output[0] if isinstance(output, tuple) and output else output
        self.passes.pop(self.number, None)  # the last pass comes last
        self.passes[self.number] = Pass(
            x.detach() if isinstance(x, Tensor) else None,
            edges[0] if edges else None,
            not others,
            result.detach() if isinstance(result, Tensor) else None,
            attention if shown else None,
        )


@dataclass(frozen=True)
class _AtActivation(Look):
    passes: dict[int, Pass]

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        del module, named
        number, last = next(reversed(self.passes.items()), (0, None))
        read = inputs[0] if inputs else None
        if last is None or last.output is None or not isinstance(read, Tensor) or not isinstance(output, Tensor):
            return
        if read.layout == torch.strided == last.output.layout and read.data_ptr() == last.output.data_ptr():
            self.passes[number] = replace(last, output=output.detach())


def _is_edge_index(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and value.dtype == torch.long
        and value.dim() == 2
        and len(value) == 2
    )

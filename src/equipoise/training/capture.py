"""The recorded layers of a model, and forward hooks that capture their inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from torch_geometric.nn import MessagePassing

from equipoise.errors import InitializationError
from equipoise.init.layers import layers_of, roles_of
from equipoise.laws.validation import check_module, check_trainable
from equipoise.nn.hooks import AttentionCoefficients, ObserverHook

ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh)


@dataclass(frozen=True)
class RecordedLayer:
    """A layer: its name in the model, the module, and its parameters by role."""

    name: str
    module: nn.Module
    features: tuple[nn.Parameter, ...]
    attention: tuple[nn.Parameter, ...] = ()

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """Feature weights, then attention."""
        return self.features + self.attention


def layers_to_record(model: nn.Module) -> list[RecordedLayer]:
    """Return the layers of a model in execution order.

    Layers with registered roles (``equipoise.init.layers``) come with their feature weights and attention. All
    parameters of any other graph layer count as features. In a model with neither, every module with parameters of its
    own is a layer.

    Args:
        model: any network.

    Returns:
        The layers.

    Example:
        >>> mlp = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> [layer.name for layer in layers_to_record(mlp)]
        ['0', '2']
    """
    check_module(model)
    check_trainable(model)
    try:
        return [
            RecordedLayer(layer.name, model.get_submodule(layer.name), layer.roles.features, layer.roles.attention)
            for layer in layers_of(model)
        ]
    except InitializationError:  # a model that cannot be initialised can still be recorded
        return _graph_layers(model) or _modules_with_parameters(model)


def _graph_layers(model: nn.Module) -> list[RecordedLayer]:
    """Return the outermost graph layers and layers with registered roles, in registration order."""
    layers: dict[str, RecordedLayer] = {}
    for name, module in model.named_modules():
        if any(name.startswith(f"{outer}." if outer else "") for outer in layers):
            continue
        roles = roles_of(module)
        if roles is not None:
            layers[name] = RecordedLayer(name, module, roles.features, roles.attention)
        elif isinstance(module, MessagePassing) and any(True for _ in module.parameters()):
            layers[name] = RecordedLayer(name, module, tuple(module.parameters()))
    return list(layers.values())


def _modules_with_parameters(model: nn.Module) -> list[RecordedLayer]:
    own = {name: (module, tuple(module.parameters(recurse=False))) for name, module in model.named_modules()}
    return [RecordedLayer(name, module, parameters) for name, (module, parameters) in own.items() if parameters]


@dataclass(frozen=True)
class LayerCall:
    """Inputs and output of one layer in a forward pass, as references without autograd graph.

    Attributes:
        x: the layer's input; None if it is not a tensor.
        edge_index: the layer's edge index; None if it got none.
        extra_inputs: whether the layer got further inputs, such as edge features or sizes.
        output: the output after the activation, where the activation is a module; None if it is not a tensor.
        attention: attention coefficients, where a fused stack provides them.
    """

    x: Tensor | None
    edge_index: Tensor | None
    extra_inputs: bool
    output: Tensor | None
    attention: AttentionCoefficients | None = None


class Capture:
    """Forward hooks that keep the last call of every layer while enabled.

    Args:
        model: the model; its activation modules replace a layer's output by the activation's.
        layers: the layers to capture.

    Attributes:
        calls: the last call of each layer, by layer number from 1, in execution order.
    """

    def __init__(self, model: nn.Module, layers: list[RecordedLayer]) -> None:
        self.layers = layers
        self.activations = [module for module in model.modules() if isinstance(module, ACTIVATIONS)]
        self.calls: dict[int, LayerCall] = {}
        self._handles: list[RemovableHandle] = []

    def enable(self) -> None:
        """Register the hooks."""
        if not self._handles:
            hooks: list[tuple[nn.Module, ObserverHook]] = [
                *((layer.module, _LayerHook(self.calls, number)) for number, layer in enumerate(self.layers, start=1)),
                *((module, _ActivationHook(self.calls)) for module in self.activations),
            ]
            self._handles = [module.register_forward_hook(hook, with_kwargs=True) for module, hook in hooks]

    def disable(self) -> None:
        """Remove the hooks and release the captured tensors."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.calls.clear()


@dataclass(frozen=True)
class _LayerHook(ObserverHook):
    calls: dict[int, LayerCall]
    number: int

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        del module
        attention = named.get("attention")
        is_fused = isinstance(attention, AttentionCoefficients)
        x, *rest = [*inputs, *({} if is_fused else named).values()] or [None]
        edges = [value for value in rest if _is_edge_index(value)]
        extra = [value for value in rest if not (value is None or isinstance(value, bool) or _is_edge_index(value))]
        result = output[0] if isinstance(output, tuple) and output else output
        self.calls.pop(self.number, None)  # keeps the dictionary in execution order
        self.calls[self.number] = LayerCall(
            x.detach() if isinstance(x, Tensor) else None,
            edges[0] if edges else None,
            bool(extra),
            result.detach() if isinstance(result, Tensor) else None,
            attention if is_fused else None,
        )


@dataclass(frozen=True)
class _ActivationHook(ObserverHook):
    calls: dict[int, LayerCall]

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        del module, named
        number, call = next(reversed(self.calls.items()), (0, None))
        x = inputs[0] if inputs else None
        if call is None or call.output is None or not isinstance(x, Tensor) or not isinstance(output, Tensor):
            return
        # Only an activation of the layer's own output: same memory.
        if x.layout == torch.strided == call.output.layout and x.data_ptr() == call.output.data_ptr():
            self.calls[number] = replace(call, output=output.detach())


def _is_edge_index(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and value.dtype == torch.long
        and value.dim() == 2
        and len(value) == 2
    )

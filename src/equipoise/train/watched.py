"""The layers that a recorder looks at, with their parameters."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torch_geometric.nn import MessagePassing

from equipoise.errors import PartsError
from equipoise.init.layers import layers_of
from equipoise.init.parts import parts_of
from equipoise.laws.checks import check_module, check_trainable


@dataclass(frozen=True)
class Watched:
    """One layer: its name in the model, and its parameters by the role they play."""

    name: str
    module: nn.Module
    features: tuple[nn.Parameter, ...]
    attention: tuple[nn.Parameter, ...] = ()

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """Feature weights, then attention."""
        return self.features + self.attention


def watched_layers(model: nn.Module) -> list[Watched]:
    """The layers of a model in the order in which they run.

    Layers whose parts are known (``equipoise.init.parts``) come with their parts; a graph layer that nobody has
    described counts all of its parameters as features. A model with neither is watched module by module.

    Example:
        >>> mlp = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> [layer.name for layer in watched_layers(mlp)]
        ['0', '2']
    """
    check_module(model)
    check_trainable(model)
    try:
        return [
            Watched(layer.name, model.get_submodule(layer.name), layer.parts.features, layer.parts.attention)
            for layer in layers_of(model)
        ]
    except PartsError:  # no chain, or a layer that has no known start: it can be looked at all the same
        return _registered(model) or _modules(model)


def _registered(model: nn.Module) -> list[Watched]:
    """Outermost layers with known parts and graph layers, in the order of registration."""
    found: dict[str, Watched] = {}
    for name, module in model.named_modules():
        if any(name.startswith(f"{outer}." if outer else "") for outer in found):
            continue
        parts = parts_of(module)
        if parts is not None:
            found[name] = Watched(name, module, parts.features, parts.attention)
        elif isinstance(module, MessagePassing) and any(True for _ in module.parameters()):
            found[name] = Watched(name, module, tuple(module.parameters()))
    return list(found.values())


def _modules(model: nn.Module) -> list[Watched]:
    own = {name: (module, tuple(module.parameters(recurse=False))) for name, module in model.named_modules()}
    return [Watched(name, module, parameters) for name, (module, parameters) in own.items() if parameters]

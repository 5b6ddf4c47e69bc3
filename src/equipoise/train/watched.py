"""The layers that a recorder looks at, and what goes through them in a forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from torch_geometric.nn import MessagePassing

from equipoise.errors import PartsError
from equipoise.init.layers import layers_of
from equipoise.init.parts import parts_of
from equipoise.laws.checks import check_module, check_trainable

SAMPLE = 48  # nodes whose neighbourhoods stand for those of the whole graph


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


@dataclass(frozen=True)
class Neighbourhoods:
    """Some nodes of a graph, evenly spaced, with all of their neighbours.

    Attributes:
        nodes: the nodes themselves, then their other neighbours.
        targets: how many of ``nodes`` are the former.
        edge_index: (2, edges) from neighbour to node, numbered by their places in ``nodes``; no self-loops.
    """

    nodes: Tensor
    targets: int
    edge_index: Tensor

    @classmethod
    def of(cls, edge_index: Tensor, count: int, most: int = SAMPLE) -> Neighbourhoods:
        """``most`` of the ``count`` nodes of a graph, or all where there are fewer."""
        step = max(1, -(-count // most))
        chosen = torch.arange(0, count, step, device=edge_index.device)
        place = torch.full((count,), -1, dtype=torch.long, device=edge_index.device)
        place[chosen] = torch.arange(len(chosen), device=edge_index.device)
        source, target = edge_index[:, (place[edge_index[1]] >= 0) & (edge_index[0] != edge_index[1])]
        others = source[place[source] < 0].unique()
        place[others] = torch.arange(len(chosen), len(chosen) + len(others), device=edge_index.device)
        return cls(torch.cat([chosen, others]), len(chosen), torch.stack([place[source], place[target]]))


@dataclass(frozen=True)
class Pass:
    """What one layer read and wrote in a forward pass; references, not copies."""

    x: Tensor | None
    edge_index: Tensor | None
    plain: bool  # whether it was called with nothing else: no edge features, no sizes
    output: Tensor | None


class Capture:
    """Forward hooks that keep the last pass through every layer while they are on."""

    def __init__(self, layers: list[Watched]) -> None:
        self.layers = layers
        self.passes: dict[int, Pass] = {}
        self._handles: list[RemovableHandle] = []

    def on(self) -> None:
        """Keep passes from now on."""
        if not self._handles:
            self._handles = [
                layer.module.register_forward_hook(self._hook(number), with_kwargs=True)
                for number, layer in enumerate(self.layers, start=1)
            ]

    def off(self) -> None:
        """Keep no more of them, and let go of those that are kept."""
        for handle in self._handles:
            handle.remove()
        self._handles, self.passes = [], {}

    def _hook(self, number: int) -> Any:
        def keep(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            x, *rest = [*inputs, *named.values()] or [None]
            edges = [entry for entry in rest if _is_edge_index(entry)]
            others = [entry for entry in rest if entry is not None and not _is_edge_index(entry)]
            result = output[0] if isinstance(output, tuple) and output else output
            self.passes[number] = Pass(
                x.detach() if isinstance(x, Tensor) else None,
                edges[0] if edges else None,
                not others,
                result.detach() if isinstance(result, Tensor) else None,
            )

        return keep


def _is_edge_index(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and value.dtype == torch.long
        and value.dim() == 2
        and len(value) == 2
    )

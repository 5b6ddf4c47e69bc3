"""The named schemes, and the one call that applies them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from equipoise.errors import ArchitectureError, ChoiceError
from equipoise.init.balance import Direction, Values, balanced, write
from equipoise.init.layers import Layer, layers_of
from equipoise.init.weights import Matrix, Place, identity, looks_linear, normal, orthogonal, xavier


@dataclass(frozen=True)
class Scheme:
    """How feature weights are drawn, whether attention is drawn or zero, and whether all is balanced after that.

    Attributes:
        hidden: the matrix of a hidden layer, or of its looks-linear block.
        ends: the matrix of the first and of the last layer.
        looks_linear: whether matrices come with their mirror images.
        attention: whether attention is drawn (Xavier) or starts at zero.
        balanced: whether the balancing procedure follows.
        beta: squared norm that balancing starts from.
    """

    hidden: Matrix = xavier
    ends: Matrix = xavier
    looks_linear: bool = False
    attention: bool = False
    balanced: bool = False
    beta: float = 2.0


SCHEMES = {
    "xav": Scheme(attention=True),
    "xav-z": Scheme(),
    "bal-x": Scheme(balanced=True),
    "llortho": Scheme(orthogonal, orthogonal, looks_linear=True),
    "bal-o": Scheme(orthogonal, orthogonal, looks_linear=True, balanced=True),
    "identity": Scheme(identity),
    "bal-identity": Scheme(identity, balanced=True, beta=1.0),
    "llidentity": Scheme(identity, looks_linear=True),
    "bal-llidentity": Scheme(identity, looks_linear=True, balanced=True),
}


def initialize_(
    model: nn.Module,
    scheme: str = "bal-o",
    *,
    beta: float | Tensor | None = None,
    direction: Direction = "forward",
    generator: Generator | None = None,
) -> nn.Module:
    r"""Give a network a start from which it trains, in place, and return it.

    Balanced schemes start with c = 0 for every neuron: gradients can move all layers. ``"bal-o"`` also starts as a
    linear function with orthogonal weights, which carries signals through any depth.

    ================  ==============================  =========  ========
    scheme            feature weights                 attention  balanced
    ================  ==============================  =========  ========
    ``xav``           Xavier normal                   Xavier     no
    ``xav-z``         Xavier normal                   zero       no
    ``bal-x``         Xavier normal                   zero       yes
    ``llortho``       looks-linear orthogonal         zero       no
    ``bal-o``         looks-linear orthogonal         zero       yes
    ``identity``      identity, ends Xavier           zero       no
    ``bal-identity``  identity, ends Xavier           zero       yes
    ``llidentity``    looks-linear identity           zero       no
    ``bal-llidentity``  looks-linear identity         zero       yes
    ================  ==============================  =========  ========

    Args:
        model: a chain of layers whose parts are known (``equipoise.init.parts``): PyG's ready models, ``Sequential``,
            a ``Stack``, or a module of your own. Parameters stay the same objects, so an optimizer stays valid.
        scheme: one of the above.
        beta: squared norm of the first hidden layer's incoming weights (see ``balance_``); 2, for ``bal-identity`` 1.
        direction: where balancing starts, ``"forward"`` from the first layer or ``"reverse"`` from the last.
        generator: the random numbers; the same one gives the same start whatever the global random state.

    Example:
        >>> from torch_geometric.nn import GAT
        >>> model = initialize_(GAT(1433, 64, num_layers=10, out_channels=7, v2=True, act="relu"), "bal-o")
    """
    if scheme not in SCHEMES:
        raise ChoiceError("scheme", scheme, SCHEMES)
    chosen = SCHEMES[scheme]
    layers = layers_of(model)
    if chosen.looks_linear:
        _check_even(layers, scheme)
    values: Values = {}
    for number, layer in enumerate(layers):
        values |= _drawn(layer, chosen, _place(number, len(layers)), generator)
    if chosen.balanced:
        values = balanced(layers, values, chosen.beta if beta is None else beta, direction)
    write(values)
    return model


def _place(number: int, count: int) -> Place:
    if count == 1:
        return "only"
    return "first" if number == 0 else "last" if number == count - 1 else "hidden"


def _drawn(layer: Layer, scheme: Scheme, place: Place, generator: Generator | None) -> Values:
    parts = layer.parts
    values: Values = {W: _features(W, layer, scheme, place, generator) for W in parts.features}
    for a in parts.attention:
        std = (2.0 / sum(a.shape[-2:])) ** 0.5 if a.ndim > 1 else (2.0 / (1 + len(a))) ** 0.5
        values[a] = std * normal(*a.shape, generator=generator) if scheme.attention else torch.zeros(a.shape)
    for skip in parts.skip:
        drawn = not scheme.balanced and not scheme.looks_linear
        values[skip] = xavier(skip.shape[0], skip.shape[1], generator) if drawn else torch.zeros(skip.shape)
    values |= {bias: torch.zeros(bias.shape) for bias in parts.bias}
    values |= {one: torch.ones(one.shape) for one in parts.ones}
    return {parameter: value.double() for parameter, value in values.items()}


def _features(W: nn.Parameter, layer: Layer, scheme: Scheme, place: Place, generator: Generator | None) -> Tensor:
    """One matrix; averaged heads get one each, since equal ones would stay equal for ever."""
    rows, columns = W.shape
    heads = 1 if layer.parts.concat else layer.parts.heads
    draw = scheme.hidden if place == "hidden" else scheme.ends
    if scheme.looks_linear:  # a mirror image for each of several layers that are read side by side
        matrices = [
            torch.cat([looks_linear(draw, rows // heads, width, place, generator) for width in layer.widths], dim=1)
            for _ in range(heads)
        ]
        return torch.cat(matrices)
    if draw is xavier:
        return xavier(rows, columns, generator)
    return torch.cat([draw(rows // heads, columns, generator) for _ in range(heads)])


def _check_even(layers: list[Layer], scheme: str) -> None:
    for layer in layers[:-1]:
        if layer.parts.width_out % 2:
            raise ArchitectureError(
                f"{scheme} pairs each hidden neuron with its mirror image, and {layer.parts.width_out} is odd",
                where=f"{layer.name} writes {layer.parts.width_out} neurons",
                remedy=f"use an even hidden width, such as {layer.parts.width_out + 1}, or the scheme bal-x",
            )

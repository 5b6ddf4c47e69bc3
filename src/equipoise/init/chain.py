"""Initialisation of a chain of known layers by its structure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor, nn

from equipoise.errors import ArchitectureError
from equipoise.init.balance import Direction, ParameterValues, balance_values
from equipoise.init.layers import Layer
from equipoise.init.matrices import Position, looks_linear, xavier
from equipoise.init.network import draw_other_roles

if TYPE_CHECKING:
    from equipoise.init.schemes import Scheme


def initial_values(
    layers: list[Layer],
    name: str,
    scheme: Scheme,
    *,
    beta: float | Tensor,
    direction: Direction,
    generator: Generator | None,
) -> ParameterValues:
    """Draw the parameters of a chain of layers and, if the scheme says so, balance them.

    Args:
        layers: the layers, first to last.
        name: name of the scheme, for messages.
        scheme: the scheme.
        beta: squared norm for balancing.
        direction: direction of balancing.
        generator: source of random numbers; None for torch's global generator.

    Returns:
        A float64 value for each parameter.
    """
    if scheme.looks_linear:
        _check_even_widths(layers, name)
    values: ParameterValues = {}
    for index, layer in enumerate(layers):
        values |= _draw_layer(layer, scheme, _position(index, len(layers)), generator)
    return balance_values(layers, values, beta, direction) if scheme.balanced else values


def _position(index: int, count: int) -> Position:
    if count == 1:
        return "only"
    return "first" if index == 0 else "last" if index == count - 1 else "hidden"


def _draw_layer(layer: Layer, scheme: Scheme, position: Position, generator: Generator | None) -> ParameterValues:
    roles = layer.roles
    values: ParameterValues = {W: _draw_features(W, layer, scheme, position, generator) for W in roles.features}
    values |= draw_other_roles(roles, scheme, generator)
    return {parameter: value.double() for parameter, value in values.items()}


def _draw_features(
    W: nn.Parameter, layer: Layer, scheme: Scheme, position: Position, generator: Generator | None
) -> Tensor:
    """Draw one weight matrix; averaged heads get independent blocks, as equal heads would stay equal in training."""
    rows, columns = W.shape
    heads = 1 if layer.roles.concat else layer.roles.heads
    draw = scheme.hidden if position == "hidden" else scheme.ends
    if scheme.looks_linear:  # one mirrored block for each concatenated input (jumping knowledge)
        blocks = [
            torch.cat(
                [looks_linear(draw, rows // heads, width, position, generator) for width in layer.input_widths], dim=1
            )
            for _ in range(heads)
        ]
        return torch.cat(blocks)
    if draw is xavier:
        return xavier(rows, columns, generator)
    return torch.cat([draw(rows // heads, columns, generator) for _ in range(heads)])


def _check_even_widths(layers: list[Layer], scheme: str) -> None:
    for layer in layers[:-1]:
        width = layer.roles.width_out
        if width % 2:
            raise ArchitectureError(
                f"{scheme} pairs each hidden neuron with its mirror image, but the width {width} is odd",
                where=f"{layer.name} has {width} output neurons",
                remedy=f"use an even hidden width, such as {width + 1}, or the scheme bal-x",
            )

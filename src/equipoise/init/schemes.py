"""The named initialisation schemes, the random matrices they draw, and :func:`initialize_`, which applies them.

Every matrix (Xavier, orthogonal, identity, looks-linear) is drawn in float64 on the CPU from an explicit generator, so
a seed gives the same numbers for any dtype and device of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor, nn

from equipoise.errors import ArchitectureError, ChoiceError
from equipoise.init.balance import Direction, ParameterValues, assign_, balance_values
from equipoise.init.layers import Layer, layers_of

Position = Literal["first", "hidden", "last", "only"]
MatrixInit = Callable[[int, int, Generator | None], Tensor]


def normal(*shape: int, std: float, generator: Generator | None) -> Tensor:
    """Draw independent normal numbers with mean 0."""
    return nn.init.normal_(torch.empty(*shape, dtype=torch.float64), std=std, generator=generator)


def xavier(rows: int, columns: int, generator: Generator | None) -> Tensor:
    """Draw a Xavier (Glorot) normal matrix with variance 2 / (rows + columns)."""
    # nn.init.xavier_normal_ takes math.sqrt, which differs from ** 0.5 in the last bit for some rows + columns (669,
    # 1446, …). Published results were computed with ** 0.5.
    return normal(rows, columns, std=(2.0 / (rows + columns)) ** 0.5, generator=generator)


def orthogonal(rows: int, columns: int, generator: Generator | None) -> Tensor:
    """Draw a Haar-distributed matrix with orthonormal rows or columns, whichever are fewer.

    Args:
        rows: number of rows.
        columns: number of columns.
        generator: source of random numbers; None for torch's global generator.

    Returns:
        A float64 matrix of shape (rows, columns).

    Example:
        >>> U = orthogonal(3, 5, torch.Generator().manual_seed(0))
        >>> torch.allclose(U @ U.T, torch.eye(3, dtype=torch.float64))
        True
    """
    # Drawn tall and transposed: nn.init.orthogonal_ of a wide matrix consumes the random numbers in another order.
    tall = torch.empty(max(rows, columns), min(rows, columns), dtype=torch.float64)
    nn.init.orthogonal_(tall, generator=generator)
    return tall if rows >= columns else tall.T


def identity(rows: int, columns: int, generator: Generator | None) -> Tensor:  # noqa: ARG001 - same signature as the others
    """Return a matrix with ones on the diagonal."""
    return torch.eye(rows, columns, dtype=torch.float64)


def looks_linear(block: MatrixInit, rows: int, columns: int, position: Position, generator: Generator | None) -> Tensor:
    """Build a matrix from a block U and its mirror image −U, so that a ReLU network is linear at initialisation.

        first: [U; −U]        hidden: [[U, −U], [−U, U]]        last: [U, −U]

    The first half of the neurons carries the positive part of U x, the second half the negative part. The next layer
    takes their difference.

    Args:
        block: draws U.
        rows: number of rows; even unless the layer is the last.
        columns: number of columns; even unless the layer is the first.
        position: where the layer is in the network.
        generator: source of random numbers; None for torch's global generator.

    Returns:
        A float64 matrix of shape (rows, columns).
    """
    block_columns = columns if position in ("first", "only") else columns // 2
    block_rows = rows if position in ("last", "only") else rows // 2
    U = block(block_rows, block_columns, generator)
    if position in ("hidden", "last"):
        U = torch.cat([U, -U], dim=1)
    if position in ("first", "hidden"):
        U = torch.cat([U, -U], dim=0)
    return U


@dataclass(frozen=True)
class Scheme:
    """An initialisation scheme: how to draw weights, and whether to balance them.

    Attributes:
        hidden: matrix of a hidden layer, or of its looks-linear block.
        ends: matrix of the first and the last layer.
        looks_linear: whether matrices consist of a block and its mirror image.
        attention: whether attention is drawn (Xavier) or zero.
        balanced: whether the balancing procedure follows.
        beta: default squared norm for balancing.
    """

    hidden: MatrixInit = xavier
    ends: MatrixInit = xavier
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
    r"""Initialise a network in place so that it trains at depth.

    Balanced schemes set the conserved quantity :math:`c_i = \|W^l[i,:]\|^2 - \|W^{l+1}[:,i]\|^2` to zero for every
    neuron (attention is zero), so that gradients can move all layers. With ``"bal-o"`` the network is also linear at
    initialisation and its weights are orthogonal, so signals pass through any depth.

    ==================  =============================  =========  ========
    scheme              feature weights                attention  balanced
    ==================  =============================  =========  ========
    ``xav``             Xavier normal                  Xavier     no
    ``xav-z``           Xavier normal                  zero       no
    ``bal-x``           Xavier normal                  zero       yes
    ``llortho``         looks-linear orthogonal        zero       no
    ``bal-o``           looks-linear orthogonal        zero       yes
    ``identity``        identity, ends Xavier          zero       no
    ``bal-identity``    identity, ends Xavier          zero       yes
    ``llidentity``      looks-linear identity          zero       no
    ``bal-llidentity``  looks-linear identity          zero       yes
    ==================  =============================  =========  ========

    Args:
        model: a chain of layers with known parameter roles (:mod:`equipoise.init.layers`): PyG's basic models,
            a ``Sequential``, a :class:`~equipoise.Stack`, or your own module. Parameters stay the same objects, so
            existing optimizers stay valid. Register your own layer class with
            ``@equipoise.init.layers.roles_of.register(MyConv)``.
        scheme: one of the names above.
        beta: squared norm of each neuron's incoming weights in the first hidden layer (see
            :func:`~equipoise.balance_`). Default: 2, and 1 for ``bal-identity``.
        direction: ``"forward"`` balances from the first layer to the last, ``"reverse"`` from the last to the first.
        generator: source of random numbers. The same generator state gives the same weights, independent of torch's
            global random state. Default: the global generator.

    Returns:
        The same model.

    Raises:
        ModelError: if ``model`` is not a module, or has lazy parameters.
        InitializationError: if a layer is not supported, or the layers do not form a chain.
        ArchitectureError: if a looks-linear scheme meets an odd hidden width.
        BalanceError: if a row or column of the weights is zero, or ``beta`` is not positive.
        ChoiceError: if ``scheme`` or ``direction`` is unknown.

    Example:
        >>> from torch_geometric.nn import GAT
        >>> model = GAT(1433, 64, num_layers=10, out_channels=7, v2=True, act="relu")
        >>> model = initialize_(model, "bal-o", generator=torch.Generator().manual_seed(0))
        >>> torch.allclose(model.convs[0].lin_l.weight.square().sum(dim=1), torch.tensor(2.0))
        True
    """
    if scheme not in SCHEMES:
        raise ChoiceError("scheme", scheme, SCHEMES)
    settings = SCHEMES[scheme]
    layers = layers_of(model)
    if settings.looks_linear:
        _check_even_widths(layers, scheme)
    values: ParameterValues = {}
    for index, layer in enumerate(layers):
        values |= _draw_layer(layer, settings, _position(index, len(layers)), generator)
    if settings.balanced:
        values = balance_values(layers, values, settings.beta if beta is None else beta, direction)
    assign_(values)
    return model


def _position(index: int, count: int) -> Position:
    if count == 1:
        return "only"
    return "first" if index == 0 else "last" if index == count - 1 else "hidden"


def _draw_layer(layer: Layer, scheme: Scheme, position: Position, generator: Generator | None) -> ParameterValues:
    roles = layer.roles
    values: ParameterValues = {W: _draw_features(W, layer, scheme, position, generator) for W in roles.features}
    for a in roles.attention:
        std = (2.0 / sum(a.shape[-2:])) ** 0.5 if a.ndim > 1 else (2.0 / (1 + len(a))) ** 0.5
        values[a] = normal(*a.shape, std=std, generator=generator) if scheme.attention else torch.zeros(a.shape)
    zero_skip = scheme.balanced or scheme.looks_linear
    for skip in roles.skip:
        values[skip] = torch.zeros(skip.shape) if zero_skip else xavier(skip.shape[0], skip.shape[1], generator)
    values |= {bias: torch.zeros(bias.shape) for bias in roles.bias}
    values |= {parameter: torch.ones(parameter.shape) for parameter in roles.ones}
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

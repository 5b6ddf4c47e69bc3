"""The paper's balancing procedure, at the start of training (it changes the function).

Attention, target weights, learned skips and biases to zero; rows of W¹ to squared norm β; then column i of W^{l+1} to
the norm of row i of W^l, layer by layer. Or in reverse: columns of W^L to squared norm β, then rows of W^l to the norm
of what reads them. Either way c = 0 for every neuron.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from equipoise.errors import BalanceError, ChoiceError
from equipoise.init.layers import Layer, layers_of

Direction = Literal["forward", "reverse"]
Values = dict[nn.Parameter, Tensor]


def balance_(model: nn.Module, *, beta: float | Tensor = 2.0, direction: Direction = "forward") -> nn.Module:
    """Balance a network that was initialised otherwise, in place, and return it.

    Args:
        model: as for :func:`~equipoise.initialize_`.
        beta: squared norm of the incoming weights of the first hidden layer (``"reverse"``: of the outgoing weights of
            the last one); a number, or one for every neuron.
        direction: where to start, ``"forward"`` from the first layer or ``"reverse"`` from the last.

    Example:
        >>> from equipoise.nn.stack import Stack
        >>> model = balance_(Stack("gcn", [5, 4, 4, 2]))
        >>> torch.allclose(model.convs[0].lin.weight.square().sum(1), torch.tensor(2.0))
        True
    """
    layers = layers_of(model)
    values = {p: p.detach().double().cpu() for layer in layers for p in layer.parts.all}
    write(balanced(layers, values, beta, direction))
    return model


def balanced(layers: Sequence[Layer], values: Values, beta: float | Tensor, direction: str) -> Values:
    """The values after the procedure; nothing is written."""
    if direction not in ("forward", "reverse"):
        raise ChoiceError("direction", direction, ("forward", "reverse"))
    values = dict(values)
    for layer in layers:
        silent = layer.parts.attention + layer.parts.features[1:] + layer.parts.skip + layer.parts.bias
        values |= {parameter: torch.zeros_like(values[parameter]) for parameter in silent}
    if len(layers) == 1:
        return values  # no hidden neuron
    if direction == "forward":
        _scale_rows(layers[0], values, _targets(beta, layers[0].parts.width_out))
        for writer in range(len(layers) - 1):
            _scale_columns(layers, writer, values, _row_norms(layers[writer], values))
    else:
        last = layers[-1]
        W = last.parts.features[0]
        targets = _targets(beta, last.parts.width_in)
        values[W] = values[W] * _factors(targets, values[W].square().sum(dim=0), last, "column")
        for writer in reversed(range(len(layers) - 1)):
            _scale_rows(layers[writer], values, _column_norms(layers, writer, values))
    return values


@torch.no_grad()
def write(values: Values) -> None:
    """Put the values into their parameters, which stay the same objects."""
    for parameter, value in values.items():
        parameter.copy_(value)


def _targets(beta: float | Tensor, neurons: int) -> Tensor:
    targets = torch.as_tensor(beta, dtype=torch.float64).cpu()
    if targets.shape not in ((), (neurons,)) or not bool((targets > 0).all()):
        raise BalanceError(
            f"beta must be a positive number, or {neurons} of them", where=f"beta of shape {tuple(targets.shape)}"
        )
    return targets.expand(neurons)


def _by_neuron(layer: Layer, values: Values) -> Tensor:
    """The feature weights as (heads averaged over, neurons, features in)."""
    W = values[layer.parts.features[0]]
    return W.reshape(-1, layer.parts.width_out, W.shape[1])


def _row_norms(layer: Layer, values: Values) -> Tensor:
    return _by_neuron(layer, values).square().sum(dim=(0, 2))


def _blocks(layers: Sequence[Layer], reader: int) -> Iterator[tuple[int, int]]:
    """The layers that one layer reads, each with the first of the columns that read it."""
    start = 0
    for writer, width in zip(layers[reader].reads, layers[reader].widths, strict=False):  # the first reads no layer
        yield writer, start
        start += width


def _columns(layers: Sequence[Layer], writer: int) -> Iterator[tuple[nn.Parameter, slice]]:
    """The feature weights, and the columns of them, that read the neurons of one layer."""
    width = layers[writer].parts.width_out
    for reader, layer in enumerate(layers):
        for written, start in _blocks(layers, reader):
            if written == writer:
                yield layer.parts.features[0], slice(start, start + width)


def _column_norms(layers: Sequence[Layer], writer: int, values: Values) -> Tensor:
    norms = [values[W][:, columns].square().sum(dim=0) for W, columns in _columns(layers, writer)]
    return torch.stack(norms).sum(dim=0)


def _scale_rows(layer: Layer, values: Values, targets: Tensor) -> None:
    factors = _factors(targets, _row_norms(layer, values), layer, "row")
    scaled = _by_neuron(layer, values) * factors[:, None]
    values[layer.parts.features[0]] = scaled.reshape(layer.parts.features[0].shape)


def _scale_columns(layers: Sequence[Layer], writer: int, values: Values, targets: Tensor) -> None:
    """Give the columns that read one layer, all together, the squared norms ``targets``."""
    reader = next(layer for layer in layers if writer in layer.reads)
    factors = _factors(targets, _column_norms(layers, writer, values), reader, "column")
    for W, columns in _columns(layers, writer):
        values[W] = values[W].clone()
        values[W][:, columns] *= factors


def _factors(targets: Tensor, norms: Tensor, layer: Layer, what: str) -> Tensor:
    bad = (~(norms > 0) | ~norms.isfinite()).nonzero().flatten().tolist()
    if bad:
        raise BalanceError(
            f"{what} {bad[0]} of the feature weights has norm {float(norms[bad[0]])}, and cannot be given another",
            where=f"{layer.name} ({len(bad)} of {len(norms)} {what}s)",
            remedy="initialise the weights first, with a scheme that leaves no neuron without any",
        )
    return (targets / norms).sqrt()

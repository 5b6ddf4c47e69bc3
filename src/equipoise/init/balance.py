"""The paper's balancing procedure at initialisation. It changes the function that the network computes.

Attention, target weights, learned skips and biases are set to zero. Forward: rows of W¹ get squared norm β; then, layer
by layer, column i of W^{l+1} gets the norm of row i of W^l. Reverse: columns of W^L get squared norm β; then row i of
W^l gets the norm of the columns that read neuron i. In both directions c = 0 for every neuron.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from equipoise.errors import BalanceError, ChoiceError
from equipoise.init.layers import Layer, layers_of

Direction = Literal["forward", "reverse"]
ParameterValues = dict[nn.Parameter, Tensor]


def balance_(model: nn.Module, *, beta: float | Tensor = 2.0, direction: Direction = "forward") -> nn.Module:
    r"""Balance the weights of an initialised network in place.

    For every hidden neuron i of layer l,

    .. math::
        \|W^l[i, :]\|^2 = \|W^{l+1}[:, i]\|^2,

    with attention, target weights, learned skips and biases set to zero. Unlike :func:`~equipoise.rebalance_`, this
    changes the function that the network computes.

    Args:
        model: a chain of supported layers, as for :func:`~equipoise.initialize_`. Parameters stay the same objects.
        beta: squared norm of each neuron's incoming weights in the first hidden layer (``"reverse"``: of its outgoing
            weights in the last hidden layer); a number, or a tensor with one entry per neuron.
        direction: ``"forward"`` balances from the first layer to the last, ``"reverse"`` from the last to the first.

    Returns:
        The same model.

    Raises:
        ModelError: if ``model`` is not a module, or has lazy parameters.
        InitializationError: if a layer is not supported, or the layers do not form a chain.
        BalanceError: if a row or column of the weights is zero or not finite, or ``beta`` is not positive.
        ChoiceError: if ``direction`` is unknown.

    Example:
        >>> from equipoise.nn.stack import Stack
        >>> model = balance_(Stack("gcn", [5, 4, 4, 2]))
        >>> torch.allclose(model.convs[0].lin.weight.square().sum(1), torch.tensor(2.0))
        True
    """
    layers = layers_of(model)
    values = {p: p.detach().double().cpu() for layer in layers for p in layer.roles.all}
    assign_(balance_values(layers, values, beta, direction))
    return model


def check_direction(direction: object) -> None:
    """Raise :class:`ChoiceError` unless ``direction`` is one of the two."""
    if direction not in ("forward", "reverse"):
        raise ChoiceError("direction", direction, ("forward", "reverse"))


def balance_values(
    layers: Sequence[Layer], values: ParameterValues, beta: float | Tensor, direction: str
) -> ParameterValues:
    """Apply the procedure to parameter values without writing to the parameters.

    Args:
        layers: the layers of the network, first to last.
        values: a float64 value for each parameter.
        beta: squared norm that the first (``"reverse"``: last) hidden layer gets.
        direction: ``"forward"`` or ``"reverse"``.

    Returns:
        The balanced values.

    Raises:
        ChoiceError: if ``direction`` is unknown.
    """
    check_direction(direction)
    values = dict(values)
    for layer in layers:
        zeros = layer.roles.attention + layer.roles.features[1:] + layer.roles.skip + layer.roles.bias
        values |= {parameter: torch.zeros_like(values[parameter]) for parameter in zeros}
    if len(layers) == 1:
        return values  # no hidden neuron
    if direction == "forward":
        _scale_rows(layers[0], values, initial_norms(beta, layers[0].roles.width_out))
        for producer in range(len(layers) - 1):
            _scale_columns(layers, producer, values, _row_norms(layers[producer], values))
    else:
        last = layers[-1]
        W = last.roles.features[0]
        desired = initial_norms(beta, last.roles.width_in)
        values[W] = values[W] * _scale_factors(desired, values[W].square().sum(dim=0), last, "column")
        for producer in reversed(range(len(layers) - 1)):
            _scale_rows(layers[producer], values, _column_norms(layers, producer, values))
    return values


@torch.no_grad()
def assign_(values: ParameterValues) -> None:
    """Copy the values into their parameters, which stay the same objects.

    Raises:
        BalanceError: if a value overflows the dtype of its parameter; no parameter has changed then.
    """
    if not all(bool(value.to(parameter.dtype).isfinite().all()) for parameter, value in values.items()):
        raise BalanceError("the weights would overflow", where="beta", remedy="choose a smaller beta; the default is 2")
    for parameter, value in values.items():
        parameter.copy_(value)


def initial_norms(beta: float | Tensor, neurons: int) -> Tensor:
    """Return β for each neuron; raise a :class:`BalanceError` if it is not positive and finite or has another shape."""
    norms = torch.as_tensor(beta, dtype=torch.float64).cpu()
    if norms.shape not in ((), (neurons,)) or not bool(((norms > 0) & norms.isfinite()).all()):
        raise BalanceError(
            f"beta must be a positive, finite number, or a tensor of {neurons} such numbers",
            where=f"beta of shape {tuple(norms.shape)}",
        )
    return norms.expand(neurons)


def _rows_by_neuron(layer: Layer, values: ParameterValues) -> Tensor:
    """Return the feature weights as (averaged heads, neurons, input features)."""
    W = values[layer.roles.features[0]]
    if not layer.roles.width_out:
        raise BalanceError("the layer has no neurons", where=layer.name, remedy="give it at least one output channel")
    return W.reshape(-1, layer.roles.width_out, W.shape[1])


def _row_norms(layer: Layer, values: ParameterValues) -> Tensor:
    return _rows_by_neuron(layer, values).square().sum(dim=(0, 2))


def _input_columns(layer: Layer) -> Iterator[tuple[int, int]]:
    """Yield each layer that this one reads, with the first column of its block."""
    first = 0
    for producer, width in zip(layer.inputs, layer.input_widths, strict=False):  # the first has no inputs
        yield producer, first
        first += width


def _consumer_columns(layers: Sequence[Layer], producer: int) -> Iterator[tuple[nn.Parameter, slice]]:
    """Yield the feature weights that read one layer, with the columns that do."""
    width = layers[producer].roles.width_out
    for layer in layers:
        for index, first in _input_columns(layer):
            if index == producer:
                yield layer.roles.features[0], slice(first, first + width)


def _column_norms(layers: Sequence[Layer], producer: int, values: ParameterValues) -> Tensor:
    norms = [values[W][:, columns].square().sum(dim=0) for W, columns in _consumer_columns(layers, producer)]
    return torch.stack(norms).sum(dim=0)


def _scale_rows(layer: Layer, values: ParameterValues, desired: Tensor) -> None:
    """Scale each neuron's rows to the squared norms ``desired``."""
    factors = _scale_factors(desired, _row_norms(layer, values), layer, "row")
    rows = _rows_by_neuron(layer, values) * factors[:, None]
    values[layer.roles.features[0]] = rows.reshape(layer.roles.features[0].shape)


def _scale_columns(layers: Sequence[Layer], producer: int, values: ParameterValues, desired: Tensor) -> None:
    """Scale the columns that read one layer, taken together, to the squared norms ``desired``."""
    consumer = next(layer for layer in layers if producer in layer.inputs)
    factors = _scale_factors(desired, _column_norms(layers, producer, values), consumer, "column")
    for W, columns in _consumer_columns(layers, producer):
        values[W] = values[W].clone()
        values[W][:, columns] *= factors


def _scale_factors(desired: Tensor, norms: Tensor, layer: Layer, axis: str) -> Tensor:
    bad = (~(norms > 0) | ~norms.isfinite()).nonzero().flatten().tolist()
    if bad:
        raise BalanceError(
            f"{axis} {bad[0]} of the feature weights has norm {float(norms[bad[0]])} and cannot be rescaled",
            where=f"{layer.name} ({len(bad)} of {len(norms)} {axis}s)",
            remedy="initialise the weights first, with a scheme that gives every neuron non-zero weights",
        )
    return (desired / norms).sqrt()

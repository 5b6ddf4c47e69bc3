"""Binding of inputs: names of the positional arguments, and PyG data objects for models that take tensors."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from equipoise.errors import ForwardError
from equipoise.laws.subgraph import Inputs, is_data


def parameter_names(model: nn.Module) -> list[str]:
    """Names of the positional parameters of ``model.forward``."""
    signature: Any = getattr(model, "signature", None)  # torch_geometric.nn.Sequential
    if hasattr(signature, "param_dict"):
        return list(signature.param_dict)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, p in inspect.signature(model.forward).parameters.items() if p.kind in kinds]


def split_inputs(inputs: Any) -> Inputs:
    """Positional and keyword arguments: from a tuple, a dictionary of keyword arguments, or a single argument."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}


def positional_arguments(model: nn.Module, inputs: Any) -> tuple[Any, ...]:
    """Positional arguments of a model.

    Args:
        model: The model to call.
        inputs: A tuple of arguments, a dictionary of keyword arguments, a single argument, or a PyG data object.

    Returns:
        The arguments, with defaults in between.

    Raises:
        ForwardError: ``forward`` requires an argument that the inputs do not have, or has no such argument.
    """
    positional, keywords = bind_data(model, split_inputs(inputs))
    if not keywords:
        return positional
    try:
        bound = inspect.signature(model.forward).bind(*positional, **keywords)
    except TypeError as error:
        raise ForwardError(
            f"{type(model).__name__}.forward does not take these inputs: {error}",
            where=", ".join(keywords),
            remedy="pass inputs as a tuple, in the order of the arguments: inputs=(x, edge_index)",
        ) from error
    bound.apply_defaults()
    return bound.args


def bind_data(model: nn.Module, inputs: Inputs) -> Inputs:
    """Pass the attributes of a single PyG data object by name, if ``forward`` takes ``x, edge_index`` and not ``data``.

    Args:
        model: The model to call.
        inputs: Positional and keyword arguments.

    Returns:
        The arguments for the model.

    Raises:
        ForwardError: ``forward`` requires an argument that the data object does not have.
    """
    positional, keywords = inputs
    names = parameter_names(model)
    if len(positional) != 1 or not is_data(positional[0]) or not names:
        return inputs
    data, values = positional[0], dict(keywords)
    if _attribute(data, names[0]) is None:
        return inputs  # the model takes the object itself
    defaults = inspect.signature(model.forward).parameters
    for name in names:
        if name not in values and (value := _attribute(data, name)) is not None:
            values[name] = value
        elif name not in values and name in defaults and defaults[name].default is inspect.Parameter.empty:
            raise ForwardError(
                f"{type(model).__name__}.forward requires {name!r}, which {type(data).__name__} does not have",
                where=str(data),
                remedy=f"pass the inputs as you would call the model: discover(model, data.{names[0]}, …)",
            )
    if hasattr(model, "signature"):  # forward(*args)
        return tuple(values.pop(name) for name in names if name in values), values
    return (), values


def _attribute(data: Any, name: str) -> Any:
    """An attribute such as ``x`` or ``x_dict`` of a data object; None if it has none."""
    try:
        return getattr(data, name)
    except (AttributeError, KeyError):
        return None

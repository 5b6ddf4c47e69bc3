"""Validation of models and outputs, with errors that name the problem before any computation starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from equipoise.errors import ForwardError, ModelError, OutputError

OutputSelector = Callable[[Any], Any]


def check_module(model: object, allow_lazy: bool = False) -> None:
    """Validate that ``model`` is a module without lazy parameters.

    Args:
        model: The argument to validate.
        allow_lazy: Accept lazy parameters, of which no values are needed.

    Raises:
        ModelError: ``model`` is not a module, or has uninitialised lazy parameters.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"expected a torch.nn.Module, got {type(model).__name__}",
            remedy="pass the model as the first argument: discover(model, x, edge_index)",
        )
    lazy = [name for name, parameter in model.named_parameters() if is_lazy(parameter)]
    if lazy and not allow_lazy:
        raise ModelError(
            "the model has uninitialised lazy parameters",
            where=", ".join(lazy),
            remedy="run the model once on its inputs first: model(x, edge_index)",
        )


def check_values(model: nn.Module, inputs: Any) -> None:
    """Validate that parameters and inputs have values: inputs are not empty, and nothing is on the device ``meta``.

    Args:
        model: The model.
        inputs: Its arguments, nested in any way.

    Raises:
        ModelError: A parameter has no values.
        ForwardError: An input has no values, or all are empty.
    """
    if meta := [name for name, parameter in model.named_parameters() if parameter.is_meta]:
        raise ModelError(
            "the model has parameters without values, on the device meta",
            where=", ".join(meta),
            remedy="create it on the CPU, or use model.to_empty(device='cpu') and load its weights",
        )
    numbers = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    if numbers and not any(leaf.numel() for leaf in numbers):
        raise ForwardError(
            f"the inputs are empty ({describe_value(numbers[0])})",
            remedy="pass the features of at least one node or row",
        )
    for leaf in tree_leaves(inputs):
        if isinstance(leaf, Tensor) and leaf.is_meta:
            what = f"an input ({describe_value(leaf)}) is on the device meta and has no values"
            raise ForwardError(what, remedy="pass tensors with values")


def check_trainable(model: nn.Module) -> None:
    """Raise :class:`ModelError` if no parameter of ``model`` requires a gradient."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelError(
            f"{type(model).__name__} has no trainable parameters",
            remedy="pass a model with parameters whose requires_grad is True",
        )


def select_output(result: Any, output: OutputSelector | None) -> Tensor:
    """Extract the tensor to differentiate from a model's return value.

    Args:
        result: Return value of the model.
        output: Function that selects the tensor; by default the return value itself.

    Returns:
        The selected tensor.

    Raises:
        OutputError: The selection is not a tensor, not differentiable or not finite.
    """
    selected = result if output is None else output(result)
    if not isinstance(selected, Tensor):
        key = next(iter(selected), 0) if isinstance(selected, Mapping) else 0
        raise OutputError(
            f"the model returns {describe_value(selected)}, not a tensor",
            remedy=f"select the tensor to use: output=lambda out: out[{key!r}]",
        )
    if selected.is_complex():
        selected = torch.view_as_real(selected)
    if not selected.is_floating_point() or not selected.requires_grad:
        raise OutputError(
            f"the output ({describe_value(selected)}) does not depend on the parameters in a differentiable way",
            remedy="return scores, not predictions (no argmax, detach or torch.no_grad in forward)",
        )
    if not bool(torch.isfinite(selected).all()):
        raise OutputError(
            "the output is not finite at random parameters",
            where=describe_value(selected),
            remedy="check the inputs for NaN, and forward for a division by zero and for log or sqrt of a parameter",
        )
    return selected


def describe_value(value: Any) -> str:
    """Describe a value for an error message: a tensor by dtype and shape, anything else by its type."""
    if isinstance(value, Tensor) and not value.is_nested:
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def summarize_error(error: Exception) -> str:
    """Type of an exception and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).strip() or '(no message)').splitlines()[0]}"


def is_integer(value: object) -> bool:
    """Whether a value is an integer, of Python or NumPy; a boolean is not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether a value is a real number, of Python or NumPy; a boolean is not."""
    return isinstance(value, Real) and not isinstance(value, bool)

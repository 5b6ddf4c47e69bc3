"""Float64 copies of models and inputs, and a fixed random state to run them in."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from equipoise.errors import ForwardError, ModelError
from equipoise.laws.subgraph import Inputs, is_data
from equipoise.laws.validation import describe_value, summarize_error


def float64_copy(model: nn.Module, inputs: Inputs) -> nn.Module:
    """Copy a model in float64 or complex128; a call on the inputs initialises the lazy parameters of the copy.

    Args:
        model: The model, which does not change.
        inputs: Positional and keyword arguments of the model.

    Returns:
        The copy.

    Raises:
        ModelError: The model cannot be copied.
        ForwardError: The model has lazy parameters and does not run on the inputs.
    """
    copied = _deep_copy(model)
    if any(is_lazy(parameter) for parameter in copied.parameters()):
        try:
            with torch.no_grad(), fixed_random_state():
                copied(*inputs[0], **inputs[1])
        except Exception as error:  # user code may raise anything
            failure = wrong_inputs(model, inputs, error)
            raise failure from error
    copied._apply(to_float64)  # type: ignore[no-untyped-call]
    return copied


def forward_error(model: nn.Module, inputs: Inputs, error: Exception) -> ForwardError:
    """Build the error for a copy that fails: wrong inputs, or a model that does not support float64.

    Args:
        model: The user's model.
        inputs: The user's inputs, on which a copy of the model runs once to tell the two apart.
        error: What the float64 copy raised.

    Returns:
        The error to raise.
    """
    try:
        with torch.no_grad(), fixed_random_state():
            positional, keywords = copy.deepcopy(inputs)
            copy.deepcopy(model)(*positional, **keywords)
    except Exception:
        return wrong_inputs(model, inputs, error)
    return ForwardError(
        f"{type(model).__name__}.forward runs, but not as a float64 copy: {summarize_error(error)}",
        where=_describe(inputs),
        remedy="derive dtypes from the data (x.new_zeros, torch.zeros(..., dtype=x.dtype)) "
        "and register tensors as buffers (register_buffer)",
    )


def wrong_inputs(model: nn.Module, inputs: Inputs, error: Exception) -> ForwardError:
    """Build the error for a model that does not run on its inputs."""
    return ForwardError(
        f"{type(model).__name__}.forward does not run on these inputs: {summarize_error(error)}",
        where=_describe(inputs),
        remedy="pass the inputs as you would call the model: discover(model, *inputs)",
    )


def to_float64(leaf: Any) -> Any:
    """A copy in float64 or complex128; integers and other types as they are, PyG's data objects by attribute."""
    if is_data(leaf):
        return leaf.clone().apply(to_float64)
    if not isinstance(leaf, Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
        return leaf
    return leaf.detach().clone().to(torch.complex128 if leaf.is_complex() else torch.float64)


@contextmanager
def float64_default() -> Iterator[None]:
    """Let tensors that a forward pass creates without a dtype (``torch.ones(n)``) be float64 inside the context."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)


@contextmanager
def fixed_random_state() -> Iterator[None]:
    """Seed torch, NumPy and Python with 0 inside the context and restore the caller's random state afterwards."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (the legacy state is the global one)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            random.seed(0)
            np.random.seed(0)  # noqa: NPY002
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


def _deep_copy(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise ModelError(
            f"{type(model).__name__} cannot be copied: {summarize_error(error)}",
            remedy="make copy.deepcopy(model) work: store no non-leaf tensors or open handles in modules",
        ) from error


def _describe(inputs: Inputs) -> str:
    return ", ".join(describe_value(leaf) for leaf in (*inputs[0], *inputs[1].values()))

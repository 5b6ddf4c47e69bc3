"""What users get wrong about models, inputs and outputs, said by name before anything is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from equipoise.errors import ModelError, OutputError

Output = Callable[[Any], Any]


def check_module(model: object) -> None:
    """A named error for what is no network, or one whose parameters are not there yet."""
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"expected a torch.nn.Module, got {type(model).__name__}",
            remedy="pass the model itself, before anything else: discover(model, x, edge_index)",
        )
    lazy = [name for name, parameter in model.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise ModelError(
            "parameters are not initialised yet (lazy)",
            where=", ".join(lazy),
            remedy="run the model once on its inputs before: model(x, edge_index)",
        )


def check_trainable(model: nn.Module) -> None:
    """A named error for a network with nothing to train."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelError(
            f"{type(model).__name__} has no trainable parameters",
            remedy="pass a model with parameters whose requires_grad is True",
        )


def pick(result: Any, output: Output | None) -> Tensor:
    """The one tensor to differentiate, out of what the model returned."""
    picked = result if output is None else output(result)
    if not isinstance(picked, Tensor):
        raise OutputError(
            f"the model returns {describe(picked)}, not a tensor",
            remedy="say which tensor to use: output=lambda out: out[0]",
        )
    if not picked.is_floating_point() or not picked.requires_grad:
        raise OutputError(
            f"the output ({describe(picked)}) does not depend on the parameters in a differentiable way",
            remedy="return scores, not decisions (no argmax, no detach, no torch.no_grad in forward)",
        )
    if not bool(torch.isfinite(picked).all()):
        raise OutputError(
            "the output is not finite at random parameters",
            where=describe(picked),
            remedy="look for a division by zero, log or sqrt of a parameter in forward",
        )
    return picked


def describe(value: Any) -> str:
    """A value in a few words: a tensor by dtype and shape, anything else by its type."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or '(no message)').splitlines()[0]}"

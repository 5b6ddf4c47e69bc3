"""What a check compares: the model as built, other initialisations, rebalancing, skip connections, normalisation."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.errors import ChoiceError, EquipoiseError
from equipoise.init.schemes import SCHEMES, initialize_
from equipoise.training.capture import layers_to_record

DEFAULT = "default"
# In the order of their cost: the first that trains is the cheapest.
COSTS = {
    DEFAULT: "as built",
    "balanced": "one initialisation",
    "rebalanced": "a rescaling every 10 steps",
    "skip": "an addition per layer, and another function",
    "layer-norm": "a normalisation per layer, and another function",
}
STRUCTURAL = ("skip", "layer-norm")
REMEDIES = (DEFAULT, "rebalanced", *STRUCTURAL)


def check_remedy(name: str) -> None:
    """Raise :class:`ChoiceError` unless the name is a remedy or an initialisation scheme."""
    if name not in REMEDIES and name not in SCHEMES:
        raise ChoiceError("scheme", name, tuple(dict.fromkeys((*REMEDIES, *SCHEMES))))


def remedy_cost(name: str) -> int:
    """Rank a remedy by its cost: 0 for the model as built."""
    return list(COSTS).index(name if name in COSTS else "balanced")


def describe_remedy(name: str) -> str:
    """The start of a sentence on a remedy."""
    return {
        DEFAULT: "As built",
        "rebalanced": "Rebalanced every 10 steps",
        "skip": "With identity skips",
        "layer-norm": "With LayerNorm",
    }.get(name, f"With {name}")


def apply_remedy(model: nn.Module, name: str, seed: int) -> str:
    """Apply a remedy that does not act during training.

    Args:
        model: the model; modified in place.
        name: the remedy.
        seed: seed of an initialisation.

    Returns:
        Why the remedy does not apply; an empty string if it does.
    """
    if name in STRUCTURAL:
        return _add_hooks(model, name)
    if name in SCHEMES and name not in REMEDIES:
        try:
            initialize_(model, name, generator=torch.Generator().manual_seed(seed))
        except EquipoiseError as error:
            return f"this scheme cannot initialise the model: {error.what}"
    return ""


def _add_hooks(model: nn.Module, name: str) -> str:
    """Add the layer's input to its output, or normalise its output, for all layers but the last."""
    layers = layers_to_record(model)[:-1]
    if not layers:
        return "the model has no hidden layer"
    for layer in layers:
        layer.module.register_forward_hook(_add_input if name == "skip" else _normalise)
    return ""


def _add_input(_module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
    x = inputs[0] if inputs else None
    if not isinstance(x, Tensor) or not isinstance(output, Tensor) or x.shape != output.shape:
        return output
    return output + x


def _normalise(_module: nn.Module, _inputs: tuple[Any, ...], output: Any) -> Any:
    return F.layer_norm(output, output.shape[-1:]) if isinstance(output, Tensor) else output

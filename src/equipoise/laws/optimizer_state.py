"""How the state of an optimizer follows a rescaling of the parameters.

Gradients scale by 1/λ where parameters scale by λ. A running mean of gradients therefore scales by λ⁻¹ and one of
squared gradients by λ⁻². RMSprop's momentum accumulates g/√v, which does not change.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop

from equipoise.errors import LawError, OptimizerError
from equipoise.laws.law import Law

ADAM = {"exp_avg": -1, "exp_avg_sq": -2, "max_exp_avg_sq": -2}
# The exponent of λ for every entry of the state that has the parameter's shape.
STATE_EXPONENTS: dict[type[Optimizer], dict[str, int]] = {
    SGD: {"momentum_buffer": -1},
    Adam: ADAM,
    AdamW: ADAM,
    NAdam: ADAM,
    RAdam: ADAM,
    Adamax: {"exp_avg": -1, "exp_inf": -1},
    RMSprop: {"square_avg": -2, "grad_avg": -1, "momentum_buffer": 0},
    Adagrad: {"sum": -2},
}


def state_exponents(optimizer: Optimizer) -> dict[str, int]:
    """Look up how an optimizer's state scales.

    Args:
        optimizer: One of ``STATE_EXPONENTS``, or of a subclass.

    Returns:
        The exponent of λ by name of the entry.

    Raises:
        OptimizerError: The argument is not an optimizer, or its state has no known rescaling.

    Example:
        >>> import torch
        >>> state_exponents(torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9))
        {'momentum_buffer': -1}
    """
    if not isinstance(optimizer, Optimizer):
        raise OptimizerError(
            f"expected a torch.optim.Optimizer, got {type(optimizer).__name__}",
            remedy="pass the optimizer that trains the model, or None",
        )
    for base in type(optimizer).__mro__:
        if base in STATE_EXPONENTS:
            return STATE_EXPONENTS[base]
    names = ", ".join(known.__name__ for known in STATE_EXPONENTS)
    raise OptimizerError(
        f"the state of {type(optimizer).__name__} cannot be rescaled",
        remedy=f"use one of {names}, or rebalance before the first step and without optimizer=",
    )


def collect_state(
    optimizer: Optimizer, parameters: Sequence[nn.Parameter], laws: Sequence[Law]
) -> list[list[tuple[Tensor, int]]]:
    """Find the state of the parameters to rescale.

    Args:
        optimizer: The optimizer of the model.
        parameters: Parameters to rescale.
        laws: The laws that they belong to, for messages.

    Returns:
        For every parameter the tensors of its state, with their exponents of λ.

    Raises:
        LawError: The optimizer does not train a parameter of the laws.
        OptimizerError: The optimizer, or an entry of its state, has no known rescaling.
    """
    exponents = state_exponents(optimizer)
    optimized = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if not {id(parameter) for parameter in parameters} <= optimized:
        law, slot = next((law, slot) for law in laws for slot in law.slots if id(slot.parameter) not in optimized)
        raise LawError(
            f"{slot.name} is not among the optimizer's parameters",
            where=str(law),
            remedy="pass the optimizer that trains all parameters of this model; leave out laws of frozen parameters",
        )
    collected = []
    for parameter in parameters:
        entries = optimizer.state.get(parameter) or {}
        tensors = {
            name: value
            for name, value in entries.items()
            if isinstance(value, Tensor) and name != "step" and value.shape == parameter.shape
        }
        if unknown := [name for name in tensors if name not in exponents and tensors[name].dim()]:
            raise OptimizerError(
                f"the entry {unknown[0]!r} in the state of {type(optimizer).__name__} cannot be rescaled",
                remedy="rebalance before the first step and without optimizer=",
            )
        collected.append([(value, exponents[name]) for name, value in tensors.items() if exponents.get(name)])
    return collected

"""The layers of a model in execution order, each with the roles of its parameters."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch_geometric.nn import MessagePassing

from equipoise.errors import InitializationError
from equipoise.init.parameter_roles import ParameterRoles, roles_of, supported_layers
from equipoise.laws.validation import check_module

REGISTER = "@equipoise.init.parameter_roles.roles_of.register({kind})"


@dataclass(frozen=True)
class Layer:
    """One layer of a feed-forward chain.

    Attributes:
        name: its name in the model.
        roles: its parameters by role.
        inputs: indices of the layers whose outputs it reads, concatenated: the previous layer, or several layers with
            jumping knowledge; empty for the first layer.
        input_widths: number of features it reads from each of them; for the first layer, the input width.
    """

    name: str
    roles: ParameterRoles
    inputs: tuple[int, ...]
    input_widths: tuple[int, ...]


def layers_of(model: nn.Module) -> list[Layer]:
    """Return the layers of a model in execution order.

    The order comes from one forward pass ``model(x, edge_index)`` of a copy on a graph of three nodes. A model with
    another signature is read in registration order.

    Args:
        model: a chain of layers with known parameter roles.

    Returns:
        The layers, first to last.

    Raises:
        ModelError: if ``model`` is not a module, or has lazy parameters.
        InitializationError: if a layer has no registered roles, or the layers do not form a chain.
    """
    check_module(model)
    roles = _find_roles(model)
    _check_complete(model, roles)
    return _chain({name: roles[name] for name in _execution_order(model, roles)})


def _find_roles(model: nn.Module) -> dict[str, ParameterRoles]:
    """Map the outermost modules with registered roles to these, in registration order."""
    roles: dict[str, ParameterRoles] = {}
    for name, module in model.named_modules():
        if any(name.startswith(f"{outer}." if outer else "") for outer in roles):
            continue
        module_roles = roles_of(module)
        if module_roles is not None:
            roles[name] = module_roles
        elif isinstance(module, MessagePassing):
            kind = type(module).__name__
            raise InitializationError(
                f"the parameter roles of {kind} are unknown",
                where=name or type(model).__name__,
                remedy=f"register them: {REGISTER.format(kind=kind)} on a function that returns "
                "ParameterRoles(features=(conv.lin.weight,), attention=(conv.att,)); "
                f"supported layers: {', '.join(supported_layers())}",
            )
    return roles


def _check_complete(model: nn.Module, roles: dict[str, ParameterRoles]) -> None:
    if not roles:
        raise InitializationError(
            f"{type(model).__name__} has no layer that can be initialised",
            remedy=f"supported layers: {', '.join(supported_layers())}; "
            f"register others with {REGISTER.format(kind='MyConv')}",
        )
    known = {id(parameter) for layer_roles in roles.values() for parameter in layer_roles.all}
    unknown = [name for name, p in model.named_parameters() if id(p) not in known and sum(s > 1 for s in p.shape) > 1]
    if unknown:
        owners = sorted({type(model.get_submodule(name.rpartition(".")[0])).__name__ for name in unknown})
        raise InitializationError(
            f"weights belong to no supported layer ({', '.join(owners)})",
            where=", ".join(unknown),
            remedy=f"register the roles of their module: {REGISTER.format(kind=owners[0])} on a function that returns "
            "ParameterRoles(…)",
        )


def _execution_order(model: nn.Module, roles: dict[str, ParameterRoles]) -> list[str]:
    registered = list(roles)
    if len(registered) == 1:
        return registered
    for width in dict.fromkeys(layer_roles.width_in for layer_roles in roles.values()):
        calls = _trace_calls(model, registered, width)
        if set(calls) == set(registered):
            return list(dict.fromkeys(calls))
    return registered


def _trace_calls(model: nn.Module, names: list[str], width: int) -> list[str]:
    """Return the layers' names in the order a copy of the model calls them on three nodes; empty if the call fails."""
    calls: list[str] = []
    rng_state = torch.get_rng_state()
    try:
        traced = copy.deepcopy(model).cpu().eval()
        for name in names:
            traced.get_submodule(name).register_forward_pre_hook(lambda *_, name=name: calls.append(name))
        x = torch.ones(3, width, dtype=next(traced.parameters()).dtype)
        with torch.no_grad():
            traced(x, torch.tensor([[0, 1, 2], [1, 2, 0]]))
    except Exception:  # a forward with another signature may raise anything
        return []
    finally:
        torch.set_rng_state(rng_state)
    return calls


def _chain(roles: dict[str, ParameterRoles]) -> list[Layer]:
    """Infer each layer's inputs from the widths: the previous layer, or the last few layers concatenated."""
    layers: list[Layer] = []
    for index, (name, layer_roles) in enumerate(roles.items()):
        widths = [layer.roles.width_out for layer in layers]
        first = next((k for k in reversed(range(index)) if sum(widths[k:]) == layer_roles.width_in), None)
        if index and first is None:
            raise InitializationError(
                f"the layers do not form a chain: {name} reads {layer_roles.width_in} features, "
                f"{layers[-1].name} writes {widths[-1]}",
                where=" → ".join(roles),
                remedy="initialise each submodule that is a chain separately: initialize_(model.branch, scheme)",
            )
        inputs = tuple(range(first or 0, index))
        input_widths = tuple(widths[k] for k in inputs) or (layer_roles.width_in,)
        layers.append(Layer(name, layer_roles, inputs, input_widths))
    return layers

"""The layers of a model in execution order, and the roles of their parameters.

This is the only module that knows layer types.

``roles_of`` is a :func:`functools.singledispatch` function. To support a layer of your own, register a function that
returns its :class:`ParameterRoles`. For a convolution with a weight matrix ``w`` and an attention vector ``a``:

    >>> import torch
    >>> class MyConv(nn.Module):
    ...     def __init__(self) -> None:
    ...         super().__init__()
    ...         self.w, self.a = nn.Parameter(torch.ones(4, 3)), nn.Parameter(torch.ones(4))
    >>> @roles_of.register(MyConv)
    ... def _(conv: MyConv) -> ParameterRoles:
    ...     return ParameterRoles(features=(conv.w,), attention=(conv.a,))
    >>> roles_of(MyConv()).width_in, roles_of(MyConv()).width_out
    (3, 4)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any

import torch_geometric.nn as pyg
from torch import nn
from torch_geometric.nn import MessagePassing

from equipoise.errors import InitializationError
from equipoise.init.trace import Inputs, LayerTrace, example_inputs, trace_layers
from equipoise.laws.validation import check_module
from equipoise.nn.fused_gcn import ResidualGCNConv
from equipoise.nn.omega_gat import OmegaGATConv

Parameters = tuple[nn.Parameter, ...]


@dataclass(frozen=True)
class ParameterRoles:
    """The parameters of a layer, grouped by role.

    Attributes:
        features: weight matrices of shape (heads · channels, input features). The first transforms the features that
            are passed on (W_s); a second one only takes part in attention scores (W_t).
        attention: attention vectors.
        skip: matrices of learned skip connections, including the root weights of GraphSAGE.
        bias: biases.
        ones: parameters initialised to one, such as ω of ωGAT.
        query_key: matrices whose outputs are multiplied with each other to give attention scores. Zero would be a
            saddle point, since the gradient of each has the other as a factor; they are drawn small instead.
        heads: number of attention heads in the rows of ``features``.
        concat: whether heads are concatenated (True) or averaged (False).
    """

    features: Parameters
    attention: Parameters = ()
    skip: Parameters = ()
    bias: Parameters = ()
    ones: Parameters = ()
    query_key: Parameters = ()
    heads: int = 1
    concat: bool = True

    @property
    def width_in(self) -> int:
        """Number of input features."""
        return self.features[0].shape[1]

    @property
    def width_out(self) -> int:
        """Number of output neurons."""
        rows = self.features[0].shape[0]
        return rows if self.concat else rows // self.heads

    @property
    def all(self) -> Parameters:
        """Every parameter with a role."""
        return self.features + self.attention + self.skip + self.bias + self.ones + self.query_key


@singledispatch
def roles_of(layer: object) -> ParameterRoles | None:
    """Return the parameter roles of a layer, by its class or the nearest registered base class.

    Register further classes with ``@roles_of.register(MyConv)``.

    Args:
        layer: the layer.

    Returns:
        The roles, or None if no base class of the layer is registered.
    """
    del layer
    return None


def supported_layers() -> list[str]:
    """Return the class names of the registered layers, sorted."""
    return sorted({kind.__name__ for kind in roles_of.registry if kind is not object})


@roles_of.register(pyg.GATv2Conv)
def _gatv2_roles(conv: pyg.GATv2Conv) -> ParameterRoles:
    linears = dict.fromkeys((conv.lin_l, conv.lin_r))  # the same module twice if weights are shared
    return ParameterRoles(
        features=_weights(conv.lin_l, conv.lin_r),
        attention=_weights(conv.att),
        skip=_weights(conv.res, conv.lin_edge),
        bias=_biases(*linears, conv),
        heads=conv.heads,
        concat=conv.concat,
    )


@roles_of.register(OmegaGATConv)
def _omega_gat_roles(conv: OmegaGATConv) -> ParameterRoles:
    roles: ParameterRoles = _gatv2_roles(conv)
    return replace(roles, ones=(conv.omega,))


@roles_of.register(pyg.GATConv)
def _gat_roles(conv: pyg.GATConv) -> ParameterRoles:
    return ParameterRoles(
        features=_weights(*((conv.lin,) if conv.lin is not None else (conv.lin_src, conv.lin_dst))),
        attention=_weights(conv.att_src, conv.att_dst, conv.att_edge),
        skip=_weights(conv.res, conv.lin_edge),
        bias=_biases(conv),
        heads=conv.heads,
        concat=conv.concat,
    )


@roles_of.register(pyg.GCNConv)
def _gcn_roles(conv: pyg.GCNConv) -> ParameterRoles:
    return ParameterRoles(features=_weights(conv.lin), bias=_biases(conv))


@roles_of.register(ResidualGCNConv)
def _residual_gcn_roles(conv: ResidualGCNConv) -> ParameterRoles:
    return ParameterRoles(features=_weights(conv.lin), skip=_weights(conv.res), bias=_biases(conv))


@roles_of.register(pyg.SAGEConv)
def _sage_roles(conv: pyg.SAGEConv) -> ParameterRoles:
    root = conv.lin_r if conv.root_weight else None
    return ParameterRoles(features=_weights(conv.lin_l), skip=_weights(root), bias=_biases(conv.lin_l, root))


@roles_of.register(pyg.TransformerConv)
def _transformer_roles(conv: pyg.TransformerConv) -> ParameterRoles:
    skip = conv.lin_skip if conv.root_weight else None  # PyG creates the layer in either case
    return ParameterRoles(
        features=_weights(conv.lin_value),
        attention=_weights(conv.lin_beta),
        skip=_weights(skip, conv.lin_edge),
        bias=_biases(conv.lin_query, conv.lin_key, conv.lin_value, skip),
        query_key=_weights(conv.lin_query, conv.lin_key),
        heads=conv.heads,
        concat=conv.concat,
    )


@roles_of.register(pyg.Linear)
@roles_of.register(nn.Linear)
def _linear_roles(layer: Any) -> ParameterRoles:
    return ParameterRoles(features=_weights(layer), bias=_biases(layer))


def _weights(*modules_or_parameters: Any) -> Parameters:
    """Return the parameters that are not None, without duplicates; a linear layer stands for its weight."""
    weights = [getattr(item, "weight", item) for item in modules_or_parameters if item is not None]
    return tuple(dict.fromkeys(weights))


def _biases(*owners: Any) -> Parameters:
    return tuple(owner.bias for owner in owners if owner is not None and owner.bias is not None)


NOT_A_CHAIN = "initialise each submodule that is a chain separately: initialize_(model.branch, scheme)"
REGISTER = "@equipoise.init.layers.roles_of.register({kind})"


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


def layers_of(model: nn.Module, inputs: Inputs | None = None) -> list[Layer]:
    """Return the layers of a model in execution order.

    The order comes from one forward pass of a copy on ``inputs``, by default on a small random graph. A model that
    does not accept ``(x, edge_index)`` or ``(x,)`` is read in registration order.

    Args:
        model: a chain of layers with known parameter roles.
        inputs: positional arguments of the model.

    Returns:
        The layers, first to last.

    Raises:
        ModelError: if ``model`` is not a module, or has lazy parameters.
        InitializationError: if a layer has no registered roles, or the layers do not form a chain.
    """
    return traced_layers_of(model, inputs)[0]


def traced_layers_of(model: nn.Module, inputs: Inputs | None = None) -> tuple[list[Layer], LayerTrace | None]:
    """Return the layers as :func:`layers_of` does, and the forward pass that shows their order, if there is one."""
    check_module(model)
    roles = _find_roles(model)
    _check_complete(model, roles)
    trace = _trace(model, roles, inputs) if len(roles) > 1 else None
    return _chain({name: roles[name] for name in (trace.order if trace is not None else roles)}, trace), trace


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


def _trace(model: nn.Module, roles: dict[str, ParameterRoles], inputs: Inputs | None) -> LayerTrace | None:
    """Trace a forward pass that calls every layer, on the given inputs or else on a small graph."""
    widths = [layer_roles.width_in for layer_roles in roles.values()]
    for arguments in example_inputs(model, widths) if inputs is None else (inputs,):
        trace = trace_layers(model, list(roles), arguments)
        if trace is not None and set(trace.order) == set(roles):
            return trace
        if trace is None and inputs is not None:
            raise InitializationError(
                f"{type(model).__name__} does not run on these inputs",
                remedy="pass inputs as you would call the model: inputs=(x, edge_index)",
            )
    return None


def _chain(roles: dict[str, ParameterRoles], trace: LayerTrace | None) -> list[Layer]:
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
                remedy=NOT_A_CHAIN,
            )
        inputs = tuple(range(first or 0, index))
        unread = [layers[k].name for k in inputs if trace is not None and not trace.reads(name, layers[k].name)]
        if unread:  # such as a parallel branch of equal width
            raise InitializationError(
                f"the layers do not form a chain: {name} does not read the output of {unread[0]}",
                where=" → ".join(roles),
                remedy=NOT_A_CHAIN,
            )
        input_widths = tuple(widths[k] for k in inputs) or (layer_roles.width_in,)
        layers.append(Layer(name, layer_roles, inputs, input_widths))
    return layers

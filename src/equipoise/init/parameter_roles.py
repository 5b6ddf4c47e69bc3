"""The roles of a layer's parameters. This is the only module that knows layer types.

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

from equipoise.nn.fused_convs import ResidualGCNConv
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
        heads: number of attention heads in the rows of ``features``.
        concat: whether heads are concatenated (True) or averaged (False).
    """

    features: Parameters
    attention: Parameters = ()
    skip: Parameters = ()
    bias: Parameters = ()
    ones: Parameters = ()
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
        return self.features + self.attention + self.skip + self.bias + self.ones


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

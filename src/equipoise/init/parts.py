"""What a layer is made of: the one place that knows layer types.

A new layer takes one small function and one line. For a convolution with a matrix ``w`` and an attention vector ``a``:

    >>> import torch
    >>> class MyConv(nn.Module):
    ...     def __init__(self) -> None:
    ...         super().__init__()
    ...         self.w, self.a = nn.Parameter(torch.ones(4, 3)), nn.Parameter(torch.ones(4))
    >>> PARTS[MyConv] = lambda conv: Parts(features=(conv.w,), attention=(conv.a,))
    >>> parts_of(MyConv()).width_in, parts_of(MyConv()).width_out
    (3, 4)
    >>> del PARTS[MyConv]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch_geometric.nn as pyg
from torch import nn

from equipoise.nn.omega_gat import OmegaGATConv
from equipoise.nn.residual_gcn import ResidualGCNConv

Parameters = tuple[nn.Parameter, ...]


@dataclass(frozen=True)
class Parts:
    """The parameters of a layer by the role they play.

    Attributes:
        features: matrices (heads · channels, features in); the first makes the features that are passed on (W_s), a
            further one only takes part in attention scores (W_t).
        attention: vectors that score neighbours.
        skip: matrices of a learned skip, the root weights of GraphSAGE among them.
        bias: biases.
        ones: what starts at one: ω of ωGAT.
        heads: how many heads the rows of ``features`` belong to.
        concat: whether heads are concatenated, not averaged.
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
        """How many features the layer reads."""
        return self.features[0].shape[1]

    @property
    def width_out(self) -> int:
        """How many neurons it writes."""
        rows = self.features[0].shape[0]
        return rows if self.concat else rows // self.heads

    @property
    def all(self) -> Parameters:
        """Every parameter of the layer that has a role."""
        return self.features + self.attention + self.skip + self.bias + self.ones


def _some(*modules_or_parameters: Any) -> Parameters:
    """The parameters that are there: a linear layer stands for its weight."""
    found = [getattr(entry, "weight", entry) for entry in modules_or_parameters if entry is not None]
    return tuple(dict.fromkeys(found))


def _biases(*owners: Any) -> Parameters:
    return tuple(owner.bias for owner in owners if owner is not None and owner.bias is not None)


def gatv2(conv: pyg.GATv2Conv) -> Parts:
    linears = dict.fromkeys((conv.lin_l, conv.lin_r))  # one and the same where weights are shared
    return Parts(
        features=_some(conv.lin_l, conv.lin_r),
        attention=_some(conv.att),
        skip=_some(conv.res, conv.lin_edge),
        bias=_biases(*linears, conv),
        heads=conv.heads,
        concat=conv.concat,
    )


def omega_gat(conv: OmegaGATConv) -> Parts:
    parts = gatv2(conv)
    return Parts(**{**vars(parts), "ones": (conv.omega,)})


def gat(conv: pyg.GATConv) -> Parts:
    return Parts(
        features=_some(*((conv.lin,) if conv.lin is not None else (conv.lin_src, conv.lin_dst))),
        attention=_some(conv.att_src, conv.att_dst, conv.att_edge),
        skip=_some(conv.res, conv.lin_edge),
        bias=_biases(conv),
        heads=conv.heads,
        concat=conv.concat,
    )


def gcn(conv: pyg.GCNConv) -> Parts:
    return Parts(features=_some(conv.lin), bias=_biases(conv))


def residual_gcn(conv: ResidualGCNConv) -> Parts:
    return Parts(features=_some(conv.lin), skip=_some(conv.res), bias=_biases(conv))


def sage(conv: pyg.SAGEConv) -> Parts:
    root = conv.lin_r if conv.root_weight else None
    return Parts(features=_some(conv.lin_l), skip=_some(root), bias=_biases(conv.lin_l, root))


def linear(layer: Any) -> Parts:
    return Parts(features=_some(layer), bias=_biases(layer))


PARTS: dict[type[nn.Module], Callable[[Any], Parts]] = {
    pyg.GATv2Conv: gatv2,
    OmegaGATConv: omega_gat,
    pyg.GATConv: gat,
    pyg.GCNConv: gcn,
    ResidualGCNConv: residual_gcn,
    pyg.SAGEConv: sage,
    pyg.Linear: linear,
    nn.Linear: linear,
}


def parts_of(layer: nn.Module) -> Parts | None:
    """The parts of a layer, by its class or the nearest one it derives from; None if nobody has named them."""
    named = next((PARTS[kind] for kind in type(layer).__mro__ if kind in PARTS), None)
    return None if named is None else named(layer)

"""Swap the stock layers of any model for fused ones."""

from __future__ import annotations

from torch import nn
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv

from equipoise.laws.checks import check_module
from equipoise.nn.gat import FusedGATConv
from equipoise.nn.gatv2 import FusedGATv2Conv
from equipoise.nn.gcn import FusedGCNConv

FUSED: dict[type[nn.Module], type[nn.Module]] = {
    GATv2Conv: FusedGATv2Conv,
    GATConv: FusedGATConv,
    GCNConv: FusedGCNConv,
}


def fuse_(model: nn.Module) -> nn.Module:
    """Give every stock ``GATv2Conv``, ``GATConv`` and ``GCNConv`` of a model its fused form, in place, and return it.

    The layers stay the same objects, with the same parameters, hooks and ``state_dict``; an optimizer stays valid.
    Layers of other classes, subclasses of the three among them, are left alone.

    Example:
        >>> from torch_geometric.nn import GAT
        >>> fuse_(GAT(8, 16, num_layers=2, out_channels=3, v2=True)).convs[0]
        FusedGATv2Conv(8, 16, heads=1)
    """
    check_module(model)
    for module in model.modules():
        if type(module) in FUSED:
            module.__class__ = FUSED[type(module)]
    return model

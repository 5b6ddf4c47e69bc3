"""The attention of a layer for some of its targets, computed again from what it read.

Fused layers do not show their coefficients, and PyG's own path for a whole graph costs as much as an epoch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GATv2Conv

from equipoise.nn.gat import FusedGATConv
from equipoise.nn.gatv2 import FusedGATv2Conv
from equipoise.nn.omega_gat import OmegaGATConv


def attention_scores(
    conv: nn.Module, x: Tensor, edge_index: Tensor, targets: int | None = None
) -> tuple[Tensor, Tensor] | None:
    """Scores (edges, heads) before the softmax, and the target of each edge; None if the layer cannot tell.

    Self-loops are added where the layer adds them, so that there may be more edges than were given.

    Args:
        conv: GAT, GATv2 or any other layer of PyG's that can return its attention weights.
        x: what the layer read, (nodes, features).
        edge_index: (2, edges) without self-loops, from source to target.
        targets: how many nodes, the first ones, are of interest; all.
    """
    if type(conv) in SCORES:
        if conv.add_self_loops:
            edge_index = _with_loops(edge_index, len(x) if targets is None else targets)
        return SCORES[type(conv)](conv, x, *edge_index), edge_index[1]
    if "return_attention_weights" not in inspect.signature(conv.forward).parameters:
        return None
    mode = conv.training
    try:
        _, (edges, alpha) = conv.eval()(x, edge_index, return_attention_weights=True)
    finally:
        conv.train(mode)
    return alpha.reshape(edges.shape[1], -1).log(), edges[1]


def _with_loops(edge_index: Tensor, nodes: int) -> Tensor:
    """The edges, then a self-loop for each of the first nodes."""
    return torch.cat([edge_index, torch.arange(nodes, device=edge_index.device).expand(2, -1)], dim=1)


def _gatv2(conv: Any, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
    s = conv.lin_l(x)
    t = s if conv.share_weights else conv.lin_r(x)
    summed = F.leaky_relu(s.index_select(0, source) + t.index_select(0, target), conv.negative_slope)
    score: Tensor = (summed.view(-1, conv.heads, conv.out_channels) * conv.att).sum(dim=-1)
    return score


def _gat(conv: Any, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
    linear = conv.lin if conv.lin is not None else conv.lin_src
    z = linear(x).view(-1, conv.heads, conv.out_channels)
    p, q = ((z * a).sum(dim=-1) for a in (conv.att_src, conv.att_dst))
    return F.leaky_relu(p[source] + q[target], conv.negative_slope)


# Exact classes: a subclass may score otherwise, and then PyG's own path is asked, at four times the time.
SCORES: dict[type[nn.Module], Callable[[Any, Tensor, Tensor, Tensor], Tensor]] = {
    GATv2Conv: _gatv2,
    FusedGATv2Conv: _gatv2,
    OmegaGATConv: _gatv2,
    GATConv: _gat,
    FusedGATConv: _gat,
}

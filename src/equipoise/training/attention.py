"""Attention scores and entropy of a layer on a sample of neighbourhoods, recomputed from the layer's input.

A sample of nodes with all of their neighbours suffices to see whether neighbours have become similar. Fused layers do
not return their attention coefficients, and PyG's path for a whole graph costs as much as an epoch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GATv2Conv
from torch_geometric.utils import softmax

from equipoise.nn.fused_convs import FusedGATConv, FusedGATv2Conv
from equipoise.nn.omega_gat import OmegaGATConv

SAMPLE_SIZE = 48  # nodes whose neighbourhoods represent the whole graph


@dataclass(frozen=True)
class Neighbourhoods:
    """The subgraph of some evenly spaced nodes and all of their neighbours.

    Attributes:
        nodes: the sampled nodes, followed by their other neighbours.
        num_targets: number of sampled nodes.
        edge_index: (2, edges) from neighbour to sampled node, as positions in ``nodes``; no self-loops.
    """

    nodes: Tensor
    num_targets: int
    edge_index: Tensor

    @classmethod
    def sample(cls, edge_index: Tensor, num_nodes: int, max_targets: int = SAMPLE_SIZE) -> Neighbourhoods:
        """Sample at most ``max_targets`` of the nodes of a graph.

        Args:
            edge_index: (2, edges) from source to target.
            num_nodes: number of nodes of the graph.
            max_targets: maximum number of sampled nodes.

        Returns:
            The neighbourhoods.
        """
        step = max(1, -(-num_nodes // max_targets))
        sampled = torch.arange(0, num_nodes, step, device=edge_index.device)
        position = torch.full((num_nodes,), -1, dtype=torch.long, device=edge_index.device)
        position[sampled] = torch.arange(len(sampled), device=edge_index.device)
        source, target = edge_index[:, (position[edge_index[1]] >= 0) & (edge_index[0] != edge_index[1])]
        others = source[position[source] < 0].unique()
        position[others] = torch.arange(len(sampled), len(sampled) + len(others), device=edge_index.device)
        return cls(torch.cat([sampled, others]), len(sampled), torch.stack([position[source], position[target]]))


def attention_scores(
    conv: nn.Module, x: Tensor, edge_index: Tensor, num_targets: int | None = None
) -> tuple[Tensor, Tensor] | None:
    """Compute a layer's attention scores before the softmax.

    Args:
        conv: GAT, GATv2 or any other PyG layer that can return its attention weights.
        x: input of the layer, (nodes, features).
        edge_index: (2, edges) from source to target, without self-loops.
        num_targets: number of leading nodes that get a self-loop, if the layer adds self-loops; all by default.

    Returns:
        Scores (edges, heads) and the target of each edge, including added self-loops; None if the layer cannot return
        attention weights.
    """
    if type(conv) in SCORE_FUNCTIONS:
        if conv.add_self_loops:
            edge_index = _add_self_loops(edge_index, len(x) if num_targets is None else num_targets)
        return SCORE_FUNCTIONS[type(conv)](conv, x, *edge_index), edge_index[1]
    if "return_attention_weights" not in inspect.signature(conv.forward).parameters:
        return None
    training = conv.training
    try:
        _, (edges, alpha) = conv.eval()(x, edge_index, return_attention_weights=True)
    finally:
        conv.train(training)
    return alpha.reshape(edges.shape[1], -1).log(), edges[1]


def _add_self_loops(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Append a self-loop for each of the first ``num_nodes`` nodes."""
    return torch.cat([edge_index, torch.arange(num_nodes, device=edge_index.device).expand(2, -1)], dim=1)


def _gatv2_scores(conv: Any, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
    s = conv.lin_l(x)
    t = s if conv.share_weights else conv.lin_r(x)
    hidden = F.leaky_relu(s.index_select(0, source) + t.index_select(0, target), conv.negative_slope)
    scores: Tensor = (hidden.view(-1, conv.heads, conv.out_channels) * conv.att).sum(dim=-1)
    return scores


def _gat_scores(conv: Any, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
    linear = conv.lin if conv.lin is not None else conv.lin_src
    z = linear(x).view(-1, conv.heads, conv.out_channels)
    p, q = ((z * a).sum(dim=-1) for a in (conv.att_src, conv.att_dst))
    return F.leaky_relu(p[source] + q[target], conv.negative_slope)


# Exact classes: a subclass may compute other scores, so PyG's own path is called for it, which takes four times as
# long.
SCORE_FUNCTIONS: dict[type[nn.Module], Callable[[Any, Tensor, Tensor, Tensor], Tensor]] = {
    GATv2Conv: _gatv2_scores,
    FusedGATv2Conv: _gatv2_scores,
    OmegaGATConv: _gatv2_scores,
    GATConv: _gat_scores,
    FusedGATConv: _gat_scores,
}


def attention_entropy(scores: Tensor, target: Tensor, num_nodes: int) -> Tensor:
    """Compute the entropy of each node's attention over its neighbours, relative to its maximum.

    −Σ_j α_ij log α_ij / log |N(i)| of node i is 1 for uniform attention and 0 for attention to one neighbour.

    Args:
        scores: (edges, heads) before the softmax over the edges of a target, or logarithms of coefficients.
        target: (edges,), the target of each edge.
        num_nodes: number of nodes.

    Returns:
        For every head the mean over the nodes with at least two neighbours; NaN if there are none.

    Example:
        >>> alpha = torch.tensor([[0.5], [0.5], [1.0], [0.0]])
        >>> attention_entropy(alpha.log(), torch.tensor([0, 0, 1, 1]), 2)
        tensor([0.5000])
    """
    alpha: Tensor = softmax(scores, target, num_nodes=num_nodes)
    entropy = alpha.new_zeros(num_nodes, alpha.shape[1]).index_add_(0, target, -torch.xlogy(alpha, alpha))
    degree = torch.bincount(target, minlength=num_nodes)
    mask = degree > 1
    return (entropy[mask] / degree[mask].to(entropy.dtype).log()[:, None]).mean(dim=0)

r"""How alike nodes have become: pure functions of representations and attention coefficients.

Deep graph networks may *over-smooth*: neighbours' representations become equal, and nothing can tell nodes apart. Two
numbers show it, the second whatever the scale of the representations; a third shows whether attention chooses at all.

    Dirichlet energy        (1/|V|) Σ_i Σ_{j∈N(i)} ‖h_i − h_j‖²                        (Rusch et al., 2023)
    mean average distance   mean over i of the mean over j∈N(i) of 1 − cos(h_i, h_j)    (Chen et al., 2020)
    attention entropy       mean over i of −Σ_j α_ij log α_ij / log |N(i)|              1: uniform, 0: one neighbour
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.utils import softmax


def dirichlet_energy(h: Tensor, edge_index: Tensor, targets: int | None = None) -> Tensor:
    """The squared distances between neighbours, summed over a node's neighbours, averaged over nodes.

    Args:
        h: (nodes, channels), or several of them as (…, nodes, channels): one number each.
        edge_index: (2, edges), from source to target.
        targets: how many nodes to average over; all.

    Example:
        >>> float(dirichlet_energy(torch.tensor([[0.0], [3.0]]), torch.tensor([[0], [1]])))
        4.5
    """
    return _squared_distances(h, edge_index).sum(dim=-1) / (targets or max(h.shape[-2], 1))


def mean_average_distance(h: Tensor, edge_index: Tensor) -> Tensor:
    """The cosine distance to a node's neighbours, averaged over them, then over the nodes that have any.

    Computed as half the squared distance of unit vectors, so that two nodes without any signal are alike, too.

    Args:
        h: (nodes, channels), or several of them as (…, nodes, channels): one number each.
        edge_index: (2, edges), from source to target.

    Example:
        >>> h = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 3.0]])
        >>> float(mean_average_distance(h, torch.tensor([[1, 1], [0, 2]])))
        0.5
    """
    neighbours = torch.bincount(edge_index[1], minlength=h.shape[-2])
    share = neighbours[edge_index[1]].to(h.dtype).reciprocal()  # of an edge in its target's mean
    distances = 0.5 * _squared_distances(F.normalize(h, dim=-1), edge_index)
    return (distances @ share) / (neighbours > 0).sum().clamp_min(1)


def attention_entropy(scores: Tensor, target: Tensor, nodes: int) -> Tensor:
    """The entropy of a node's attention over its neighbours, as a share of the largest possible one.

    Args:
        scores: (edges, heads) before the softmax over the edges of a target; logarithms of coefficients do as well.
        target: (edges,), the target of each edge.
        nodes: how many nodes there are.

    Returns:
        For every head the mean over the nodes with at least two neighbours; not a number where there is none.

    Example:
        >>> alpha = torch.tensor([[0.5], [0.5], [1.0], [0.0]])
        >>> attention_entropy(alpha.log(), torch.tensor([0, 0, 1, 1]), 2)
        tensor([0.5000])
    """
    alpha: Tensor = softmax(scores, target, num_nodes=nodes)
    entropy = alpha.new_zeros(nodes, alpha.shape[1]).index_add_(0, target, -torch.xlogy(alpha, alpha))
    neighbours = torch.bincount(target, minlength=nodes)
    several = neighbours > 1
    return (entropy[several] / neighbours[several].to(entropy.dtype).log()[:, None]).mean(dim=0)


def _squared_distances(h: Tensor, edge_index: Tensor) -> Tensor:
    """‖h_i − h_j‖² of every edge."""
    return (h.index_select(-2, edge_index[0]) - h.index_select(-2, edge_index[1])).square().sum(dim=-1)

r"""How alike nodes have become: pure functions of representations and attention coefficients.

Deep graph networks may *over-smooth*: neighbours' representations become equal, and nothing can tell nodes apart. Two
numbers show it, the second whatever the scale of the representations; a third shows whether attention chooses at all.

    Dirichlet energy        (1/|V|) Σ_i Σ_{j∈N(i)} ‖h_i − h_j‖²                        (Rusch et al., 2023)
    mean average distance   mean over i of the mean over j∈N(i) of 1 − cos(h_i, h_j)    (Chen et al., 2020)
    attention entropy       mean over i of −Σ_j α_ij log α_ij / log |N(i)|              1: uniform, 0: one neighbour
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.utils import softmax

from equipoise.kernels.smoothness import neighbour_distances
from equipoise.train.quantities import array


class Smoothness(NamedTuple):
    """How much neighbours differ: Dirichlet energy, and mean average distance."""

    dirichlet: float
    mad: float


def smoothness(h: Tensor, edge_index: Tensor, targets: int | None = None) -> Smoothness:
    """Both numbers of one representation.

    The cosine distance is half the squared distance of unit vectors, so two nodes without any signal are alike, too.

    Args:
        h: (nodes, channels).
        edge_index: (2, edges), from neighbour to node.
        targets: how many nodes the energy is averaged over; all. The distance is averaged over nodes with neighbours.

    Example:
        >>> smoothness(torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 3.0]]), torch.tensor([[1, 1], [0, 2]]))
        Smoothness(dirichlet=2.0, mad=0.5)
    """
    source, target = edge_index.cpu().numpy()
    energy, distance = neighbour_distances(np.ascontiguousarray(array(h)), source, target)
    return Smoothness(energy / (targets or max(len(h), 1)), distance)


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

"""A few nodes of a graph with all of their neighbours: enough to see whether neighbours have become alike."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SAMPLE = 48  # nodes whose neighbourhoods stand for those of the whole graph


@dataclass(frozen=True)
class Neighbourhoods:
    """Some nodes of a graph, evenly spaced, with all of their neighbours.

    Attributes:
        nodes: the nodes themselves, then their other neighbours.
        targets: how many of ``nodes`` are the former.
        edge_index: (2, edges) from neighbour to node, numbered by their places in ``nodes``; no self-loops.
    """

    nodes: Tensor
    targets: int
    edge_index: Tensor

    @classmethod
    def of(cls, edge_index: Tensor, count: int, most: int = SAMPLE) -> Neighbourhoods:
        """``most`` of the ``count`` nodes of a graph, or all where there are fewer."""
        step = max(1, -(-count // most))
        chosen = torch.arange(0, count, step, device=edge_index.device)
        place = torch.full((count,), -1, dtype=torch.long, device=edge_index.device)
        place[chosen] = torch.arange(len(chosen), device=edge_index.device)
        source, target = edge_index[:, (place[edge_index[1]] >= 0) & (edge_index[0] != edge_index[1])]
        others = source[place[source] < 0].unique()
        place[others] = torch.arange(len(chosen), len(chosen) + len(others), device=edge_index.device)
        return cls(torch.cat([chosen, others]), len(chosen), torch.stack([place[source], place[target]]))

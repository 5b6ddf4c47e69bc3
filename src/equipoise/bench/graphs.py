"""The graph of a case: a data set, or a random one of a given size."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data

from equipoise.bench.cases import Case
from equipoise.data.load import load_dataset

CLASSES = 40


def graph_of(case: Case) -> Data:
    """Its data set, or a random graph of its size."""
    if case.dataset:
        return load_dataset(case.dataset)
    return random_graph(case.nodes, case.edges, case.features, symmetric=case.symmetric)


def random_graph(nodes: int, edges: int, features: int, *, symmetric: bool = True, seed: int = 0) -> Data:
    """A graph with few large and many small neighbourhoods, dense features and labels without a meaning.

    An end of an edge is node π(⌊n·u²⌋) for uniform u and a random order π: degrees fall with the square root of the
    rank, a power law with exponent 3, and neighbours lie far apart in memory, as in real graphs. Half of the nodes
    train, so that next to nothing of the backward pass can be left out.

    Example:
        >>> random_graph(100, 400, 8).edge_index.shape
        torch.Size([2, 400])
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(nodes, generator=generator)

    def ends(count: int) -> Tensor:
        return order[torch.rand(count, generator=generator, dtype=torch.float64).square_().mul_(nodes).long()]

    if symmetric:
        one_way = torch.stack([ends(edges // 2), ends(edges // 2)])
        edge_index = torch.cat([one_way, one_way.flip(0)], dim=1)
    else:
        edge_index = torch.stack([ends(edges), ends(edges)])
    part = torch.randint(4, (nodes,), generator=generator)
    return Data(
        x=torch.randn(nodes, features, generator=generator),
        y=torch.randint(CLASSES, (nodes,), generator=generator),
        edge_index=edge_index,
        train_mask=part < 2,
        val_mask=part == 2,
        test_mask=part == 3,
        classes=CLASSES,
    )

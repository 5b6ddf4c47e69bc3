"""The laws of a graph network, found on a few nodes: they do not depend on the data."""

from __future__ import annotations

import torch
from torch import nn

from equipoise.laws.discover import discover
from equipoise.laws.law import Law

NODES = 24


def laws_on_small_graph(model: nn.Module, features: int) -> list[Law]:
    """What :func:`~equipoise.discover` finds on a small random graph, always the same one.

    Example:
        >>> from equipoise import Stack
        >>> print(laws_on_small_graph(Stack("gcn", [6, 4, 3]), 6)[0])
        convs.0.lin.weight[i,:] = convs.1.lin.weight[:,i]   (4 neurons)
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(NODES, features, generator=generator)
    return discover(model, x, torch.randint(0, NODES, (2, 3 * NODES), generator=generator))

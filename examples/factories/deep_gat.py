"""PyG's GATv2, for the commands that take a factory.

Depth check of ``build`` on Cora::

    equipoise inspect examples/factories/deep_gat.py:build --dataset cora --figure depth.png

Laws and imbalance of one network::

    equipoise inspect examples/factories/deep_gat.py:three_layers
"""

import torch
from torch import Tensor, nn
from torch_geometric.nn import GAT


def build(depth: int) -> nn.Module:
    """Build the network at a given depth, with the 1433 features and 7 classes of Cora.

    Args:
        depth: number of layers.

    Returns:
        The model, as PyG initialises it.
    """
    return GAT(1433, 64, num_layers=depth, out_channels=7, v2=True, act="relu")


def three_layers() -> tuple[nn.Module, Tensor, Tensor]:
    """Build a network of three layers and a small random graph to run it on.

    Returns:
        The model and the inputs that it is called with, ``x`` and ``edge_index``.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(20, 100, generator=generator)
    edge_index = torch.randint(0, 20, (2, 60), generator=generator)
    torch.manual_seed(0)
    return GAT(100, 64, num_layers=3, out_channels=7, v2=True, act="relu"), x, edge_index

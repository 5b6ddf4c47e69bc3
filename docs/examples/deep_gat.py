"""PyG's own GATv2 at any depth, for: equipoise inspect docs/examples/deep_gat.py:build --dataset cora."""

from torch import nn
from torch_geometric.nn import GAT


def build(depth: int) -> nn.Module:
    """1433 features and 7 classes are Cora's."""
    return GAT(1433, 64, num_layers=depth, out_channels=7, v2=True, act="relu")

"""The same network in DGL, where it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from equipoise.bench.contestants import Forward

DGL = "DGL"


def dgl_is_here() -> bool:
    """Whether DGL can be imported; one made for another torch is installed, but cannot."""
    try:
        import dgl  # noqa: F401
    except (ImportError, OSError):
        return False
    return True


def dgl_variant(data: Data, widths: Sequence[int], state: dict[str, Tensor]) -> tuple[nn.Module, Forward]:
    """``dgl.nn.GATv2Conv`` layers with a ReLU between them and the weights of a stack; self-loops added beforehand."""
    import dgl
    from dgl.nn import GATv2Conv

    source, target = data.edge_index
    graph = dgl.add_self_loop(dgl.remove_self_loop(dgl.graph((source, target), num_nodes=data.num_nodes)))
    convs = nn.ModuleList()
    for layer, (fan_in, fan_out) in enumerate(pairwise(widths)):
        conv: Any = GATv2Conv(fan_in, fan_out, num_heads=1, bias=False, share_weights=True)
        with torch.no_grad():
            conv.fc_src.weight.copy_(state[f"convs.{layer}.lin_l.weight"])
            conv.attn.copy_(state[f"convs.{layer}.att"])
        convs.append(conv)

    def forward() -> Tensor:
        h = data.x
        for conv in convs[:-1]:
            h = conv(graph, h).flatten(1).relu()
        scores: Tensor = convs[-1](graph, h).flatten(1)
        return scores

    return convs, forward

"""The kernels' twins in plain torch, slow and obvious: what the tests hold the kernels against."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.kernels.csr import Graph


def gatv2_attention(graph: Graph, source: Tensor, target: Tensor, att: Tensor, slope: float, kept: Tensor) -> Tensor:
    """Σ_u α_uv source[u] with α = softmax_u a · LeakyReLU(source[u] + target[v])."""
    src, dst = _ends(graph)
    score = (att * F.leaky_relu(source[src] + target[dst], slope)).sum(dim=-1)
    return _attend(graph, score, source, kept)


def gat_attention(graph: Graph, z: Tensor, p: Tensor, q: Tensor, slope: float, kept: Tensor) -> Tensor:
    """Σ_u α_uv z[u] with α = softmax_u LeakyReLU(p[u] + q[v])."""
    src, dst = _ends(graph)
    return _attend(graph, F.leaky_relu(p[src] + q[dst], slope), z, kept)


def weighted_sum(graph: Graph, weight: Tensor, z: Tensor) -> Tensor:
    """Σ_u weight_uv z[u]."""
    src, dst = _ends(graph)
    return z.new_zeros(graph.nodes, z.shape[1]).index_add(0, dst, weight[:, None] * z[src])


def _ends(graph: Graph) -> tuple[Tensor, Tensor]:
    counts = torch.from_numpy(graph.ptr).diff()
    return torch.from_numpy(graph.src).long(), torch.arange(graph.nodes).repeat_interleave(counts)


def _attend(graph: Graph, score: Tensor, z: Tensor, kept: Tensor) -> Tensor:
    out = []
    for v in range(graph.nodes):
        edges = slice(int(graph.ptr[v]), int(graph.ptr[v + 1]))
        alpha = score[edges].softmax(dim=0)
        if len(kept):
            alpha = alpha * kept[edges]
        neighbours = z[torch.from_numpy(graph.src[edges]).long()]
        out.append((alpha[:, :, None] * neighbours).sum(dim=0))
    return torch.stack(out)

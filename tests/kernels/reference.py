"""Reference implementations of the kernels in plain torch: slow, but obviously correct."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.kernels.csr import CSRGraph


def gatv2_attention(
    graph: CSRGraph, source: Tensor, target: Tensor, att: Tensor, slope: float, dropout_mask: Tensor
) -> Tensor:
    """Σ_u α_uv source[u] with α_uv = softmax_u a · LeakyReLU(source[u] + target[v])."""
    src, dst = _edge_index(graph)
    score = (att * F.leaky_relu(source[src] + target[dst], slope)).sum(dim=-1)
    return _softmax_and_sum(graph, score, source, dropout_mask)


def gat_attention(graph: CSRGraph, z: Tensor, p: Tensor, q: Tensor, slope: float, dropout_mask: Tensor) -> Tensor:
    """Σ_u α_uv z[u] with α_uv = softmax_u LeakyReLU(p[u] + q[v])."""
    src, dst = _edge_index(graph)
    return _softmax_and_sum(graph, F.leaky_relu(p[src] + q[dst], slope), z, dropout_mask)


def weighted_sum(graph: CSRGraph, weight: Tensor, z: Tensor) -> Tensor:
    """Σ_u weight_uv z[u]."""
    src, dst = _edge_index(graph)
    return z.new_zeros(graph.targets, z.shape[1]).index_add(0, dst, weight[:, None] * z[src])


def _edge_index(graph: CSRGraph) -> tuple[Tensor, Tensor]:
    counts = torch.from_numpy(graph.ptr).diff()
    return torch.from_numpy(graph.src).long(), torch.arange(graph.targets).repeat_interleave(counts)


def _softmax_and_sum(graph: CSRGraph, score: Tensor, z: Tensor, dropout_mask: Tensor) -> Tensor:
    out = []
    for v in range(graph.targets):
        edges = slice(int(graph.ptr[v]), int(graph.ptr[v + 1]))
        alpha = score[edges].softmax(dim=0)
        if len(dropout_mask):
            alpha = alpha * dropout_mask[edges]
        neighbours = z[torch.from_numpy(graph.src[edges]).long()]
        out.append((alpha[:, :, None] * neighbours).sum(dim=0))
    return torch.stack(out)

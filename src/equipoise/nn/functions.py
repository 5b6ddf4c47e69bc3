"""The kernels as differentiable functions of tensors."""

from __future__ import annotations

import sys
import threading
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from equipoise.kernels import attention as kernels
from equipoise.kernels.csr import Graph, build_graph
from equipoise.kernels.threads import parts_of, run


def gatv2_attention(graph: Graph, source: Tensor, target: Tensor, att: Tensor, slope: float, dropout: float) -> Tensor:
    """Σ_u α_uv source[u] with α = softmax_u a · LeakyReLU(source[u] + target[v]); (nodes, heads, channels) each."""
    compile_for("gatv2", source.dtype)
    out: Tensor = _GATv2.apply(graph, source, target, att, slope, _kept(graph, source, dropout))  # type: ignore[no-untyped-call]
    return out


def gat_attention(graph: Graph, z: Tensor, p: Tensor, q: Tensor, slope: float, dropout: float) -> Tensor:
    """Σ_u α_uv z[u] with α = softmax_u LeakyReLU(p[u] + q[v]); z (nodes, heads, channels), p and q (nodes, heads)."""
    compile_for("gat", z.dtype)
    out: Tensor = _GAT.apply(graph, z, p, q, slope, _kept(graph, z, dropout))  # type: ignore[no-untyped-call]
    return out


def weighted_sum(graph: Graph, weight: Tensor, z: Tensor) -> Tensor:
    """Σ_u weight_uv z[u]; z is (nodes, channels), weights are in the graph's order by target and get no gradient."""
    compile_for("gcn", z.dtype)
    out: Tensor = _WeightedSum.apply(graph, weight, z)  # type: ignore[no-untyped-call]
    return out


@cache
def compile_for(kind: str, dtype: torch.dtype) -> None:
    """Compile the kernels of one kind of layer, or load them; says so if that takes its time, once on a machine."""
    message = "equipoise: compiling kernels for this machine, once …"
    notice = threading.Timer(1.0, lambda: print(message, file=sys.stderr, flush=True))
    notice.daemon = True
    notice.start()
    try:
        graph = build_graph(torch.zeros(2, 0, dtype=torch.long), nodes=2, self_loops=True)
        z, p, one = (torch.ones(shape, dtype=dtype, requires_grad=True) for shape in ((2, 1, 2), (2, 1), (1, 2)))
        with torch.enable_grad():
            out: Tensor = {
                "gatv2": lambda: _GATv2.apply(graph, z, z, one, 0.2, _kept(graph, z, 0.0)),  # type: ignore[no-untyped-call]
                "gat": lambda: _GAT.apply(graph, z, p, p, 0.2, _kept(graph, z, 0.0)),  # type: ignore[no-untyped-call]
                "gcn": lambda: _WeightedSum.apply(graph, one.detach()[0], z[:, 0]),  # type: ignore[no-untyped-call]
            }[kind]()
            torch.autograd.grad(out.sum(), z)
    finally:
        notice.cancel()


def _kept(graph: Graph, like: Tensor, dropout: float) -> Tensor:
    """What dropout leaves of each coefficient, 1/(1−p) or 0; empty without dropout."""
    heads = like.shape[1]
    if not dropout:
        return like.new_empty(0, heads)
    return torch.nn.functional.dropout(like.new_ones(graph.edges, heads), dropout)


def _arrays(*tensors: Tensor) -> list[np.ndarray[Any, Any]]:
    return [tensor.detach().contiguous().numpy() for tensor in tensors]


def _attended(
    ctx: Any, kernel: Any, graph: Graph, inputs: tuple[Tensor, Tensor, Tensor], slope: float, kept: Tensor
) -> Tensor:
    """The way forward of both kinds of attention: features to pass on first, then what their scores are made of."""
    z = inputs[0]
    alpha = z.new_empty(graph.edges, z.shape[1])
    weight = alpha if not len(kept) else torch.empty_like(alpha)
    out = torch.empty_like(z, memory_format=torch.contiguous_format)
    *arrays, k, al, w, o = _arrays(*inputs, kept, alpha, weight, out)
    run(kernel, graph.ptr, graph.src, *arrays, arrays[0].dtype.type(slope), k, al, w, o)
    ctx.graph, ctx.slope = graph, slope
    ctx.save_for_backward(*inputs, kept, alpha, weight, out)
    return out


class _GATv2(Function):
    @staticmethod
    def forward(
        ctx: Any, graph: Graph, source: Tensor, target: Tensor, att: Tensor, slope: float, kept: Tensor
    ) -> Tensor:
        return _attended(ctx, kernels.gatv2_forward, graph, (source, target, att), slope, kept)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        graph: Graph = ctx.graph
        s, t, a, k, al, w, o, g = _arrays(*ctx.saved_tensors, grad)
        slope = s.dtype.type(ctx.slope)
        dscore, dsource, dtarget = np.empty_like(al), np.empty_like(s), np.empty_like(t)
        parts = parts_of(graph.ptr)
        datt = np.zeros((len(parts), *a.shape), a.dtype)
        rows = {lo: datt[number] for number, (lo, _) in enumerate(parts)}

        def back_to_targets(lo: int, hi: int, *arguments: Any) -> None:
            kernel: Any = kernels.gatv2_back_to_targets
            kernel(lo, hi, *arguments, rows[lo])  # each range has a sum of its own

        run(back_to_targets, graph.ptr, graph.src, s, t, a, slope, k, al, o, g, dscore, dtarget)
        run(kernels.gatv2_back_to_sources, graph.tptr, graph.dst, graph.edge, s, t, a, slope, w, g, dscore, dsource)
        total = torch.from_numpy(datt).sum(dim=0)
        return None, torch.from_numpy(dsource), torch.from_numpy(dtarget), total, None, None


class _GAT(Function):
    @staticmethod
    def forward(ctx: Any, graph: Graph, z: Tensor, p: Tensor, q: Tensor, slope: float, kept: Tensor) -> Tensor:
        return _attended(ctx, kernels.gat_forward, graph, (z, p, q), slope, kept)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        graph: Graph = ctx.graph
        z, p, q, k, al, w, o, g = _arrays(*ctx.saved_tensors, grad)
        slope = z.dtype.type(ctx.slope)
        dscore, dz, dp, dq = np.empty_like(al), np.empty_like(z), np.empty_like(p), np.empty_like(q)
        run(kernels.gat_back_to_targets, graph.ptr, graph.src, z, p, q, slope, k, al, o, g, dscore, dq)
        run(kernels.gat_back_to_sources, graph.tptr, graph.dst, graph.edge, w, g, dscore, dz, dp)
        return None, torch.from_numpy(dz), torch.from_numpy(dp), torch.from_numpy(dq), None, None


class _WeightedSum(Function):
    @staticmethod
    def forward(ctx: Any, graph: Graph, weight: Tensor, z: Tensor) -> Tensor:
        ctx.graph = graph
        ctx.save_for_backward(weight)
        return _summed(graph.ptr, graph.src, weight, z)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (weight,) = ctx.saved_tensors
        graph: Graph = ctx.graph
        return None, None, _summed(graph.tptr, graph.dst, weight[torch.from_numpy(graph.edge)], grad)


def _summed(ptr: Any, other: Any, weight: Tensor, z: Tensor) -> Tensor:
    w, values = _arrays(weight[:, None], z[:, None])
    out = np.empty_like(values)
    run(kernels.weighted_sum, ptr, other, w, values, out)
    return torch.from_numpy(out)[:, 0]

"""The kernels as differentiable functions of tensors."""

from __future__ import annotations

import sys
import threading
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from equipoise.kernels import gat, gatv2
from equipoise.kernels.csr import Graph, build_graph, reached
from equipoise.kernels.lanes import Blocks, blocks_for, filled_up
from equipoise.kernels.spmm import weighted_sum as weighted_sum_kernel
from equipoise.kernels.threads import parts_of, run

Array = np.ndarray[Any, Any]
NOTHING = np.empty(0, np.int32)  # no order but the given one
PATIENCE = 2.0  # seconds of compiling before anything is said; loading what is compiled takes less


def gatv2_attention(
    graph: Graph,
    source: Tensor,
    target: Tensor | None,
    att: Tensor,
    slope: float,
    dropout: float = 0.0,
    relu: bool = False,
) -> Tensor:
    """Σ_u α_uv source[u] with α = softmax_u a · LeakyReLU(source[u] + target[v]); (nodes, heads, channels) each.

    Without ``target`` it is the source; with ``relu`` the ReLU of all that.
    """
    compile_for("gatv2", source.dtype, source.shape[-1])
    wide = [_filled(features) if features is not None else None for features in (source, target, att)]
    out: Tensor = _GATv2.apply(graph, *wide, slope, _kept(graph, source, dropout), relu)  # type: ignore[no-untyped-call]
    return out[..., : source.shape[-1]]


def gat_attention(
    graph: Graph, z: Tensor, p: Tensor, q: Tensor, slope: float, dropout: float = 0.0, relu: bool = False
) -> Tensor:
    """Σ_u α_uv z[u] with α = softmax_u LeakyReLU(p[u] + q[v]); z (nodes, heads, channels), p and q (nodes, heads)."""
    compile_for("gat", z.dtype, z.shape[-1])
    out: Tensor = _GAT.apply(graph, _filled(z), p, q, slope, _kept(graph, z, dropout), relu)  # type: ignore[no-untyped-call]
    return out[..., : z.shape[-1]]


def weighted_sum(graph: Graph, weight: Tensor, z: Tensor) -> Tensor:
    """Σ_u weight_uv z[u]; z is (nodes, channels), weights are in the graph's order by target and get no gradient."""
    compile_for("gcn", z.dtype, z.shape[-1])
    out: Tensor = _WeightedSum.apply(graph, weight, _filled(z))  # type: ignore[no-untyped-call]
    return out[..., : z.shape[-1]]


def compile_for(kind: str, dtype: torch.dtype, channels: int) -> None:
    """Compile the kernels of one kind of layer, or load them; says so if that takes its time, once on a machine."""
    _compile(kind, dtype, filled_up(channels))


@cache
def _compile(kind: str, dtype: torch.dtype, channels: int) -> None:
    notice = threading.Timer(PATIENCE, _say_that_it_takes_a_while)
    notice.daemon = True
    notice.start()
    try:
        graph = build_graph(torch.zeros(2, 0, dtype=torch.long), nodes=2, self_loops=True)
        z, p, a = (torch.ones(s, dtype=dtype, requires_grad=True) for s in ((2, 1, channels), (2, 1), (1, channels)))
        kept = _kept(graph, z, 0.0)
        with torch.enable_grad():
            out: Tensor = {
                # Without a target and with one: the ways back are different kernels.
                "gatv2": lambda: sum(_GATv2.apply(graph, z, t, a, 0.2, kept, False) for t in (None, z)),  # type: ignore[no-untyped-call]
                "gat": lambda: _GAT.apply(graph, z, p, p, 0.2, kept, False),  # type: ignore[no-untyped-call]
                "gcn": lambda: _WeightedSum.apply(graph, p.detach()[:, 0], z[:, 0]),  # type: ignore[no-untyped-call]
            }[kind]()
            torch.autograd.grad(out.sum(), z)
    finally:
        notice.cancel()


@cache  # said once, for however many kinds and widths
def _say_that_it_takes_a_while() -> None:
    print("equipoise: compiling kernels for this machine, once …", file=sys.stderr, flush=True)


@cache
def _blocks(channels: int, dtype: torch.dtype) -> Blocks:
    return blocks_for(channels, torch.empty(0, dtype=dtype).numpy().dtype)


def _filled(features: Tensor) -> Tensor:
    """Zeros after the last channel, where channels are not a whole number of lanes."""
    missing = filled_up(features.shape[-1]) - features.shape[-1]
    return F.pad(features, (0, missing)) if missing else features


def _kept(graph: Graph, like: Tensor, dropout: float) -> Tensor:
    """What dropout leaves of each coefficient, 1/(1−p) or 0; empty without dropout."""
    if not dropout:
        return like.new_empty(0)
    return F.dropout(like.new_ones(graph.edges, like.shape[1]), dropout)


def flat(*tensors: Tensor) -> list[Array]:
    """What tensors hold, one number after the other, as the kernels take it."""
    # Not reshape, which may keep a stride of zero where a number is repeated: kernels know no strides.
    return [tensor.detach().numpy().ravel() for tensor in tensors]


def _shape(z: Tensor) -> tuple[int, Blocks]:
    return z.shape[-2], _blocks(z.shape[-1], z.dtype)


Attended = tuple[Tensor, Tensor, Tensor]  # what comes out, coefficients, and what dropout leaves of these


def attended(
    kernel: Any, graph: Graph, z: Tensor, score: tuple[Tensor, Tensor], slope: float, kept: Tensor, relu: bool
) -> Attended:
    """The way forward of both kinds of attention: features to pass on, and what their scores are made of."""
    alpha = z.new_empty(graph.edges * z.shape[1])
    weight = torch.empty_like(alpha) if len(kept) else alpha
    out = torch.empty_like(z, memory_format=torch.contiguous_format)
    features, first, second, k, al, w, o = flat(z, *score, kept, alpha, weight, out)
    steep = features.dtype.type(slope)
    run(kernel, graph.ptr, graph.src, graph.order, features, first, second, steep, k, al, w, o, relu, *_shape(z))
    return out, alpha, weight


def gatv2_gradients(
    graph: Graph,
    source: Tensor,
    target: Tensor | None,
    att: Tensor,
    slope: float,
    kept: Tensor,
    saved: Attended,
    relu: bool,
    grad: Tensor,
    ours: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Gradients of source, target and attention; without a target, both are in the first.

    A gradient that is ``ours`` may be overwritten.
    """
    shape = _shape(source)
    s, a, k, o, al, w, g = flat(source, att, kept, *saved, grad)
    t = s if target is None else flat(target)[0]
    dscore, dsource, steep = np.empty_like(al), np.empty_like(s), s.dtype.type(slope)
    dout = np.empty_like(g) if relu and not ours else g  # before the ReLU; without one it is the gradient itself
    active, datt = np.empty(graph.nodes * shape[0], np.bool_), _Sums(graph, a)
    if target is None and graph.symmetric:
        first = (s, k, al, o, g, dout, relu, dscore, active, *shape)
        run(gatv2.back_to_scores, graph.ptr, graph.src, graph.order, *first)
        senders = reached(graph, active)
        second = (s, a, steep, w, dout, dscore, senders, dsource)
        run(datt.into(gatv2.back_to_both, shape), graph.ptr, graph.src, graph.edge, graph.order, *second)
        return torch.from_numpy(dsource).view(source.shape), None, datt.total(att) / 2
    dtarget = np.empty_like(t)
    to_targets = (s, t, a, steep, k, al, o, g, dout, relu, dscore, active, dtarget)
    run(datt.into(gatv2.back_to_targets, shape), graph.ptr, graph.src, graph.order, *to_targets)
    senders = reached(graph, active)
    dsource = dtarget if target is None else np.zeros_like(s)
    to_sources = (s, t, a, steep, w, dout, dscore, active, senders, dsource, *shape)
    run(gatv2.back_to_sources, graph.tptr, graph.dst, graph.edge, graph.torder, *to_sources)
    to_target = None if target is None else torch.from_numpy(dtarget).view(target.shape)
    return torch.from_numpy(dsource).view(source.shape), to_target, datt.total(att)


class _Sums:
    """A gradient that is summed over all nodes: a sum for each range of them, added up in their order."""

    def __init__(self, graph: Graph, like: Array) -> None:
        parts = parts_of(graph.ptr)
        self.parts = np.zeros((len(parts), len(like)), like.dtype)
        self.of = {lo: self.parts[number] for number, (lo, _) in enumerate(parts)}

    def into(self, kernel: Any, shape: tuple[int, Blocks]) -> Any:
        """The kernel, with the sum of its range as last argument but the shape."""
        return lambda lo, hi, *arguments: kernel(lo, hi, *arguments, self.of[lo], *shape)

    def total(self, like: Tensor) -> Tensor:
        """The sum over all nodes."""
        return torch.from_numpy(self.parts).sum(dim=0).view(like.shape)


class _GATv2(Function):
    @staticmethod
    def forward(
        ctx: Any,
        graph: Graph,
        source: Tensor,
        target: Tensor | None,
        att: Tensor,
        slope: float,
        kept: Tensor,
        relu: bool,
    ) -> Tensor:
        score = (source if target is None else target, att)
        saved = attended(gatv2.forward, graph, source, score, slope, kept, relu)
        ctx.graph, ctx.slope, ctx.relu = graph, slope, relu
        ctx.save_for_backward(source, target, att, kept, *saved)
        return saved[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        source, target, att, kept, *saved = ctx.saved_tensors
        gradients = gatv2_gradients(ctx.graph, source, target, att, ctx.slope, kept, tuple(saved), ctx.relu, grad)
        return None, *gradients, None, None, None


class _GAT(Function):
    @staticmethod
    def forward(
        ctx: Any, graph: Graph, z: Tensor, p: Tensor, q: Tensor, slope: float, kept: Tensor, relu: bool
    ) -> Tensor:
        saved = attended(gat.forward, graph, z, (p, q), slope, kept, relu)
        ctx.graph, ctx.slope, ctx.relu = graph, slope, relu
        ctx.save_for_backward(z, p, q, kept, *saved)
        return saved[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        graph, relu, z = ctx.graph, ctx.relu, ctx.saved_tensors[0]
        shape = _shape(z)
        features, p, q, k, o, al, w, g = flat(*ctx.saved_tensors, grad)
        dscore, dz, dp, dq = np.empty_like(al), np.empty_like(features), np.empty_like(p), np.empty_like(q)
        dout, active = np.empty_like(g) if relu else g, np.empty(len(q), np.bool_)
        steep = features.dtype.type(ctx.slope)
        arguments = (features, p, q, steep, k, al, o, g, dout, relu, dscore, active, dq, *shape)
        run(gat.back_to_targets, graph.ptr, graph.src, graph.order, *arguments)
        more = (w, dout, dscore, active, dz, dp, *shape)
        run(gat.back_to_sources, graph.tptr, graph.dst, graph.edge, graph.torder, *more)
        gradients = [torch.from_numpy(array).view(-1, shape[0]) for array in (dp, dq)]
        return None, torch.from_numpy(dz).view(z.shape), *gradients, None, None, None


class _WeightedSum(Function):
    @staticmethod
    def forward(ctx: Any, graph: Graph, weight: Tensor, z: Tensor) -> Tensor:
        ctx.graph = graph
        ctx.save_for_backward(weight)
        return summed(graph.ptr, graph.src, weight, NOTHING, z)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        graph = ctx.graph
        return None, None, summed(graph.tptr, graph.dst, ctx.saved_tensors[0], graph.edge, grad)


def summed(ptr: Array, column: Array, weight: Tensor, order: Array, z: Tensor) -> Tensor:
    """A sparse matrix times a dense one; the entries' weights stand in ``order``, if that is not empty."""
    w, features = flat(weight, z)
    out = z.new_empty(len(ptr) - 1, z.shape[1])
    (o,) = flat(out)
    run(weighted_sum_kernel, ptr, column, w, order, features, o, _blocks(z.shape[1], z.dtype))
    return out

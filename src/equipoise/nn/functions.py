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
Shape = tuple[int, Blocks]  # heads, and the channels of each
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
def blocks_of(channels: int, dtype: torch.dtype) -> Blocks:
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


def _shape(z: Tensor) -> Shape:
    return z.shape[-2], blocks_of(z.shape[-1], z.dtype)


Attended = tuple[Array, Array, Array]  # what comes out, coefficients, and what dropout leaves of these


def attended(
    kernel: Any, graph: Graph, z: Array, score: tuple[Array, Array], slope: float, kept: Array, relu: bool, shape: Shape
) -> Attended:
    """The way forward of both kinds of attention: features to pass on, and what their scores are made of."""
    alpha, out = np.empty(graph.edges * shape[0], z.dtype), np.empty_like(z)
    weight = np.empty_like(alpha) if len(kept) else alpha
    steep = z.dtype.type(slope)
    run(kernel, graph.ptr, graph.src, graph.order, z, *score, steep, kept, alpha, weight, out, relu, *shape)
    return out, alpha, weight


def gatv2_gradients(
    graph: Graph,
    source: Array,
    target: Array | None,
    att: Array,
    slope: float,
    kept: Array,
    saved: Attended,
    relu: bool,
    grad: Array,
    shape: Shape,
    ours: bool = False,
) -> tuple[Array, Array | None, Array]:
    """Gradients of source, target and attention; without a target, both are in the first.

    A gradient that is ``ours`` may be overwritten.
    """
    out, alpha, weight = saved
    dscore, steep = np.empty_like(alpha), source.dtype.type(slope)
    dout = np.empty_like(grad) if relu and not ours else grad  # before the ReLU; without one it is the gradient itself
    active, datt = np.empty(graph.nodes * shape[0], np.bool_), _Sums(graph, att)
    if target is None and graph.symmetric:
        first = (source, kept, alpha, out, grad, dout, relu, dscore, active, *shape)
        run(gatv2.back_to_scores, graph.ptr, graph.src, graph.order, *first)
        senders, dsource = reached(graph, active), np.empty_like(source)
        second = (source, att, steep, weight, dout, dscore, senders, dsource)
        run(datt.into(gatv2.back_to_both, shape), graph.ptr, graph.src, graph.edge, graph.order, *second)
        return dsource, None, datt.total() / 2
    t = source if target is None else target
    dtarget = np.empty_like(t)
    to_targets = (source, t, att, steep, kept, alpha, out, grad, dout, relu, dscore, active, dtarget)
    run(datt.into(gatv2.back_to_targets, shape), graph.ptr, graph.src, graph.order, *to_targets)
    senders = reached(graph, active)
    dsource = dtarget if target is None else np.zeros_like(source)
    to_sources = (source, t, att, steep, weight, dout, dscore, active, senders, dsource, *shape)
    run(gatv2.back_to_sources, graph.tptr, graph.dst, graph.edge, graph.torder, *to_sources)
    return dsource, None if target is None else dtarget, datt.total()


class _Sums:
    """A gradient that is summed over all nodes: a sum for each range of them, added up in their order."""

    def __init__(self, graph: Graph, like: Array) -> None:
        parts = parts_of(graph.ptr)
        self.parts = np.zeros((len(parts), len(like)), like.dtype)
        self.of = {lo: self.parts[number] for number, (lo, _) in enumerate(parts)}

    def into(self, kernel: Any, shape: Shape) -> Any:
        """The kernel, with the sum of its range as last argument but the shape."""
        return lambda lo, hi, *arguments: kernel(lo, hi, *arguments, self.of[lo], *shape)

    def total(self) -> Array:
        """The sum over all nodes."""
        total: Array = self.parts[0] if len(self.parts) == 1 else self.parts.sum(axis=0)
        return total


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
        s, a, k = flat(source, att, kept)
        score = (s if target is None else flat(target)[0], a)
        saved = attended(gatv2.forward, graph, s, score, slope, k, relu, _shape(source))
        ctx.graph, ctx.slope, ctx.relu = graph, slope, relu
        out, *rest = (torch.from_numpy(array) for array in saved)
        out = out.view(source.shape)
        ctx.save_for_backward(source, target, att, kept, out, *rest)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        source, target, att, kept, *saved = ctx.saved_tensors
        s, a, k, out, alpha, weight, g = flat(source, att, kept, *saved, grad)
        t = None if target is None else flat(target)[0]
        kept_of_it, shape = (out, alpha, weight), _shape(source)
        found = gatv2_gradients(ctx.graph, s, t, a, ctx.slope, k, kept_of_it, ctx.relu, g, shape)
        pairs = zip(found, (source, target, att), strict=True)
        gradients = (None if array is None else torch.from_numpy(array).view(like.shape) for array, like in pairs)
        return None, *gradients, None, None, None


class _GAT(Function):
    @staticmethod
    def forward(
        ctx: Any, graph: Graph, z: Tensor, p: Tensor, q: Tensor, slope: float, kept: Tensor, relu: bool
    ) -> Tensor:
        features, first, second, k = flat(z, p, q, kept)
        saved = attended(gat.forward, graph, features, (first, second), slope, k, relu, _shape(z))
        ctx.graph, ctx.slope, ctx.relu = graph, slope, relu
        out, *rest = (torch.from_numpy(array) for array in saved)
        out = out.view(z.shape)
        ctx.save_for_backward(z, p, q, kept, out, *rest)
        return out

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
    run(weighted_sum_kernel, ptr, column, w, order, features, o, blocks_of(z.shape[1], z.dtype))
    return out

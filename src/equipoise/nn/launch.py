"""Launch of the kernels: allocates arrays and runs a kernel over all nodes, without autograd.

All arrays are flat. Numbers of rows are those of the graph; callers check them before, as kernels do not.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.kernels import gat, gatv2
from equipoise.kernels.csr import CSRGraph, reachable_sources
from equipoise.kernels.simd import Blocks, num_blocks, vector_blocks
from equipoise.kernels.spmm import edge_dot as edge_dot_kernel
from equipoise.kernels.spmm import spmm as spmm_kernel
from equipoise.kernels.threads import node_ranges, run_kernel

Array = np.ndarray[Any, Any]
HeadShape = tuple[int, Blocks]  # number of heads, channels of each as SIMD blocks
NO_POSITIONS = np.empty(0, np.int32)  # entries are in the order by target already


class AttentionOutput(NamedTuple):
    """Arrays that an attention kernel writes, all flat.

    Attributes:
        out: (nodes, heads, channels), the weighted sums, after the ReLU if there is one.
        alpha: (edges, heads), the attention coefficients.
        weight: (edges, heads), the coefficients after dropout; the same array without dropout.
    """

    out: Array
    alpha: Array
    weight: Array


@cache
def cached_blocks(channels: int, dtype: torch.dtype) -> Blocks:
    """:func:`~equipoise.kernels.simd.vector_blocks` of a torch dtype."""
    return vector_blocks(channels, torch.empty(0, dtype=dtype).numpy().dtype)


def flat_arrays(*tensors: Tensor) -> list[Array]:
    """Contiguous flat arrays of tensors."""
    # Not reshape: it may return a view with stride 0 of an expanded tensor, and kernels ignore strides.
    return [tensor.detach().numpy().ravel() for tensor in tensors]


def head_shape(z: Tensor) -> HeadShape:
    return z.shape[-2], cached_blocks(z.shape[-1], z.dtype)


def empty_output(graph: CSRGraph, dropout_mask: Array, shape: HeadShape) -> AttentionOutput:
    """Uninitialised arrays for an attention kernel to write, of the dtype of the mask."""
    H, C, dtype = shape[0], num_blocks(shape[1]) * len(shape[1][0]), dropout_mask.dtype
    alpha, out = np.empty(graph.edges * H, dtype), np.empty(graph.targets * H * C, dtype)
    return AttentionOutput(out, alpha, np.empty_like(alpha) if len(dropout_mask) else alpha)


def attention_forward(
    kernel: Any,
    graph: CSRGraph,
    z: Array,
    score_inputs: tuple[Array, Array],
    slope: float,
    dropout_mask: Array,
    relu: bool,
    shape: HeadShape,
) -> AttentionOutput:
    """Forward pass of either kind of attention.

    Args:
        kernel: ``gat.forward`` or ``gatv2.forward``.
        graph: the graph.
        z: features to sum.
        score_inputs: arrays that the scores are computed from: p and q of GAT, target and attention of GATv2.
        slope: negative slope of the LeakyReLU.
        dropout_mask: of the coefficients; empty without dropout.
        relu: apply a ReLU.
        shape: heads and channels.

    Returns:
        New arrays.
    """
    output = empty_output(graph, dropout_mask, shape)
    slope = z.dtype.type(slope)
    run_kernel(
        kernel,
        graph.ptr,
        graph.src,
        graph.order,
        z,
        *score_inputs,
        slope,
        dropout_mask,
        output.alpha,
        output.weight,
        output.out,
        relu,
        *shape,
    )
    return output


def gatv2_backward(
    graph: CSRGraph,
    source: Array,
    target: Array | None,
    att: Array,
    slope: float,
    dropout_mask: Array,
    output: AttentionOutput,
    relu: bool,
    grad: Array,
    shape: HeadShape,
    overwrite_grad: bool = False,
) -> tuple[Array, Array | None, Array]:
    """Backward pass of GATv2 attention.

    Args:
        graph: the graph.
        source: source features.
        target: target features; None if they are the source features.
        att: the attention vector.
        slope: negative slope of the LeakyReLU.
        dropout_mask: of the coefficients; empty without dropout.
        output: of the forward pass.
        relu: whether the forward pass applied a ReLU.
        grad: gradient of ``output.out``.
        shape: heads and channels.
        overwrite_grad: allow ``grad`` to be overwritten, which saves an array.

    Returns:
        Gradients of source, target and attention. Without a target, the first is the sum over both roles and the
        second None.
    """
    out, alpha, weight = output
    dscore, slope = np.empty_like(alpha), source.dtype.type(slope)
    dout = np.empty_like(grad) if relu and not overwrite_grad else grad  # gradient before the ReLU, if there is one
    active, datt = np.empty(graph.nodes * shape[0], np.bool_), PartialSums(graph, att)
    if target is None and graph.symmetric:
        for_scores = (source, dropout_mask, alpha, out, grad, dout, relu, dscore, active, *shape)
        run_kernel(gatv2.backward_scores, graph.ptr, graph.src, graph.order, *for_scores)
        reachable, dsource = reachable_sources(graph, active), np.empty_like(source)
        for_features = (source, att, slope, weight, dout, dscore, reachable, dsource)
        by_source = (graph.ptr, graph.src, graph.position, graph.order)
        run_kernel(datt.bind(gatv2.backward_symmetric, shape), *by_source, *for_features)
        return dsource, None, datt.total() / 2
    t = source if target is None else target
    dtarget = np.empty_like(t)
    for_targets = (source, t, att, slope, dropout_mask, alpha, out, grad, dout, relu, dscore, active, dtarget)
    run_kernel(datt.bind(gatv2.backward_targets, shape), graph.ptr, graph.src, graph.order, *for_targets)
    reachable = reachable_sources(graph, active)
    dsource = dtarget if target is None else np.zeros_like(source)
    for_sources = (source, t, att, slope, weight, dout, dscore, active, reachable, dsource, *shape)
    run_kernel(gatv2.backward_sources, graph.tptr, graph.dst, graph.position, graph.torder, *for_sources)
    return dsource, None if target is None else dtarget, datt.total()


class PartialSums:
    """A gradient summed over all nodes: one partial sum per range, added in a fixed order for reproducibility."""

    def __init__(self, graph: CSRGraph, like: Array) -> None:
        ranges = node_ranges(graph.ptr)
        self.sums = np.zeros((len(ranges), len(like)), like.dtype)
        self.by_range = {lo: self.sums[i] for i, (lo, _) in enumerate(ranges)}

    def bind(self, kernel: Any, shape: HeadShape) -> Any:
        """The kernel with the partial sum of its range inserted before the shape."""
        return lambda lo, hi, *arguments: kernel(lo, hi, *arguments, self.by_range[lo], *shape)

    def total(self) -> Array:
        """Sum over all nodes."""
        total: Array = self.sums[0] if len(self.sums) == 1 else self.sums.sum(axis=0)
        return total


def gat_backward(
    graph: CSRGraph,
    z: Array,
    p: Array,
    q: Array,
    slope: float,
    dropout_mask: Array,
    output: AttentionOutput,
    relu: bool,
    grad: Array,
    shape: HeadShape,
) -> tuple[Array, Array, Array]:
    """Backward pass of GAT attention.

    Args:
        graph: the graph.
        z: features.
        p: scores of nodes as sources.
        q: scores of nodes as targets.
        slope: negative slope of the LeakyReLU.
        dropout_mask: of the coefficients; empty without dropout.
        output: of the forward pass.
        relu: whether the forward pass applied a ReLU.
        grad: gradient of ``output.out``.
        shape: heads and channels.

    Returns:
        Gradients of z, p and q.
    """
    out, alpha, weight = output
    dscore, dz, dp, dq = np.empty_like(alpha), np.empty_like(z), np.empty_like(p), np.empty_like(q)
    dout, active = np.empty_like(grad) if relu else grad, np.empty(len(q), np.bool_)
    slope = z.dtype.type(slope)
    for_targets = (z, p, q, slope, dropout_mask, alpha, out, grad, dout, relu, dscore, active, dq, *shape)
    run_kernel(gat.backward_targets, graph.ptr, graph.src, graph.order, *for_targets)
    for_sources = (weight, dout, dscore, active, dz, dp, *shape)
    run_kernel(gat.backward_sources, graph.tptr, graph.dst, graph.position, graph.torder, *for_sources)
    return dz, dp, dq


def spmm(ptr: Array, neighbour: Array, weight: Tensor, position: Array, z: Tensor) -> Tensor:
    """Sparse matrix times dense matrix, without autograd.

    Args:
        ptr: row pointers of the matrix, or column pointers for a product with its transpose.
        neighbour: column indices, or row indices.
        weight: entries of the matrix, in the order by target.
        position: index of each entry in ``weight``; ``NO_POSITIONS`` if they are in this order.
        z: (nodes, channels), with channels a multiple of the smallest vector width.

    Returns:
        (nodes, channels).
    """
    w, features = flat_arrays(weight, z)
    out = z.new_empty(len(ptr) - 1, z.shape[1])
    (out_array,) = flat_arrays(out)
    run_kernel(spmm_kernel, ptr, neighbour, position, w, features, out_array, cached_blocks(z.shape[1], z.dtype))
    return out


def edge_dot(graph: CSRGraph, target: Tensor, source: Tensor) -> Tensor:
    """⟨target[v], source[u]⟩ of every edge from u to v, without autograd.

    Args:
        graph: the graph.
        target: (targets, channels), with channels a multiple of the smallest vector width.
        source: (sources, channels).

    Returns:
        (edges), in the order by target.
    """
    t, s = flat_arrays(target, source)
    out = np.empty(graph.edges, t.dtype)
    run_kernel(edge_dot_kernel, graph.ptr, graph.src, t, s, out, cached_blocks(source.shape[1], source.dtype))
    return torch.from_numpy(out)

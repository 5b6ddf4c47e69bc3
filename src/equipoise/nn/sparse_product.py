"""Products with a sparse matrix, and permutations of rows, as differentiable functions of tensors."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from equipoise.kernels.arguments import Edges
from equipoise.kernels.csr import CSRGraph, build_graph
from equipoise.kernels.jit import compilation_notice
from equipoise.kernels.simd import padded_channels
from equipoise.kernels.spmm import edge_dot as edge_dot_kernel
from equipoise.kernels.spmm import spmm as spmm_kernel
from equipoise.kernels.threads import run_kernel
from equipoise.nn.kernel_arrays import cached_blocks, flat_arrays, pad_channels, promote


def weighted_sum(graph: CSRGraph, weight: Tensor, z: Tensor) -> Tensor:
    """Sparse-dense product Σ_u weight_uv z[u], differentiable any number of times in weights and features.

    Args:
        graph: the graph, or the sparsity pattern of a matrix.
        weight: (edges), in the order by target.
        z: (sources, channels).

    Returns:
        (targets, channels).

    Example:
        >>> graph = build_graph(torch.tensor([[0, 1], [0, 0]]), nodes=(2, 1), self_loops=False)
        >>> weighted_sum(graph, torch.tensor([1.0, 2.0]), torch.tensor([[1.0], [3.0]]))
        tensor([[7.]])
    """
    weight, z = promote(weight, z)
    compile_sparse_kernels(z.dtype, z.shape[-1], weight.requires_grad)
    out: Tensor = _WeightedSum.apply(graph, weight, pad_channels(z), False)  # type: ignore[no-untyped-call]
    return out[..., : z.shape[-1]]


def permute(rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """Rows in another order, ``rows[order]``.

    Args:
        rows: any tensor of at least one dimension.
        order: a permutation of its rows.
        inverse: the inverse permutation, for the backward pass.

    Returns:
        A new tensor.
    """
    permuted: Tensor = _Permutation.apply(rows, order, inverse)  # type: ignore[no-untyped-call]
    return permuted


def compile_sparse_kernels(dtype: torch.dtype, channels: int, weight_gradient: bool = False) -> None:
    """Compile the kernels of sparse products, or load them from Numba's disk cache.

    Args:
        dtype: of the features.
        channels: of the features.
        weight_gradient: whether the gradient of the weights is needed.
    """
    _compile_sparse_kernels(dtype, padded_channels(channels), weight_gradient)


@cache
def _compile_sparse_kernels(dtype: torch.dtype, channels: int, weight_gradient: bool) -> None:
    with compilation_notice():
        graph = build_graph(torch.zeros(2, 0, dtype=torch.long), nodes=2, self_loops=True)
        weight, z = torch.ones(2, dtype=dtype), torch.ones(2, channels, dtype=dtype)
        spmm(graph.by_target, weight, z)
        spmm(graph.by_source, weight, z)
        if weight_gradient:
            edge_dot(graph, z, z)


class _WeightedSum(Function):
    @staticmethod
    def forward(ctx: Any, graph: CSRGraph, weight: Tensor, z: Tensor, transposed: bool) -> Tensor:
        ctx.graph, ctx.transposed = graph, transposed
        ctx.save_for_backward(weight, z if ctx.needs_input_grad[1] else None)
        if transposed:
            return spmm(graph.by_source, weight, z)
        return spmm(graph.by_target, weight, z)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (weight, z), transposed = ctx.saved_tensors, ctx.transposed
        dweight = dz = None
        if ctx.needs_input_grad[1]:
            dweight = _EdgeDot.apply(ctx.graph, *((z, grad) if transposed else (grad, z)))  # type: ignore[no-untyped-call]
        if ctx.needs_input_grad[2]:
            # The gradient is a product with the transposed matrix, and so is the gradient of the gradient.
            dz = _WeightedSum.apply(ctx.graph, weight, grad, not transposed)  # type: ignore[no-untyped-call]
        return None, dweight, dz, None


class _EdgeDot(Function):
    """⟨target[v], source[u]⟩ of every edge; its gradients are weighted sums, so it can be differentiated again."""

    @staticmethod
    def forward(ctx: Any, graph: CSRGraph, target: Tensor, source: Tensor) -> Tensor:
        ctx.graph = graph
        ctx.save_for_backward(target, source)
        return edge_dot(graph, target, source)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        target, source = ctx.saved_tensors
        dtarget = _WeightedSum.apply(ctx.graph, grad, source, False)  # type: ignore[no-untyped-call]
        return None, dtarget, _WeightedSum.apply(ctx.graph, grad, target, True)  # type: ignore[no-untyped-call]


class _Permutation(Function):
    """Rows in another order; unlike that of indexing, its backward pass is a copy, as no row occurs twice."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.order, ctx.inverse = order, inverse
        return rows.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return _Permutation.apply(grad, ctx.inverse, ctx.order), None, None  # type: ignore[no-untyped-call]


def spmm(edges: Edges, weight: Tensor, z: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Sparse matrix times dense matrix, without autograd.

    Args:
        edges: entries of the matrix by target, or by source for a product with its transpose.
        weight: values of the entries, in the order by target.
        z: one row per column of the matrix, with channels a multiple of the smallest vector width.
        out: where to write the result; a new tensor by default.

    Returns:
        One row per row of the matrix.
    """
    w, features = flat_arrays(weight, z)
    out = z.new_empty(len(edges.ptr) - 1, z.shape[1]) if out is None else out
    (out_array,) = flat_arrays(out)
    run_kernel(spmm_kernel, edges, w, features, out_array, cached_blocks(z.shape[1], z.dtype))
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
    run_kernel(edge_dot_kernel, graph.by_target, t, s, out, cached_blocks(source.shape[1], source.dtype))
    return torch.from_numpy(out)

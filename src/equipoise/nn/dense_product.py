"""Dense products of features and weights, by the kernels of :mod:`equipoise.kernels.matmul` or by torch.

The products of a fused stack and of single fused layers are the same functions, so both compute the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from equipoise.kernels import matmul
from equipoise.kernels.jit import entry_point
from equipoise.kernels.simd import MIN_WIDTH, Blocks, vector_blocks
from equipoise.kernels.threads import row_ranges, run_ranges
from equipoise.nn.kernel_arrays import Array, flat_arrays

DTYPES = (torch.float32, torch.float64)
NARROW = 64  # columns up to which vectors narrower than a register of AVX-512 are still faster than BLAS
ALL_ROWS: Array = np.empty(0, np.bool_)


@cache
def product_blocks(columns: int, dtype: torch.dtype) -> Blocks | None:
    """Columns as SIMD vectors; None if the kernels do not fit them, and BLAS is faster."""
    if dtype not in DTYPES or columns % MIN_WIDTH or not columns:
        return None
    blocks = vector_blocks(columns, torch.empty(0, dtype=dtype).numpy().dtype, matmul.AVX2_BYTES)
    vector_bytes = len(blocks[0]) * dtype.itemsize
    return blocks if columns <= NARROW or vector_bytes >= matmul.AVX2_BYTES else None


@cache
def _compiled_multiply(columns: int, dtype: torch.dtype) -> Any:
    """The kernel for these columns, with its last argument; no other argument changes its type."""
    array, blocks = torch.empty(0, dtype=dtype).numpy(), product_blocks(columns, dtype)
    return entry_point(matmul.multiply, 0, 0, array, array, array, ALL_ROWS, 0, blocks), blocks


@cache
def _compiled_gradient(columns: int, dtype: torch.dtype) -> Any:
    array, blocks = torch.empty(0, dtype=dtype).numpy(), product_blocks(columns, dtype)
    return entry_point(matmul.add_weight_gradient, 0, 0, array, array, ALL_ROWS, 0, blocks, array), blocks


def multiply(x: Tensor, W: Tensor, *, out: Tensor | None = None) -> Tensor:
    """x W, without autograd.

    Args:
        x: (rows, inner).
        W: (inner, columns).
        out: where to write the product; a new tensor by default.

    Returns:
        (rows, columns).

    Example:
        >>> multiply(torch.ones(2, 3), torch.ones(3, 8)).sum()
        tensor(48.)
    """
    if not _fit(x, W, (x.shape[1], W.shape[0])):
        return torch.mm(x, W, out=out)
    out = x.new_empty(x.shape[0], W.shape[1]) if out is None else out
    multiply_task(x, W, out)()
    return out


def multiply_transposed(x: Tensor, W: Tensor, *, out: Tensor | None = None) -> Tensor:
    """x Wᵀ, without autograd; see :func:`multiply`."""
    if not can_multiply(x, W):
        return torch.mm(x, W.t(), out=out)
    return multiply(x, torch.from_numpy(np.ascontiguousarray(W.detach().numpy().T)), out=out)


def weight_gradient(dz: Tensor, x: Tensor) -> Tensor:
    """dzᵀ x, the gradient of W for the gradient dz of x Wᵀ, without autograd.

    Args:
        dz: (rows, outputs).
        x: (rows, inputs).

    Returns:
        (outputs, inputs).

    Example:
        >>> weight_gradient(torch.ones(2, 4), torch.ones(2, 8)).sum()
        tensor(64.)
    """
    return weight_gradient_task(dz, x)()


def multiply_task(x: Tensor, W: Tensor, out: Tensor, nonzero: Array = ALL_ROWS) -> Callable[[], object]:
    """A function without arguments that writes x W to ``out``.

    Args:
        x: (rows, inner).
        W: (inner, columns).
        out: (rows, columns), contiguous.
        nonzero: which rows of x may be nonzero; empty for all.

    Returns:
        The function. It may be called any number of times, and reads the tensors anew.
    """
    if not _fit(x, W, (x.shape[1], W.shape[0])):
        return partial(torch.mm, x, W, out=out)
    kernel, blocks = _compiled_multiply(W.shape[1], x.dtype)
    arguments = (*flat_arrays(x, W, out), nonzero, W.shape[0], blocks)
    ranges = row_ranges(x.shape[0], W.numel())
    if len(ranges) == 1:
        return partial(kernel, *ranges[0], *arguments)
    return partial(run_ranges, kernel, ranges, *arguments)


def weight_gradient_task(dz: Tensor, x: Tensor, nonzero: Array = ALL_ROWS) -> Callable[[], Tensor]:
    """A function without arguments that returns dzᵀ x in a new tensor.

    Args:
        dz: (rows, outputs).
        x: (rows, inputs).
        nonzero: which rows of dz may be nonzero; empty for all.

    Returns:
        The function. Sums of several ranges of rows are added in order, for reproducibility.
    """
    if not _fit(dz, x, (dz.shape[0], x.shape[0])) or dz.shape[1] % matmul.TILE_OUTPUTS:
        return partial(torch.mm, dz.t(), x)
    kernel, blocks = _compiled_gradient(x.shape[1], x.dtype)
    arguments = (*flat_arrays(dz, x), nonzero, dz.shape[1], blocks)
    shape, ranges = (dz.shape[1], x.shape[1]), row_ranges(x.shape[0], dz.shape[1] * x.shape[1])

    def run() -> Tensor:
        sums = torch.zeros(len(ranges), *shape, dtype=x.dtype)
        by_range = {lo: total.ravel() for (lo, _), total in zip(ranges, sums.numpy(), strict=True)}
        run_ranges(lambda lo, hi: kernel(lo, hi, *arguments, by_range[lo]), ranges)
        return sums.sum(dim=0)

    def run_once() -> Tensor:
        gradient = torch.zeros(shape, dtype=x.dtype)
        kernel(*ranges[0], *arguments, gradient.numpy().ravel())
        return gradient

    return run_once if len(ranges) == 1 else run


def linear(x: Tensor, W: Tensor) -> Tensor:
    """x Wᵀ, differentiable any number of times.

    Args:
        x: (rows, inputs).
        W: (outputs, inputs).

    Returns:
        (rows, outputs).

    Example:
        >>> W = torch.ones(8, 16, requires_grad=True)
        >>> linear(torch.ones(2, 16), W).sum().backward()
        >>> W.grad.sum()
        tensor(256.)
    """
    z: Tensor = _Linear.apply(x, W)  # type: ignore[no-untyped-call]
    return z


def can_multiply(x: Tensor, W: Tensor) -> bool:
    """Whether the kernels take x Wᵀ; otherwise torch's own ``linear`` is at least as fast."""
    return (
        x.dim() == 2
        and x.layout == torch.strided
        and x.dtype == W.dtype
        and x.shape[1] == W.shape[1]
        and product_blocks(W.shape[0], x.dtype) is not None
        and x.is_contiguous()
        and x.numel() > 0
    )


def _fit(x: Tensor, y: Tensor, inner: tuple[int, int]) -> bool:
    """Whether the kernels take the columns of y, and both are contiguous, not empty and of one inner length."""
    return (  # kernels ignore strides, and read without bounds checks
        inner[0] == inner[1]
        and product_blocks(y.shape[1], y.dtype) is not None
        and x.is_contiguous()
        and y.is_contiguous()
        and x.numel() > 0
        and y.numel() > 0
    )


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, W: Tensor) -> Tensor:
        ctx.save_for_backward(x, W)
        ctx.set_materialize_grads(False)  # a product without gradient gives its factors none, as in torch
        return multiply_transposed(x, W)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        if grad is None:
            return None, None
        (x, W), (needs_dx, needs_dW) = ctx.saved_tensors, ctx.needs_input_grad
        if torch.is_grad_enabled():  # create_graph=True
            return grad @ W if needs_dx else None, grad.t() @ x if needs_dW else None
        return multiply(grad, W) if needs_dx else None, weight_gradient(grad, x) if needs_dW else None

"""Dense products by the kernels: equal to torch's, differentiable, and torch's own where the kernels do not fit."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from equipoise.kernels import matmul, threads
from equipoise.nn import dense_product
from equipoise.nn.dense_product import (
    can_multiply,
    linear,
    multiply,
    multiply_transposed,
    product_blocks,
    weight_gradient,
)

SHAPES = [(7, 5, 8), (300, 16, 64), (10, 64, 7), (5, 3, 72), (0, 4, 8), (4, 0, 8)]  # columns: 7 and 72 do not fit


@pytest.mark.parametrize(("rows", "inner", "columns"), SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-13)])
def test_products_equal_torch(rows, inner, columns, dtype, tolerance):
    x, W, dz = (torch.randn(*shape, dtype=dtype) for shape in ((rows, inner), (inner, columns), (rows, columns)))
    for result, expected in (
        (multiply(x, W), x @ W),
        (multiply_transposed(x, W.t().contiguous()), x @ W),
        (weight_gradient(x, dz), x.t() @ dz),
        (weight_gradient(dz, x), dz.t() @ x),
    ):
        torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)


def test_strides_are_respected():
    x, W = torch.randn(20, 6, dtype=torch.float64).t(), torch.randn(8, 20, dtype=torch.float64).t()
    torch.testing.assert_close(multiply(x, W), x @ W)
    torch.testing.assert_close(multiply_transposed(x.contiguous(), W.t()), x @ W)
    expanded = torch.randn(1, 8, dtype=torch.float64).expand(6, 8)
    torch.testing.assert_close(weight_gradient(expanded, x.contiguous()), expanded.t() @ x)


def test_which_products_the_kernels_take():
    x, W = torch.randn(4, 5), torch.randn(8, 5)
    assert can_multiply(x, W)
    assert not can_multiply(x.double(), W)
    assert not can_multiply(x[None], W)
    assert not can_multiply(torch.randn(4, 6), W)  # torch names the shapes
    assert not can_multiply(torch.randn(5, 4).t(), W)
    assert not can_multiply(x.bfloat16(), W.bfloat16())
    assert product_blocks(7, torch.float32) is None
    assert product_blocks(0, torch.float32) is None


def test_derivatives():
    x, W = torch.randn(9, 4, dtype=torch.float64, requires_grad=True), torch.randn(8, 4, dtype=torch.float64)
    W.requires_grad_()
    assert gradcheck(linear, (x, W))
    assert gradgradcheck(linear, (x, W))


@pytest.mark.parametrize("rows", [1000, 3])
def test_several_threads(rows, monkeypatch):
    x, W, dz = torch.randn(rows, 16), torch.randn(16, 64), torch.randn(rows, 64)
    expected = multiply(x, W)
    monkeypatch.setattr(threads, "MIN_PARALLEL_PRODUCT", 1)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert len(threads.row_ranges(rows, 1)) > 1
        assert torch.equal(multiply(x, W), expected)
        gradient = weight_gradient(dz, x)
        assert torch.equal(weight_gradient(dz, x), gradient)  # summed in a fixed order
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(gradient, dz.t() @ x, rtol=1e-4, atol=1e-4)


def test_the_kernel_runs(monkeypatch):
    calls = []
    entry = dense_product.entry_point

    def counted(kernel, *arguments):
        run = entry(kernel, *arguments)
        return lambda *args: (calls.append(kernel), run(*args))[1]

    monkeypatch.setattr(dense_product, "entry_point", counted)
    for function in (dense_product._compiled_multiply, dense_product._compiled_gradient):
        function.cache_clear()
    try:
        W = torch.randn(8, 16, requires_grad=True)
        linear(torch.randn(5, 16), W).square().sum().backward()
    finally:
        for function in (dense_product._compiled_multiply, dense_product._compiled_gradient):
            function.cache_clear()
    assert calls == [matmul.multiply, matmul.add_weight_gradient]

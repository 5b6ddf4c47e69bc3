"""Throughput of the matrix-product kernels and of torch's BLAS: ``python benchmarks/matmul.py``.

GFLOP/s of one thread, 20 % quantile of alternating repetitions: x W (forward pass, input gradient) and dzᵀ x (weight
gradient).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from equipoise.kernels.simd import has_avx512
from equipoise.nn.dense_product import multiply, weight_gradient

SHAPES = ((183, 64, 64), (2708, 64, 64), (19717, 64, 64), (2708, 64, 8), (2708, 256, 256), (2708, 512, 512))
REPETITIONS = 40


def throughput(flops: float, *functions: Callable[[], object]) -> list[float]:
    """GFLOP/s of each function, measured alternately."""
    seconds: list[list[float]] = [[] for _ in functions]
    for _ in range(REPETITIONS):
        for function, measured in zip(functions, seconds, strict=True):
            start = time.perf_counter()
            function()
            measured.append(time.perf_counter() - start)
    return [flops / float(np.quantile(measured, 0.2)) / 1e9 for measured in seconds]


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print(f"float32, one thread, {'AVX-512' if has_avx512() else 'no AVX-512'}\n")
    print("| rows × inner × columns | x W | torch | ratio | dzᵀ x | torch | ratio |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for rows, inner, columns in SHAPES:
        x, W, dz = torch.randn(rows, inner), torch.randn(inner, columns), torch.randn(rows, columns)
        z, flops = torch.empty(rows, columns), 2.0 * rows * inner * columns
        ours, blas, ours_gradient, blas_gradient = throughput(
            flops,
            lambda x=x, W=W, z=z: multiply(x, W, out=z),
            lambda x=x, W=W, z=z: torch.mm(x, W, out=z),
            lambda x=x, dz=dz: weight_gradient(dz, x),
            lambda x=x, dz=dz: torch.mm(dz.t(), x),
        )
        print(
            f"| {rows} × {inner} × {columns} | {ours:.0f} | {blas:.0f} | {ours / blas:.1f} × "
            f"| {ours_gradient:.0f} | {blas_gradient:.0f} | {ours_gradient / blas_gradient:.1f} × |"
        )


if __name__ == "__main__":
    main()

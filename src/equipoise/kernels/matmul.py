"""Matrix products of features with the weights of a layer: x W, and dzᵀ x for the gradient of the weights.

The weights of a layer fit into the cache, so a product needs no packing: a tile of rows times a SIMD vector of columns
stays in registers while the inner loop runs over the contraction. On AMD processors this is more than twice as fast as
MKL, torch's BLAS, which does not use their AVX-512 (``benchmarks/matmul.py``). Rows known to be zero are skipped.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.kernels.jit import jit, jit_inline
from equipoise.kernels.simd import at, broadcast, load, num_blocks, put, store

TILE_ROWS = 6  # times four vectors of 16 numbers: 24 of the 32 registers of AVX-512
TILE_OUTPUTS = 4
MULTIPLY_CHUNK = 240  # rows for which a block of weights stays in the L1 cache; a multiple of TILE_ROWS
GRADIENT_CHUNK = 64  # rows of both factors that stay in the L1 cache
AVX2_BYTES = 64  # width of a vector of columns without AVX-512: two registers, times six rows


@jit_inline
def select_rows(lo: int, hi: int, nonzero: Any, rows: Any) -> int:
    """Write the nonzero rows of a range to ``rows``, the last one repeated for a whole tile; return their number."""
    count = 0
    for row in range(lo, hi):
        if len(nonzero) == 0 or at(nonzero, row):
            put(rows, count, row)
            count += 1
    for k in range(count, count + TILE_ROWS if count else 0):
        put(rows, k, at(rows, count - 1))
    return count


@jit
def multiply(lo: int, hi: int, x: Any, weight: Any, out: Any, nonzero: Any, inner: int, blocks: Any) -> None:
    """out = x W for a range of rows.

    Args:
        lo: first row.
        hi: end of the range.
        x: (rows, inner).
        weight: (inner, columns).
        out: (rows, columns).
        nonzero: which rows of x may be nonzero; the others are not read, and zero in ``out``. Empty for all.
        inner: length of the contraction.
        blocks: columns as SIMD vectors.
    """
    width, columns = blocks[0], num_blocks(blocks) * len(blocks[0])
    rows = np.empty(MULTIPLY_CHUNK + TILE_ROWS, np.int64)
    for chunk_lo in range(lo, hi, MULTIPLY_CHUNK):
        chunk_hi = min(chunk_lo + MULTIPLY_CHUNK, hi)
        count = select_rows(chunk_lo, chunk_hi, nonzero, rows)
        if count < chunk_hi - chunk_lo:
            for row in range(chunk_lo, chunk_hi):
                if not at(nonzero, row):
                    for b in range(num_blocks(blocks)):
                        store(out, row * columns + b * len(width), broadcast(x, 0, width))
        for b in range(num_blocks(blocks)):
            c = b * len(width)
            for i in range(0, count, TILE_ROWS):
                r0, r1, r2 = at(rows, i), at(rows, i + 1), at(rows, i + 2)
                r3, r4, r5 = at(rows, i + 3), at(rows, i + 4), at(rows, i + 5)
                a0 = a1 = a2 = a3 = a4 = a5 = broadcast(x, 0, width)
                for k in range(inner):
                    w = load(weight, k * columns + c, width)
                    a0 = a0 + broadcast(x, at(x, r0 * inner + k), width) * w
                    a1 = a1 + broadcast(x, at(x, r1 * inner + k), width) * w
                    a2 = a2 + broadcast(x, at(x, r2 * inner + k), width) * w
                    a3 = a3 + broadcast(x, at(x, r3 * inner + k), width) * w
                    a4 = a4 + broadcast(x, at(x, r4 * inner + k), width) * w
                    a5 = a5 + broadcast(x, at(x, r5 * inner + k), width) * w
                store(out, r0 * columns + c, a0)
                store(out, r1 * columns + c, a1)
                store(out, r2 * columns + c, a2)
                store(out, r3 * columns + c, a3)
                store(out, r4 * columns + c, a4)
                store(out, r5 * columns + c, a5)


@jit
def add_weight_gradient(lo: int, hi: int, dz: Any, x: Any, nonzero: Any, outputs: int, blocks: Any, out: Any) -> None:
    """out += dzᵀ x, summed over a range of rows.

    Args:
        lo: first row.
        hi: end of the range.
        dz: (rows, outputs); ``outputs`` is a multiple of ``TILE_OUTPUTS``.
        x: (rows, inputs).
        nonzero: which rows of dz may be nonzero; the others are not read. Empty for all.
        outputs: number of columns of dz.
        blocks: inputs as SIMD vectors.
        out: (outputs, inputs).
    """
    width, inputs = blocks[0], num_blocks(blocks) * len(blocks[0])
    rows = np.empty(GRADIENT_CHUNK + TILE_ROWS, np.int64)
    for chunk_lo in range(lo, hi, GRADIENT_CHUNK):
        count = select_rows(chunk_lo, min(chunk_lo + GRADIENT_CHUNK, hi), nonzero, rows)
        for b in range(num_blocks(blocks)):
            for o in range(0, outputs if count else 0, TILE_OUTPUTS):
                c = o * inputs + b * len(width)
                a0, a1 = load(out, c, width), load(out, c + inputs, width)
                a2, a3 = load(out, c + 2 * inputs, width), load(out, c + 3 * inputs, width)
                for i in range(count):
                    row = at(rows, i)
                    d, w = row * outputs + o, load(x, row * inputs + b * len(width), width)
                    a0 = a0 + broadcast(dz, at(dz, d), width) * w
                    a1 = a1 + broadcast(dz, at(dz, d + 1), width) * w
                    a2 = a2 + broadcast(dz, at(dz, d + 2), width) * w
                    a3 = a3 + broadcast(dz, at(dz, d + 3), width) * w
                store(out, c, a0)
                store(out, c + inputs, a1)
                store(out, c + 2 * inputs, a2)
                store(out, c + 3 * inputs, a3)

"""eˣ that a loop over many x can do several at a time; Numba's own calls the C library for each."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

LOG2_E = np.float32(1.4426950408889634)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)  # their sum is ln 2; n · the first is exact
LOWEST = np.float32(-87)  # e⁻⁸⁷ is near the smallest float32, and nothing beside a softmax's largest, e⁰
# (eʳ − 1 − r) / r² for |r| ≤ ln 2 / 2: Cephes' coefficients, highest power first
C5, C4, C3 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
C2, C1, C0 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
ONE, BIAS, MANTISSA = np.float32(1), np.int32(127), np.int32(23)


def exponential(x: Any) -> Any:
    """Inside a kernel eˣ for x ≤ 0: for float32 to two units in the last place, for float64 the C library's."""
    return np.exp(x)


@overload(exponential, inline="always")
def _exponential(x: Any) -> Any:
    def library(x: Any) -> Any:
        return np.exp(x)

    def polynomial(x: Any) -> Any:
        x = LOWEST if x < LOWEST else x  # NaN goes on
        n = np.rint(x * LOG2_E)
        r = x - n * LN2_HIGH - n * LN2_LOW
        tail = ((((C5 * r + C4) * r + C3) * r + C2) * r + C1) * r + C0
        return (tail * r * r + r + ONE) * np.int32((np.int32(n) + BIAS) << MANTISSA).view(np.float32)

    return polynomial if x == types.float32 else library

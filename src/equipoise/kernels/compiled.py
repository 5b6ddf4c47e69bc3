"""How kernels are compiled: at the first call, kept on disk, sums reordered but NaN and infinity kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

FAST = ("reassoc", "contract", "nsz", "arcp")  # sums may be reordered; NaN and infinity keep their meaning


def compiled(kernel: Kernel) -> Kernel:
    """Compile at the first call, once per machine; other threads run meanwhile."""
    return njit(cache=True, nogil=True, fastmath=set(FAST), error_model="numpy")(kernel)  # type: ignore[return-value]


def inlined(step: Kernel) -> Kernel:
    """A step of a kernel, put into it by LLVM; Numba's own way of inlining counts references to arrays at each step."""
    return njit(forceinline=True, fastmath=set(FAST), error_model="numpy")(step)  # type: ignore[return-value]

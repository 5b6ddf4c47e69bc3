"""Numba decorators of the kernels: compile lazily, cache on disk, let sums be reordered but keep NaN and infinity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

FASTMATH = ("reassoc", "contract", "nsz", "arcp")  # sums may be reordered; no "nnan", "ninf": both keep their meaning


def jit(kernel: Kernel) -> Kernel:
    """Compile a kernel at its first call and cache it on disk; it runs without the GIL."""
    return njit(cache=True, nogil=True, fastmath=set(FASTMATH), error_model="numpy")(kernel)  # type: ignore[return-value]


def jit_inline(function: Kernel) -> Kernel:
    """Compile a helper that LLVM inlines into its kernel.

    Numba's own ``inline="always"`` works on its IR and adds reference counting of arrays at every call.

    Args:
        function: the helper; kernels call it, Python does not.

    Returns:
        The compiled helper.
    """
    return njit(forceinline=True, fastmath=set(FASTMATH), error_model="numpy")(function)  # type: ignore[return-value]

"""Numba decorators of the kernels: compile lazily, cache on disk, let sums be reordered but keep NaN and infinity."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

from numba import njit

log = logging.getLogger("equipoise")

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

FASTMATH = ("reassoc", "contract", "nsz", "arcp")  # sums may be reordered; no "nnan", "ninf": both keep their meaning
COMPILE_NOTICE_SECONDS = 2.0  # loading compiled kernels from the cache takes less


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


@contextmanager
def compilation_notice() -> Iterator[None]:
    """Log a message if the block, in which kernels are compiled, takes longer than ``COMPILE_NOTICE_SECONDS``."""
    notice = threading.Timer(COMPILE_NOTICE_SECONDS, _log_compiling)
    notice.daemon = True
    notice.start()
    try:
        yield
    finally:
        notice.cancel()


@cache  # once per process, for any number of kinds and widths
def _log_compiling() -> None:
    log.info("Compiling kernels for this machine; they are cached for later runs …")

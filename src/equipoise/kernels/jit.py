"""Numba decorators of the kernels: compile lazily, cache on disk, let sums be reordered but keep NaN and infinity."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numba import njit, typeof

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


_ENTRY_POINTS: dict[tuple[Any, ...], Callable[..., Any]] = {}


def entry_point(kernel: Any, *arguments: Any) -> Callable[..., Any]:
    """The compiled function for these arguments, without Numba's typing of arguments in every call.

    A call through Numba's dispatcher takes about 3 µs for 16 arguments, a call of the compiled function 1 µs.

    Args:
        kernel: a function decorated by :func:`jit`.
        arguments: of the kernel; arrays must be contiguous.

    Returns:
        A function for arguments of the same types only: it does not check them.
    """
    key = (kernel, *(_type_key(argument) for argument in arguments))
    if key not in _ENTRY_POINTS:
        signature = tuple(typeof(argument) for argument in arguments)
        with compilation_notice():
            kernel.compile(signature)
        _ENTRY_POINTS[key] = kernel.overloads[signature].entry_point
    return _ENTRY_POINTS[key]


def _type_key(argument: Any) -> Any:
    """Equal for arguments of the same Numba type; cheaper than ``typeof``."""
    if isinstance(argument, np.ndarray):
        assert argument.flags.c_contiguous
        return argument.dtype, argument.ndim
    return tuple(map(_type_key, argument)) if isinstance(argument, tuple) else type(argument)


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

"""Flush denormals (subnormal numbers, below 1e-38 in float32) to zero: arithmetic on one costs about 100 times more.

Deep networks produce many of them. Attention initialised with zero has gradients of the order of squared gradients,
and where little gradient reaches the first layers these are about 1e-40. A matrix product with them takes ten times
as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from equipoise.kernels.threads import on_every_thread

DENORMAL = 1e-40


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Context manager that flushes denormals to zero on all of torch's threads and restores the mode on exit.

    Yields:
        None.

    Example:
        >>> with flush_denormals():
        ...     float(torch.tensor(1e-30) * 1e-10)
        0.0
    """
    previous = is_flushing_denormals()
    on_every_thread(lambda: _set_flush(True))
    try:
        yield
    finally:
        on_every_thread(lambda: _set_flush(previous))


def is_flushing_denormals() -> bool:
    """Whether the current thread flushes denormals to zero."""
    return float(torch.tensor(DENORMAL) * 1.0) == 0.0


def _set_flush(on: bool) -> None:
    torch.set_flush_denormal(on)

"""Numbers too small for a processor's pipelines, below 1e-38 in float32: each costs it a hundred times the time.

Deep networks are full of them: attention that starts at zero has gradients of gradients' size squared, and where little
comes back to the first layers that is 1e-40. A matrix product with them takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from equipoise.kernels.threads import on_every_thread

TOO_SMALL = 1e-40


@contextmanager
def denormals_as_zero() -> Iterator[None]:
    """For a while, such numbers are zero, on all of torch's threads.

    Example:
        >>> with denormals_as_zero():
        ...     float(torch.tensor(1e-30) * 1e-10)
        0.0
    """
    before = are_zero()
    on_every_thread(lambda: _set(True))
    try:
        yield
    finally:
        on_every_thread(lambda: _set(before))


def are_zero() -> bool:
    """Whether they are zero on this thread as it is."""
    return float(torch.tensor(TOO_SMALL) * 1.0) == 0.0


def _set(on: bool) -> None:
    torch.set_flush_denormal(on)

"""Random matrices, each from an explicit generator: Xavier, orthogonal, identity, and the looks-linear blocks.

Drawn in float64 on the CPU, so that a seed means the same numbers whatever the model's dtype and device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Generator, Tensor

Place = Literal["first", "hidden", "last", "only"]
Matrix = Callable[[int, int, Generator | None], Tensor]


def normal(*shape: int, generator: Generator | None) -> Tensor:
    """Independent standard normal numbers."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def xavier(rows: int, columns: int, generator: Generator | None) -> Tensor:
    """Xavier (Glorot) normal: variance 2 / (rows + columns)."""
    std: float = (2.0 / (rows + columns)) ** 0.5
    return std * normal(rows, columns, generator=generator)


def orthogonal(rows: int, columns: int, generator: Generator | None) -> Tensor:
    """A random matrix with orthonormal rows or columns, whichever are fewer, uniformly distributed (Haar).

    Example:
        >>> U = orthogonal(3, 5, torch.Generator().manual_seed(0))
        >>> torch.allclose(U @ U.T, torch.eye(3, dtype=torch.float64))
        True
    """
    q: Tensor
    q, r = torch.linalg.qr(normal(max(rows, columns), min(rows, columns), generator=generator))
    q = q * r.diagonal().sign()  # without the signs QR is not uniform
    return q if rows >= columns else q.T


def identity(rows: int, columns: int, generator: Generator | None) -> Tensor:  # noqa: ARG001 (nothing random about it)
    """Ones on the diagonal."""
    return torch.eye(rows, columns, dtype=torch.float64)


def looks_linear(block: Matrix, rows: int, columns: int, place: Place, generator: Generator | None) -> Tensor:
    """A matrix U with its mirror image, so that a ReLU network computes a linear function at the start.

        first: [U; −U]        hidden: [[U, −U], [−U, U]]        last: [U, −U]

    The first half of the neurons carries the positive part of U x, the second the negative one; the next layer takes
    their difference. ``rows`` must be even unless last, ``columns`` unless first.
    """
    read = columns if place in ("first", "only") else columns // 2
    write = rows if place in ("last", "only") else rows // 2
    U = block(write, read, generator)
    if place in ("hidden", "last"):
        U = torch.cat([U, -U], dim=1)
    if place in ("first", "hidden"):
        U = torch.cat([U, -U], dim=0)
    return U

"""Random matrices of the initialisation schemes: Xavier, orthogonal, identity and looks-linear.

Every matrix is drawn in float64 on the CPU from an explicit generator, so a seed gives the same numbers for any dtype
and device of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Generator, Tensor, nn

Position = Literal["first", "hidden", "last", "only"]
MatrixInit = Callable[[int, int, Generator | None], Tensor]


def normal(*shape: int, std: float, generator: Generator | None) -> Tensor:
    """Draw independent normal numbers with mean 0."""
    return nn.init.normal_(torch.empty(*shape, dtype=torch.float64), std=std, generator=generator)


def xavier(rows: int, columns: int, generator: Generator | None) -> Tensor:
    """Draw a Xavier (Glorot) normal matrix with variance 2 / (rows + columns)."""
    # nn.init.xavier_normal_ takes math.sqrt, which differs from ** 0.5 in the last bit for some rows + columns (669,
    # 1446, …). Published results were computed with ** 0.5.
    return normal(rows, columns, std=(2.0 / (rows + columns)) ** 0.5, generator=generator)


def orthogonal(rows: int, columns: int, generator: Generator | None) -> Tensor:
    """Draw a Haar-distributed matrix with orthonormal rows or columns, whichever are fewer.

    Args:
        rows: number of rows.
        columns: number of columns.
        generator: source of random numbers; None for torch's global generator.

    Returns:
        A float64 matrix of shape (rows, columns).

    Example:
        >>> U = orthogonal(3, 5, torch.Generator().manual_seed(0))
        >>> torch.allclose(U @ U.T, torch.eye(3, dtype=torch.float64))
        True
    """
    # Drawn tall and transposed: nn.init.orthogonal_ of a wide matrix consumes the random numbers in another order.
    tall = torch.empty(max(rows, columns), min(rows, columns), dtype=torch.float64)
    nn.init.orthogonal_(tall, generator=generator)
    return tall if rows >= columns else tall.T


def identity(rows: int, columns: int, generator: Generator | None) -> Tensor:  # noqa: ARG001 - same signature as the others
    """Return a matrix with ones on the diagonal."""
    return torch.eye(rows, columns, dtype=torch.float64)


def looks_linear(block: MatrixInit, rows: int, columns: int, position: Position, generator: Generator | None) -> Tensor:
    """Build a matrix from a block U and its mirror image −U, so that a ReLU network is linear at initialisation.

        first: [U; −U]        hidden: [[U, −U], [−U, U]]        last: [U, −U]

    The first half of the neurons carries the positive part of U x, the second half the negative part. The next layer
    takes their difference.

    Args:
        block: draws U.
        rows: number of rows; even unless the layer is the last.
        columns: number of columns; even unless the layer is the first.
        position: where the layer is in the network.
        generator: source of random numbers; None for torch's global generator.

    Returns:
        A float64 matrix of shape (rows, columns).
    """
    block_columns = columns if position in ("first", "only") else columns // 2
    block_rows = rows if position in ("last", "only") else rows // 2
    U = block(block_rows, block_columns, generator)
    if position in ("hidden", "last"):
        U = torch.cat([U, -U], dim=1)
    if position in ("first", "hidden"):
        U = torch.cat([U, -U], dim=0)
    return U

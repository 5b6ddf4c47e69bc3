"""Integer null vectors of a matrix of gradient products.

Rows of the matrix are samples × neurons, columns are slots, entries are ⟨θ_b[i], ∇θ_b[i]⟩. A law is a null vector with
entries −1, 0 and 1: the signs of its slots. This module only does linear algebra; it knows neither slots nor networks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

RANK_TOLERANCE = 1e-8  # singular values above this fraction of the largest are nonzero, however wide the gap
ROUNDING_TOLERANCE = 1e-9  # entries below this fraction of the largest in their vector are rounding error
INTEGER_TOLERANCE = 1e-5  # maximum distance of an entry to the nearest integer

Vector = list[int]


def integer_null_vectors(matrix: Tensor) -> list[Vector]:
    """Compute a basis of the null space in reduced row echelon form and keep its vectors with entries −1, 0, 1.

    Columns are normalised before the SVD, and a gap in the singular values determines the rank. In echelon form, laws
    with disjoint supports are separate vectors. Vectors with other entries are not laws.

    Args:
        matrix: Gradient products, at least as many independent rows as the rank of the columns.

    Returns:
        The null vectors; the first nonzero entry of each is 1.

    Example:
        >>> integer_null_vectors(torch.tensor([[1.0, 2.0, 1.0], [3.0, 5.0, 3.0], [2.0, 7.0, 2.0]]).double())
        [[1, 0, -1]]
    """
    scales = matrix.square().mean(dim=0).sqrt()
    _, singular_values, basis = torch.linalg.svd(matrix / scales, full_matrices=matrix.shape[0] < matrix.shape[1])
    rows = row_echelon(basis[_rank(singular_values) :])
    rows = torch.where(rows.abs() > ROUNDING_TOLERANCE * rows.abs().amax(dim=1, keepdim=True), rows, 0.0) / scales
    vectors = [row / row[row.nonzero()[0]] for row in rows]
    integral = [vector for vector in vectors if bool(((vector - vector.round()).abs() < INTEGER_TOLERANCE).all())]
    integers = [[int(entry) for entry in vector.round().tolist()] for vector in integral]
    return [vector for vector in integers if max(map(abs, vector)) == 1]


def pivot_columns(vectors: Sequence[Vector]) -> set[int]:
    """Return one column per independent vector; the vectors express these columns by the remaining ones."""
    if not vectors:
        return set()
    # Flipped: prefer columns on the right, which belong to slots that the network reads last.
    rows = row_echelon(torch.tensor(vectors, dtype=torch.float64).flip(1)).round()
    return {len(vectors[0]) - 1 - int(row.nonzero()[0]) for row in rows}


def sparsify(vectors: Sequence[Vector], known: Sequence[Vector] = (), boundary: int = 0) -> list[Vector]:
    """Reduce the number of nonzero entries by adding or subtracting other vectors.

    Among equally sparse vectors the one with the narrower support wins: columns are in the order in which the network
    reads the slots, so that neighbouring slots form a chain of laws.

    Args:
        vectors: Vectors to reduce.
        known: Further vectors that may be added or subtracted.
        boundary: Number of leading columns for the network's input and output. A vector that is zero in all of them
            stays zero there.

    Returns:
        The reduced vectors, in the same order.

    Example:
        >>> sparsify([[1, 1, 0, -1, -1]], known=[[1, 1, 0, 0, -1]])
        [[0, 0, 0, -1, 0]]
    """
    reduced = [list(vector) for vector in vectors]
    changed = True
    while changed:
        changed = False
        for k in range(len(reduced)):
            for other in [*reduced[:k], *reduced[k + 1 :], *known]:
                vector = reduced[k]
                if any(other[:boundary]) and not any(vector[:boundary]):
                    continue
                dot = sum(x * y for x, y in zip(vector, other, strict=True))
                combined = [x - (1 if dot > 0 else -1) * y for x, y in zip(vector, other, strict=True)]
                if dot and _sparsity(combined) < _sparsity(vector):
                    reduced[k], changed = combined, True
    return reduced


def _sparsity(vector: Vector) -> tuple[int, int]:
    """Sort key: sum of absolute entries, then width of the support."""
    support = [column for column, entry in enumerate(vector) if entry]
    return sum(map(abs, vector)), support[-1] - support[0] if support else 0


def row_echelon(rows: Tensor) -> Tensor:
    """Reduced row echelon form with partial pivoting, without zero rows."""
    rows, rank = rows.clone(), 0
    for column in range(rows.shape[1]):
        if rank == len(rows):
            break
        pivot = rank + int(rows[rank:, column].abs().argmax())
        if rows[pivot, column].abs() < ROUNDING_TOLERANCE:
            continue
        rows[[rank, pivot]] = rows[[pivot, rank]]
        rows[rank] /= rows[rank, column].clone()
        others = torch.arange(len(rows)) != rank
        rows[others] -= rows[others, column : column + 1] * rows[rank]
        rank += 1
    return rows[:rank]


def _rank(singular_values: Tensor) -> int:
    """Number of singular values before the widest gap that ends below ``RANK_TOLERANCE``."""
    relative = (singular_values / singular_values[0]).clamp_min(1e-18).tolist()
    gaps = [(relative[k - 1] / relative[k], k) for k in range(1, len(relative)) if relative[k] < RANK_TOLERANCE]
    return max(gaps)[1] if gaps else len(relative)

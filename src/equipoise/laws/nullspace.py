"""Integer null vectors of a matrix of gradient products.

Rows of the matrix are samples × neurons, columns are slots, entries are ⟨θ_b[i], ∇θ_b[i]⟩. A law is a null vector whose
entries are the exponents of its slots: small integers, in most networks −1, 0 and 1. This module only does linear
algebra; it knows neither slots nor networks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import gcd, lcm

import torch
from torch import Tensor

RANK_TOLERANCE = 1e-8  # a column is dependent if its distance to the span of the previous ones is below this fraction
ROUNDING_TOLERANCE = 1e-9  # entries below this fraction of the largest in their vector are rounding error
INTEGER_TOLERANCE = 1e-5  # maximum distance of an exponent to the nearest fraction
MAX_EXPONENT = 12

Vector = list[int]


def integer_null_vectors(matrix: Tensor) -> list[Vector]:
    """Compute a basis of the null space in echelon form and keep its vectors with small integer entries.

    A QR decomposition shows which columns are linear combinations of the columns before them; each such column gives
    one null vector. Ratios of exponents are fractions with small denominators; vectors with other entries are not laws.

    Args:
        matrix: Gradient products, with more independent rows than columns.

    Returns:
        The null vectors, without common factors; the first nonzero entry of each is positive.

    Example:
        >>> integer_null_vectors(torch.tensor([[1.0, 2.0, 1.0], [3.0, 5.0, 3.0], [2.0, 7.0, 2.0]]).double())
        [[1, 0, -1]]
        >>> integer_null_vectors(torch.tensor([[1.0, 2.0], [3.0, 6.0], [2.0, 4.0]]).double())
        [[2, -1]]
    """
    scales = matrix.norm(dim=0)
    r = torch.linalg.qr(matrix / scales, mode="r").R
    columns = matrix.shape[1]
    diagonal = torch.zeros(columns, dtype=matrix.dtype)
    diagonal[: len(r)] = r.diagonal().abs()
    independent = (diagonal > RANK_TOLERANCE).nonzero().flatten()
    dependent = (diagonal <= RANK_TOLERANCE).nonzero().flatten()
    if not len(dependent):
        return []
    coefficients = torch.linalg.solve_triangular(
        r[independent][:, independent], r[independent][:, dependent], upper=True
    )
    basis = torch.zeros(len(dependent), columns, dtype=matrix.dtype)
    basis[:, independent] = -coefficients.T
    basis[torch.arange(len(dependent)), dependent] = 1.0
    basis = torch.where(basis.abs() > ROUNDING_TOLERANCE * basis.abs().amax(dim=1, keepdim=True), basis, 0.0) / scales
    return [vector for row in basis if (vector := _to_integers(row)) is not None]


def _to_integers(row: Tensor) -> Vector | None:
    """Multiply a vector by a constant so that its entries are small integers without a common factor; None if none."""
    entries = row / row[row.abs().argmax()]
    nonzero = entries.nonzero().flatten().tolist()
    fractions = {k: Fraction(float(entries[k])).limit_denominator(MAX_EXPONENT) for k in nonzero}
    if any(not f or abs(float(f) - float(entries[k])) > INTEGER_TOLERANCE for k, f in fractions.items()):
        return None
    return _reduced([fractions.get(k, Fraction(0)) for k in range(len(entries))])


def _reduced(vector: Sequence[Fraction | int]) -> Vector | None:
    """Smallest integer multiple whose first nonzero entry is positive; None if an entry exceeds ``MAX_EXPONENT``."""
    multiple = lcm(*(Fraction(entry).denominator for entry in vector))
    integers = [int(entry * multiple) for entry in vector]
    divisor = gcd(*integers) or 1
    if next((entry for entry in integers if entry), 1) < 0:
        divisor = -divisor
    reduced = [entry // divisor for entry in integers]
    return reduced if max(map(abs, reduced)) <= MAX_EXPONENT else None


def pivot_columns(vectors: Sequence[Vector]) -> set[int]:
    """Return one column per independent vector; the vectors express these columns by the remaining ones."""
    if not vectors:
        return set()
    # Flipped: prefer columns on the right, which belong to slots that the network reads last.
    rows = row_echelon(torch.tensor(vectors, dtype=torch.float64).flip(1))
    return {len(vectors[0]) - 1 - int((row.abs() > 0.5).nonzero()[0]) for row in rows}


def sparsify(vectors: Sequence[Vector], known: Sequence[Vector] = (), boundary: int = 0) -> list[Vector]:
    """Reduce the number and size of the entries by adding multiples of other vectors.

    Among equally sparse vectors the one with the narrower support wins: columns are in the order in which the network
    reads the slots, so that neighbouring slots form a chain of laws.

    Args:
        vectors: Vectors to reduce.
        known: Further vectors of which multiples may be added.
        boundary: Number of leading columns for the network's input and output. A vector that is zero in all of them
            stays zero there.

    Returns:
        The reduced vectors, in the same order.

    Example:
        >>> sparsify([[1, 1, 0, -1, -1]], known=[[1, 1, 0, 0, -1]])
        [[0, 0, 0, 1, 0]]
    """
    reduced = [_Sparse(vector, boundary) for vector in vectors]
    fixed = [_Sparse(vector, boundary) for vector in known]
    changed = True
    while changed:
        changed = False
        for k in range(len(reduced)):
            for other in [*reduced[:k], *reduced[k + 1 :], *fixed]:
                if other.touches_boundary and not reduced[k].touches_boundary:
                    continue
                for combined in reduced[k].combinations(other):
                    if combined.key < reduced[k].key:
                        reduced[k], changed = combined, True
    return [vector.entries for vector in reduced]


class _Sparse:
    """A vector with its support and sort key: sum of absolute entries, then width of the support."""

    def __init__(self, entries: Vector, boundary: int) -> None:
        self.entries, self.boundary = entries, boundary
        self.support = {column for column, entry in enumerate(entries) if entry}
        width = max(self.support) - min(self.support) if self.support else 0
        self.key = sum(abs(entries[column]) for column in self.support), width
        self.touches_boundary = any(entries[:boundary])

    def combinations(self, other: _Sparse) -> Iterator[_Sparse]:
        """Combinations with ``other`` in which at least one common entry is zero."""
        ratios = {Fraction(self.entries[k], other.entries[k]) for k in self.support & other.support}
        for ratio in sorted(ratios):
            combined = _reduced(
                [ratio.denominator * x - ratio.numerator * y for x, y in zip(self.entries, other.entries, strict=True)]
            )
            if combined is not None and any(combined):
                yield _Sparse(combined, self.boundary)


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

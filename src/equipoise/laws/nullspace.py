"""Integer null vectors of a matrix of gradient products: numbers in, the signs of laws out.

Rows are samples × neurons, columns are slots, entries ⟨θ_b[i], ∇θ_b[i]⟩. A law is a null vector with entries 0 and ±1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

NULL = 1e-8  # a singular value above this fraction of the largest is no law, however wide the gap
NOISE = 1e-9  # a term this much smaller than the largest of its law is rounding error
INTEGER = 1e-5  # how far an entry of a law may be from an integer

Vector = list[int]


def integer_null_vectors(matrix: Tensor) -> list[Vector]:
    """A basis of the null space of ``matrix`` in echelon form, as vectors of −1, 0 and 1.

    Columns are brought to unit size and the rank is read off a gap in the singular values. In echelon form laws with
    disjoint supports stand apart; a vector with other entries is no law and left out.

    Example:
        >>> integer_null_vectors(torch.tensor([[1.0, 2.0, 1.0], [3.0, 5.0, 3.0], [2.0, 7.0, 2.0]]).double())
        [[1, 0, -1]]
    """
    sizes = matrix.square().mean(dim=0).sqrt()
    _, values, basis = torch.linalg.svd(matrix / sizes, full_matrices=matrix.shape[0] < matrix.shape[1])
    rows = echelon(basis[_rank(values) :])
    rows = torch.where(rows.abs() > NOISE * rows.abs().amax(dim=1, keepdim=True), rows, 0.0) / sizes
    vectors = [row / row[row.nonzero()[0]] for row in rows]
    near = [vector for vector in vectors if bool(((vector - vector.round()).abs() < INTEGER).all())]
    integers = [[int(entry) for entry in vector.round().tolist()] for vector in near]
    return [vector for vector in integers if max(map(abs, vector)) == 1]


def pivots(vectors: Sequence[Vector]) -> set[int]:
    """As many columns as there are independent vectors, each of which they express by the other columns."""
    if not vectors:
        return set()
    rows = echelon(torch.tensor(vectors, dtype=torch.float64).flip(1)).round()  # from the right: what is read last
    return {len(vectors[0]) - 1 - int(row.nonzero()[0]) for row in rows}


def shorten(vectors: Sequence[Vector], known: Sequence[Vector] = (), first: int = 0) -> list[Vector]:
    """The same vectors with fewer entries: add or subtract another one, or a known one, while that helps.

    Of two that are equally short the one whose entries are closer together is taken: slots stand in the order in which
    they are read, and neighbours make a chain. A vector that is zero in the ``first`` columns stays so.

    Example:
        >>> shorten([[1, 1, 0, -1, -1]], known=[[1, 1, 0, 0, -1]])
        [[0, 0, 0, -1, 0]]
    """
    short = [list(vector) for vector in vectors]
    changed = True
    while changed:
        changed = False
        for a in range(len(short)):
            for other in [*short[:a], *short[a + 1 :], *known]:
                vector = short[a]
                if any(other[:first]) and not any(vector[:first]):
                    continue
                overlap = sum(x * y for x, y in zip(vector, other, strict=True))
                combined = [x - (1 if overlap > 0 else -1) * y for x, y in zip(vector, other, strict=True)]
                if overlap and _length(combined) < _length(vector):
                    short[a], changed = combined, True
    return short


def _length(vector: Vector) -> tuple[int, int]:
    places = [place for place, entry in enumerate(vector) if entry]
    return sum(map(abs, vector)), places[-1] - places[0] if places else 0


def echelon(rows: Tensor) -> Tensor:
    """Reduced row echelon form; the pivot of a column is its largest entry."""
    rows, done = rows.clone(), 0
    for column in range(rows.shape[1]):
        if done == len(rows):
            break
        pivot = done + int(rows[done:, column].abs().argmax())
        if rows[pivot, column].abs() < NOISE:
            continue
        rows[[done, pivot]] = rows[[pivot, done]]
        rows[done] /= rows[done, column].clone()
        others = torch.arange(len(rows)) != done
        rows[others] -= rows[others, column : column + 1] * rows[done]
        done += 1
    return rows[:done]


def _rank(values: Tensor) -> int:
    """How many singular values stand before the widest gap that ends below ``NULL``."""
    relative = (values / values[0]).clamp_min(1e-18).tolist()
    gaps = [(relative[k - 1] / relative[k], k) for k in range(1, len(relative)) if relative[k] < NULL]
    return max(gaps)[1] if gaps else len(relative)

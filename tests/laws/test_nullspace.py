import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.laws.nullspace import echelon, integer_null_vectors, pivots, shorten


@st.composite
def disjoint_laws(draw):
    """A matrix with known laws: each law's columns sum to zero, with signs; some columns belong to none."""
    sizes = draw(st.lists(st.integers(2, 4), min_size=1, max_size=4))
    spare = draw(st.integers(0, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    columns, laws = [], []
    rows = 4 * (sum(sizes) + spare)
    total = sum(sizes) + spare
    for size in sizes:
        signs = [1, *draw(st.lists(st.sampled_from([1, -1]), min_size=size - 1, max_size=size - 1))]
        free = torch.randn(rows, size - 1, generator=generator, dtype=torch.float64)
        last = -signs[-1] * sum(sign * free[:, k] for k, sign in enumerate(signs[:-1]))
        magnitude = 10.0 ** draw(st.integers(-6, 6))  # a law's terms share a size; different laws need not
        laws.append([0] * len(columns) + signs + [0] * (total - len(columns) - size))
        columns += [magnitude * column for column in (*free.T, last)]
    columns += list(torch.randn(spare, rows, generator=generator, dtype=torch.float64))
    return torch.stack(columns, dim=1), laws


@given(disjoint_laws())
def test_finds_every_law_and_nothing_else(case):
    matrix, laws = case
    assert sorted(integer_null_vectors(matrix)) == sorted(laws)


@given(disjoint_laws(), st.randoms(use_true_random=False))
def test_the_order_of_columns_does_not_matter(case, random):
    matrix, laws = case
    order = list(range(matrix.shape[1]))
    random.shuffle(order)
    found = integer_null_vectors(matrix[:, order])
    expected = []
    for law in laws:
        moved = [law[column] for column in order]
        first = next(entry for entry in moved if entry)
        expected.append([entry * first for entry in moved])
    assert sorted(found) == sorted(expected)


def test_a_column_of_rounding_error_takes_no_part():
    matrix = torch.randn(40, 3, dtype=torch.float64)
    matrix = torch.cat([matrix, matrix[:, :1], 1e-17 * torch.randn(40, 1, dtype=torch.float64)], dim=1)
    assert integer_null_vectors(matrix) == [[1, 0, 0, -1, 0]]


def test_a_null_vector_with_other_entries_is_no_law():
    matrix = torch.randn(40, 2, dtype=torch.float64)
    matrix = torch.cat([matrix, 2.0 * matrix[:, :1]], dim=1)
    assert integer_null_vectors(matrix) == []


def test_almost_null_is_not_null():
    matrix = torch.randn(40, 2, dtype=torch.float64)
    matrix = torch.cat([matrix, matrix[:, :1] + 1e-6 * torch.randn(40, 1, dtype=torch.float64)], dim=1)
    assert integer_null_vectors(matrix) == []


def test_overlapping_laws_come_out_short():
    a, b = torch.randn(2, 40, dtype=torch.float64)
    found = shorten(integer_null_vectors(torch.stack([a, a, a, b], dim=1)))
    assert len(found) == 2
    assert all(sum(map(abs, vector)) == 2 for vector in found)


def test_shorten_keeps_the_first_columns_clear():
    assert shorten([[0, 1, 1, -1]], known=[[1, 1, 1, 0]], first=1) == [[0, 1, 1, -1]]
    assert shorten([[0, 1, 1, -1]], known=[[0, 1, 1, 0]], first=1) == [[0, 0, 0, -1]]


def test_pivots_are_as_many_as_independent_vectors():
    assert pivots([]) == set()
    assert pivots([[1, -1, 0, 0], [0, 1, -1, 0], [1, 0, -1, 0]]) == {1, 2}


def test_echelon_spans_the_same_space():
    rows = torch.randn(3, 7, dtype=torch.float64)
    reduced = echelon(rows)
    assert torch.linalg.matrix_rank(torch.cat([rows, reduced])) == 3
    torch.testing.assert_close(reduced[:, :3], torch.eye(3, dtype=torch.float64))

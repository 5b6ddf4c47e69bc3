import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.laws.nullspace import integer_null_vectors, pivot_columns, row_echelon, sparsify


@st.composite
def matrix_with_laws(draw):
    """A matrix with known laws of disjoint supports: signed sums of columns that vanish. Other columns have no law."""
    sizes = draw(st.lists(st.integers(2, 4), min_size=1, max_size=4))
    unrelated = draw(st.integers(0, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    columns, laws = [], []
    rows = 4 * (sum(sizes) + unrelated)
    total = sum(sizes) + unrelated
    for size in sizes:
        signs = [1, *draw(st.lists(st.sampled_from([1, -1]), min_size=size - 1, max_size=size - 1))]
        independent = torch.randn(rows, size - 1, generator=generator, dtype=torch.float64)
        dependent = -signs[-1] * sum(sign * independent[:, k] for k, sign in enumerate(signs[:-1]))
        scale = 10.0 ** draw(st.integers(-6, 6))  # terms of one law have a common scale, different laws have not
        laws.append([0] * len(columns) + signs + [0] * (total - len(columns) - size))
        columns += [scale * column for column in (*independent.T, dependent)]
    columns += list(torch.randn(unrelated, rows, generator=generator, dtype=torch.float64))
    return torch.stack(columns, dim=1), laws


@given(matrix_with_laws())
def test_finds_exactly_the_laws(matrix_and_laws):
    matrix, laws = matrix_and_laws
    assert sorted(integer_null_vectors(matrix)) == sorted(laws)


@given(matrix_with_laws(), st.randoms(use_true_random=False))
def test_order_of_columns_is_irrelevant(matrix_and_laws, random):
    matrix, laws = matrix_and_laws
    order = list(range(matrix.shape[1]))
    random.shuffle(order)
    vectors = integer_null_vectors(matrix[:, order])
    expected = []
    for law in laws:
        permuted = [law[column] for column in order]
        first = next(entry for entry in permuted if entry)
        expected.append([entry * first for entry in permuted])
    assert sorted(vectors) == sorted(expected)


def test_column_of_rounding_errors_has_coefficient_zero():
    matrix = torch.randn(40, 3, dtype=torch.float64)
    matrix = torch.cat([matrix, matrix[:, :1], 1e-17 * torch.randn(40, 1, dtype=torch.float64)], dim=1)
    assert integer_null_vectors(matrix) == [[1, 0, 0, -1, 0]]


def test_null_vectors_may_have_other_integer_entries_but_no_arbitrary_ones():
    a, b = torch.randn(2, 40, dtype=torch.float64)
    assert integer_null_vectors(torch.stack([a, b, 2.0 * a], dim=1)) == [[2, 0, -1]]
    assert integer_null_vectors(torch.stack([a, b, 1.5 * a - b / 3], dim=1)) == [[9, -2, -6]]
    assert integer_null_vectors(torch.stack([a, b, torch.pi * a], dim=1)) == []


def test_sparsify_combines_vectors_with_other_entries():
    assert sparsify([[1, -2, 0], [1, 0, -6]]) == [[1, -2, 0], [0, 1, -3]]


def test_almost_dependent_columns_are_independent():
    matrix = torch.randn(40, 2, dtype=torch.float64)
    matrix = torch.cat([matrix, matrix[:, :1] + 1e-6 * torch.randn(40, 1, dtype=torch.float64)], dim=1)
    assert integer_null_vectors(matrix) == []


def test_sparsify_separates_overlapping_laws():
    a, b = torch.randn(2, 40, dtype=torch.float64)
    vectors = sparsify(integer_null_vectors(torch.stack([a, a, a, b], dim=1)))
    assert len(vectors) == 2
    assert all(sum(map(abs, vector)) == 2 for vector in vectors)


def test_sparsify_keeps_boundary_columns_zero():
    assert sparsify([[0, 1, 1, -1]], known=[[1, 1, 1, 0]], boundary=1) == [[0, 1, 1, -1]]
    assert sparsify([[0, 1, 1, -1]], known=[[0, 1, 1, 0]], boundary=1) == [[0, 0, 0, 1]]


def test_one_pivot_column_per_independent_vector():
    assert pivot_columns([]) == set()
    assert pivot_columns([[1, -1, 0, 0], [0, 1, -1, 0], [1, 0, -1, 0]]) == {1, 2}


def test_row_echelon_spans_the_same_space():
    rows = torch.randn(3, 7, dtype=torch.float64)
    reduced = row_echelon(rows)
    assert torch.linalg.matrix_rank(torch.cat([rows, reduced])) == 3
    torch.testing.assert_close(reduced[:, :3], torch.eye(3, dtype=torch.float64))

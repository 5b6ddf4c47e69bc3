import pytest
import torch

from equipoise.init.matrices import identity, looks_linear, normal, orthogonal, xavier

SHAPES = [(1, 1), (1, 5), (4, 4), (3, 7), (7, 3), (17, 3), (64, 64), (32, 1433), (345, 324)]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def standard_normal(rows, columns, seed):
    return torch.randn(rows, columns, generator=seeded(seed), dtype=torch.float64)


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_xavier_is_a_scaled_standard_normal_to_the_bit(rows, columns):
    """(345, 324) is a shape for which nn.init.xavier_normal_ differs in the last bit."""
    expected = (2.0 / (rows + columns)) ** 0.5 * standard_normal(rows, columns, seed=3)
    assert torch.equal(xavier(rows, columns, seeded(3)), expected)


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_orthogonal_is_the_sign_corrected_qr_of_a_tall_matrix_to_the_bit(rows, columns):
    q, r = torch.linalg.qr(standard_normal(max(rows, columns), min(rows, columns), seed=3))
    q = q * r.diagonal().sign()
    assert torch.equal(orthogonal(rows, columns, seeded(3)), q if rows >= columns else q.T)


@pytest.mark.parametrize("shape", [(1, 1, 64), (1, 3, 5), (7,)])
def test_normal_is_a_scaled_standard_normal_to_the_bit(shape):
    expected = 0.173 * torch.randn(*shape, generator=seeded(), dtype=torch.float64)
    assert torch.equal(normal(*shape, std=0.173, generator=seeded()), expected)


@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (3, 7), (7, 3), (1, 5)])
def test_orthogonal_to_rounding(rows, columns):
    U = orthogonal(rows, columns, seeded())
    gram = U @ U.T if rows <= columns else U.T @ U
    torch.testing.assert_close(gram, torch.eye(min(rows, columns), dtype=torch.float64), rtol=0, atol=1e-14)


def test_orthogonal_is_not_biased_by_qr():
    """Without the sign correction a 1 × 1 orthogonal matrix would always have the same entry."""
    signs = {float(orthogonal(1, 1, seeded(seed))) for seed in range(20)}
    assert signs == {-1.0, 1.0}


def test_xavier_variance():
    W = xavier(400, 600, seeded())
    assert float(W.var()) == pytest.approx(2 / 1000, rel=0.02)
    assert abs(float(W.mean())) < 1e-3


@pytest.mark.parametrize("draw", [xavier, orthogonal])
def test_only_the_generator_determines_the_matrix(draw):
    first = draw(5, 6, seeded())
    torch.manual_seed(99)
    assert torch.equal(draw(5, 6, seeded()), first)
    assert not torch.equal(draw(5, 6, seeded(1)), first)


def test_looks_linear_blocks():
    first = looks_linear(orthogonal, 8, 5, "first", seeded())
    hidden = looks_linear(orthogonal, 6, 8, "hidden", seeded())
    last = looks_linear(orthogonal, 3, 6, "last", seeded())
    assert torch.equal(first[4:], -first[:4])
    assert torch.equal(hidden[:3, :4], hidden[3:, 4:])
    assert torch.equal(hidden[:3, :4], -hidden[3:, :4])
    assert torch.equal(hidden[:3, :4], -hidden[:3, 4:])
    assert torch.equal(last[:, :3], -last[:, 3:])
    x = torch.randn(5, 2, dtype=torch.float64)
    out = last @ (hidden @ (first @ x).relu()).relu()
    expected = last[:, :3] @ hidden[:3, :4] @ first[:4] @ x
    torch.testing.assert_close(out, expected)


def test_rectangular_identity():
    assert identity(2, 3, None).tolist() == [[1, 0, 0], [0, 1, 0]]

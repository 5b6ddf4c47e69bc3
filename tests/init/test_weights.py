import pytest
import torch

from equipoise.init.weights import identity, looks_linear, orthogonal, xavier


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (3, 7), (7, 3), (1, 5)])
def test_orthogonal_to_rounding(rows, columns):
    U = orthogonal(rows, columns, seeded())
    small = U @ U.T if rows <= columns else U.T @ U
    torch.testing.assert_close(small, torch.eye(min(rows, columns), dtype=torch.float64), rtol=0, atol=1e-14)


def test_orthogonal_is_not_biased_by_qr():
    """Without the signs of R the first entry of a 1 × 1 orthogonal matrix would always be the same."""
    signs = {float(orthogonal(1, 1, seeded(seed))) for seed in range(20)}
    assert signs == {-1.0, 1.0}


def test_xavier_has_its_variance():
    W = xavier(400, 600, seeded())
    assert float(W.var()) == pytest.approx(2 / 1000, rel=0.02)
    assert abs(float(W.mean())) < 1e-3


@pytest.mark.parametrize("draw", [xavier, orthogonal])
def test_the_generator_alone_decides(draw):
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


def test_identity_is_rectangular_where_it_must():
    assert identity(2, 3, None).tolist() == [[1, 0, 0], [0, 1, 0]]

import pytest
import torch
from torch_geometric.nn.dense.linear import Linear

from equipoise.nn.sparse_linear import feature_dropout, linear

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR")


@pytest.fixture
def x():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(9, 6, generator=generator).double() * (torch.rand(9, 6, generator=generator) < 0.4)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_sparse_product_and_gradient(x, layout, bias):
    lin = Linear(6, 5, bias=bias).double()
    sparse = x.to_sparse_csr() if layout == "csr" else x.to_sparse_coo()
    cotangent = torch.sin(torch.arange(45.0)).double().view(9, 5)
    expected = [lin(x), *torch.autograd.grad(lin(x), list(lin.parameters()), cotangent)]
    actual = [linear(lin, sparse), *torch.autograd.grad(linear(lin, sparse), list(lin.parameters()), cotangent)]
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_dropout_drops_stored_values(x, layout):
    sparse = x.to_sparse_csr() if layout == "csr" else x.to_sparse_coo()
    out = feature_dropout(sparse, 0.5, training=True).to_dense()
    stored = x != 0
    assert torch.equal(out[~stored], x[~stored])
    factor = out[stored] / x[stored]
    assert set(factor.round(decimals=6).tolist()) == {0.0, 2.0}
    assert torch.equal(feature_dropout(sparse, 0.5, training=False).to_dense(), x)


def test_product_after_dropout(x):
    lin = Linear(6, 5, bias=False).double()
    for _ in range(3):
        sparse = feature_dropout(x.to_sparse_csr(), 0.5, training=True)
        torch.testing.assert_close(linear(lin, sparse), sparse.to_dense() @ lin.weight.t())


def test_dense_dropout_equals_torchs(x):
    torch.manual_seed(0)
    expected = torch.nn.functional.dropout(x, 0.5)
    torch.manual_seed(0)
    assert torch.equal(feature_dropout(x, 0.5, training=True), expected)

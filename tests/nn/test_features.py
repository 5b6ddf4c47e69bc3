import pytest
import torch
from torch_geometric.nn.dense.linear import Linear

from equipoise.nn.features import dropped, linear

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR")


@pytest.fixture
def x():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(9, 6, generator=generator).double() * (torch.rand(9, 6, generator=generator) < 0.4)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("form", ["csr", "coo"])
def test_sparse_product_and_its_gradient(x, form, bias):
    lin = Linear(6, 5, bias=bias).double()
    sparse = x.to_sparse_csr() if form == "csr" else x.to_sparse_coo()
    cotangent = torch.sin(torch.arange(45.0)).double().view(9, 5)
    expected = [lin(x), *torch.autograd.grad(lin(x), list(lin.parameters()), cotangent)]
    actual = [linear(lin, sparse), *torch.autograd.grad(linear(lin, sparse), list(lin.parameters()), cotangent)]
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", ["csr", "coo"])
def test_dropout_drops_stored_values(x, form):
    sparse = x.to_sparse_csr() if form == "csr" else x.to_sparse_coo()
    out = dropped(sparse, 0.5, training=True).to_dense()
    stored = x != 0
    assert torch.equal(out[~stored], x[~stored])
    share = out[stored] / x[stored]
    assert set(share.round(decimals=6).tolist()) == {0.0, 2.0}
    assert torch.equal(dropped(sparse, 0.5, training=False).to_dense(), x)


def test_a_product_after_dropout_is_that_of_what_is_left(x):
    lin = Linear(6, 5, bias=False).double()
    for _ in range(3):
        left = dropped(x.to_sparse_csr(), 0.5, training=True)
        torch.testing.assert_close(linear(lin, left), left.to_dense() @ lin.weight.t())


def test_dense_dropout_is_torchs(x):
    torch.manual_seed(0)
    expected = torch.nn.functional.dropout(x, 0.5)
    torch.manual_seed(0)
    assert torch.equal(dropped(x, 0.5, training=True), expected)

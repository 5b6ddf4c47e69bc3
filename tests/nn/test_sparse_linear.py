import pytest
import torch
from torch_geometric.nn.dense.linear import Linear

from equipoise import Stack
from equipoise.errors import GraphError
from equipoise.nn.fused_aggregations import FusedSAGEConv
from equipoise.nn.fused_convs import FusedGATv2Conv
from equipoise.nn.fused_gcn import FusedGCNConv
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


def csr_with_column(column):
    pointers, columns = torch.tensor([0, 1, 2, 2, 2]), torch.tensor([0, column])
    return torch.sparse_csr_tensor(pointers, columns, torch.ones(2), (4, 6), check_invariants=False)


def coo_with_column(column):
    return torch.sparse_coo_tensor(torch.tensor([[0], [column]]), torch.ones(1), (4, 6), check_invariants=False)


def csc_with_row(row):
    pointers = torch.tensor([0, 1, 1, 1, 1, 1, 1])
    return torch.sparse_csc_tensor(pointers, torch.tensor([row]), torch.ones(1), (4, 6), check_invariants=False)


@pytest.mark.parametrize(("build", "index"), [(csr_with_column, 10**6), (csr_with_column, -5), (csc_with_row, 10**6)])
@pytest.mark.parametrize("engine", ["fused", "reference"])
def test_invalid_indices_of_a_sparse_tensor_are_an_error_and_not_a_crash(build, index, engine, monkeypatch):
    monkeypatch.setenv("EQUIPOISE_ENGINE", engine)
    x = build(index)
    for conv in (FusedGATv2Conv(6, 8), FusedGCNConv(6, 8), FusedSAGEConv(6, 8, project=True)):
        with pytest.raises(GraphError, match="indices are invalid"):
            conv(x, torch.tensor([[0], [1]]))


def test_invalid_indices_of_a_stack_with_dropout():
    stack = Stack("gatv2", [6, 8, 3], input_dropout=0.5)
    with pytest.raises(GraphError, match="indices are invalid"):
        stack(coo_with_column(10**6), torch.tensor([[0], [1]]))


def test_columns_edited_through_numpy_are_noticed():
    lin, x = Linear(6, 5, bias=False), csr_with_column(1)
    before = linear(lin, x)
    x.col_indices().numpy()[1] = 4
    assert not torch.equal(linear(lin, x), before)
    torch.testing.assert_close(linear(lin, x), x.to_dense() @ lin.weight.t())

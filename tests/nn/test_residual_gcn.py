"""GCN with a learned skip: GCN plus a matrix."""

import torch
from torch_geometric.nn import GCNConv

from equipoise.nn.residual_gcn import ResidualGCNConv

EDGES = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 3]])


def test_is_gcn_plus_a_matrix() -> None:
    conv, stock, x = ResidualGCNConv(3, 2), GCNConv(3, 2), torch.randn(4, 3)
    keys = stock.load_state_dict(conv.state_dict(), strict=False)
    assert keys.missing_keys == []
    assert keys.unexpected_keys == ["res.weight"]
    weight = torch.rand(4)
    torch.testing.assert_close(conv(x, EDGES), stock(x, EDGES) + x @ conv.res.weight.t())
    torch.testing.assert_close(conv(x, EDGES, weight), stock(x, EDGES, weight) + x @ conv.res.weight.t())


def test_reset_parameters_draws_the_skip_too() -> None:
    conv = ResidualGCNConv(3, 2)
    torch.manual_seed(0)
    conv.reset_parameters()
    first = {name: value.clone() for name, value in conv.state_dict().items()}
    conv.reset_parameters()
    assert not torch.equal(conv.res.weight, first["res.weight"])
    torch.manual_seed(0)
    conv.reset_parameters()
    assert all(torch.equal(value, first[name]) for name, value in conv.state_dict().items())

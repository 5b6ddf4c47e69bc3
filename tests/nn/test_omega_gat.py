"""ωGAT against a loop over nodes, against GATv2 (ω = 1) and against a linear layer (ω = 0)."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call
from torch_geometric import EdgeIndex
from torch_geometric.nn import GATv2Conv

from equipoise.errors import ArchitectureError, ForwardError
from equipoise.nn.omega_gat import OmegaGATConv
from tests import networks
from tests.networks import neighbours, random_graph

node_counts = st.integers(1, 6)
flags = st.booleans()


random_layer = partial(networks.random_layer, OmegaGATConv)


def reference(conv: OmegaGATConv, x: Tensor, edge_index: Tensor) -> Tensor:
    """(1−ω)⊙Z + ω⊙AZ, per node and head."""
    H, C = conv.heads, conv.out_channels
    Z, T = conv.lin_l(x).view(-1, H, C), conv.lin_r(x).view(-1, H, C)
    rows = []
    for i in range(len(x)):
        heads = []
        for k in range(H):
            neighbourhood = neighbours(edge_index, i, conv.add_self_loops)
            e = [
                torch.exp(conv.att[0, k] @ F.leaky_relu(Z[j, k] + T[i, k], conv.negative_slope)) for j in neighbourhood
            ]
            AZ = sum(
                (e_j / sum(e) * Z[j, k] for e_j, j in zip(e, neighbourhood, strict=True)), torch.zeros_like(Z[i, k])
            )
            heads.append((1 - conv.omega[0, k]) * Z[i, k] + conv.omega[0, k] * AZ)
        rows.append(torch.cat(heads) if conv.concat else sum(heads) / H)
    out = torch.stack(rows)
    out = out if conv.res is None else out + x @ conv.res.weight.t()
    return out if conv.bias is None else out + conv.bias


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    count=node_counts,
    edges=st.integers(0, 14),
    heads=st.integers(1, 4),
    concat=flags,
    share_weights=flags,
    bias=flags,
    residual=flags,
    add_self_loops=flags,
)
def test_equals_the_reference(seed: int, count: int, edges: int, **options: object) -> None:
    conv = random_layer(seed, **options)
    x, edge_index = random_graph(seed, count, edges)
    torch.testing.assert_close(conv(x, edge_index), reference(conv, x, edge_index), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("concat", [True, False])
@pytest.mark.parametrize("share_weights", [True, False])
def test_gradients(heads: int, concat: bool, share_weights: bool) -> None:
    conv = random_layer(1, heads=heads, concat=concat, share_weights=share_weights, residual=True)
    x, edge_index = random_graph(2, count=4, edges=9)
    names, parameters = zip(*conv.named_parameters(), strict=True)
    assert "omega" in names

    def layer(x: Tensor, *values: Tensor) -> Tensor:
        return functional_call(conv, dict(zip(names, values, strict=True)), (x, edge_index))

    assert torch.autograd.gradcheck(layer, (x.requires_grad_(), *parameters))


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("concat", [True, False])
@pytest.mark.parametrize("share_weights", [True, False])
def test_is_initialised_as_gatv2(heads: int, concat: bool, share_weights: bool) -> None:
    options = {"heads": heads, "concat": concat, "share_weights": share_weights, "residual": True}
    conv, stock = OmegaGATConv(3, 2, **options), GATv2Conv(3, 2, **options)
    keys = stock.load_state_dict(conv.state_dict(), strict=False)
    assert keys.missing_keys == []
    assert keys.unexpected_keys == ["omega"]
    x, edge_index = random_graph(3, count=6, edges=12)
    x = x.float()
    torch.testing.assert_close(conv(x, edge_index), stock(x, edge_index))


@pytest.mark.parametrize("share_weights", [True, False])
def test_is_linear_for_omega_zero(share_weights: bool) -> None:
    conv = random_layer(4, heads=3, share_weights=share_weights, bias=False)
    nn.init.zeros_(conv.omega)
    x, edge_index = random_graph(4, count=6, edges=12)
    assert torch.equal(conv(x, edge_index), x @ conv.lin_l.weight.t())


def test_omega_is_one_per_head_and_channel() -> None:
    conv = random_layer(5, heads=3, bias=False)
    x, edge_index = random_graph(5, count=6, edges=12)
    before = conv(x, edge_index)
    with torch.no_grad():
        conv.omega[0, 1, 0] += 1
    changed = (conv(x, edge_index) != before).any(dim=0)
    assert changed.tolist() == [False, False, True, False, False, False]


def test_reset_parameters() -> None:
    conv = random_layer(6, heads=2)
    before = conv.lin_l.weight.clone()
    torch.manual_seed(0)
    conv.reset_parameters()
    assert torch.equal(conv.omega, torch.ones(1, 2, 2, dtype=torch.float64))
    assert torch.equal(conv.bias, torch.zeros(4, dtype=torch.float64))
    assert not torch.equal(conv.lin_l.weight, before)
    first = {name: value.clone() for name, value in conv.state_dict().items()}
    torch.manual_seed(0)
    conv.reset_parameters()
    assert all(torch.equal(value, first[name]) for name, value in conv.state_dict().items())


def test_signature_is_that_of_gatv2() -> None:
    conv = OmegaGATConv(3, 2, heads=2, edge_dim=1)
    x, edge_index = random_graph(7, count=5, edges=8)
    x, weights = x.float(), torch.rand(8, 1)
    out, (loops, alpha) = conv(x, edge_index, weights, return_attention_weights=True)
    assert out.shape == (5, 4)
    assert alpha.shape == (loops.size(1), 2)
    assert torch.equal(conv(x, EdgeIndex(edge_index, sparse_size=(5, 5)), weights), conv(x, edge_index, weights))
    assert not torch.equal(conv(x, edge_index, 5 * weights), out)


def test_bipartite_input_is_rejected() -> None:
    with pytest.raises(ArchitectureError, match=r"bipartite input(.|\n)*in_channels=\(3, 4\)(.|\n)*GATv2Conv"):
        OmegaGATConv((3, 4), 2)
    x, edge_index = random_graph(8, count=4, edges=6)
    with pytest.raises(ForwardError, match=r"got a tuple(.|\n)*GATv2Conv"):
        OmegaGATConv(3, 2).double()((x, x), edge_index)

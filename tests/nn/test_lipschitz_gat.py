"""Lipschitz normalisation against a loop over nodes, including divisors of zero."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call
from torch_geometric import EdgeIndex
from torch_geometric.nn import GATConv

from equipoise.errors import ArchitectureError, ForwardError
from equipoise.nn.lipschitz_gat import LipschitzGATConv
from tests import networks
from tests.networks import neighbours, random_graph

node_counts = st.integers(1, 6)
flags = st.booleans()


random_layer = partial(networks.random_layer, LipschitzGATConv)


def reference(conv: LipschitzGATConv, x: Tensor, edge_index: Tensor) -> Tensor:
    """GAT with e_ij / (4 ‖a‖ √(max ‖z_j‖² + ‖z_i‖²)) in the softmax, per node and head."""
    H, C = conv.heads, conv.out_channels
    z = conv.lin(x).view(-1, H, C)
    rows = []
    for i in range(len(x)):
        heads = []
        for k in range(H):
            neighbourhood = neighbours(edge_index, i, conv.add_self_loops)
            a_src, a_dst = conv.att_src[0, k], conv.att_dst[0, k]
            max_squared = max((z[j, k] @ z[j, k] for j in neighbourhood), default=0.0)
            bound = 4 * torch.cat([a_src, a_dst]).norm() * (max_squared + z[i, k] @ z[i, k]).sqrt()
            scores = [F.leaky_relu(a_src @ z[j, k] + a_dst @ z[i, k], conv.negative_slope) for j in neighbourhood]
            e = [torch.exp(score / bound) for score in scores]
            heads.append(
                sum(
                    (e_j / sum(e) * z[j, k] for e_j, j in zip(e, neighbourhood, strict=True)), torch.zeros_like(z[i, k])
                )
            )
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
    bias=flags,
    residual=flags,
    add_self_loops=flags,
    negative_slope=st.sampled_from([0.0, 0.2, 1.0]),
)
def test_equals_the_reference(seed: int, count: int, edges: int, **options: object) -> None:
    conv = random_layer(seed, **options)
    x, edge_index = random_graph(seed, count, edges)
    torch.testing.assert_close(conv(x, edge_index), reference(conv, x, edge_index), rtol=1e-10, atol=1e-10)


def test_is_not_gat() -> None:
    conv, stock = random_layer(0, heads=2), GATConv(3, 2, heads=2).double()
    stock.load_state_dict(conv.state_dict())
    x, edge_index = random_graph(0, count=6, edges=12)
    assert float((conv(x, edge_index) - stock(x, edge_index)).detach().abs().max()) > 0.1


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("concat", [True, False])
@pytest.mark.parametrize("add_self_loops", [True, False])
def test_gradients(heads: int, concat: bool, add_self_loops: bool) -> None:
    conv = random_layer(1, heads=heads, concat=concat, add_self_loops=add_self_loops, residual=True)
    x, edge_index = random_graph(2, count=4, edges=9)
    names, parameters = zip(*conv.named_parameters(), strict=True)

    def layer(x: Tensor, *values: Tensor) -> Tensor:
        return functional_call(conv, dict(zip(names, values, strict=True)), (x, edge_index))

    assert torch.autograd.gradcheck(layer, (x.requires_grad_(), *parameters))


def gradients(conv: LipschitzGATConv, x: Tensor, edge_index: Tensor) -> list[Tensor]:
    torch.manual_seed(0)
    out = conv(x.requires_grad_(), edge_index)
    assert bool(torch.isfinite(out).all())
    return list(torch.autograd.grad(out, [x, *conv.parameters()], torch.randn_like(out)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("attention", [0.0, 1e-30, 1.0])
@pytest.mark.parametrize("features", [0.0, 1e-30, 1.0])
@pytest.mark.parametrize("add_self_loops", [True, False])
def test_gradients_are_finite_at_zero(
    dtype: torch.dtype, attention: float, features: float, add_self_loops: bool
) -> None:
    conv = random_layer(3, heads=2, add_self_loops=add_self_loops).to(dtype)
    with torch.no_grad():
        conv.att_src *= attention
        conv.att_dst *= attention
    x, edge_index = random_graph(3, count=5, edges=9)
    x = (features * x).to(dtype)
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients(conv, x, edge_index))


def test_zero_rows() -> None:
    conv = random_layer(4, heads=2, bias=False)
    x, edge_index = random_graph(4, count=5, edges=9)
    x[[0, 2]] = 0
    expected = reference(conv, x, edge_index).nan_to_num(0.0)  # 0/0 where all neighbours are zero, whose mean is 0
    torch.testing.assert_close(conv(x, edge_index), expected)
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients(conv, x, edge_index))


def test_zero_attention_is_uniform_and_has_a_gradient() -> None:
    conv = random_layer(5, heads=2)
    nn.init.zeros_(conv.att_src)
    nn.init.zeros_(conv.att_dst)
    x, edge_index = random_graph(5, count=5, edges=9)
    _, (loops, alpha) = conv(x, edge_index, return_attention_weights=True)
    degree = torch.bincount(loops[1])
    torch.testing.assert_close(alpha, (1 / degree[loops[1]]).double()[:, None].expand(-1, 2))
    names = ["x", *(name for name, _ in conv.named_parameters())]
    gradient_of = dict(zip(names, gradients(conv, x, edge_index), strict=True))
    assert float(gradient_of["att_src"].abs().min()) > 0


@pytest.mark.parametrize("scale", [1e-3, 1e6])
def test_scores_are_bounded_and_scale_free(scale: float) -> None:
    conv = random_layer(6, heads=3)
    x, edge_index = random_graph(6, count=6, edges=20)
    _, (loops, alpha) = conv(x, edge_index, return_attention_weights=True)
    with torch.no_grad():
        conv.att_src *= scale
        conv.att_dst *= scale
        conv.lin.weight *= scale
    _, (_, rescaled) = conv(x, edge_index, return_attention_weights=True)
    torch.testing.assert_close(rescaled, alpha)
    for i in range(6):
        log_alpha = alpha[loops[1] == i].detach().log()
        assert float((log_alpha.amax(0) - log_alpha.amin(0)).max()) <= 0.5


def test_state_dict_is_that_of_gat() -> None:
    conv, stock = LipschitzGATConv(3, 2, heads=4, residual=True), GATConv(3, 2, heads=4, residual=True)
    stock.load_state_dict(conv.state_dict())
    conv.load_state_dict(stock.state_dict())
    assert [name for name, _ in conv.named_parameters()] == [name for name, _ in stock.named_parameters()]


def test_reset_parameters() -> None:
    conv = random_layer(7, heads=2)
    torch.manual_seed(0)
    conv.reset_parameters()
    first = {name: value.clone() for name, value in conv.state_dict().items()}
    conv.reset_parameters()
    assert not torch.equal(conv.att_src, first["att_src"])
    torch.manual_seed(0)
    conv.reset_parameters()
    assert all(torch.equal(value, first[name]) for name, value in conv.state_dict().items())


def test_attention_dropout_in_training_only() -> None:
    conv = random_layer(8, dropout=0.5)
    x, edge_index = random_graph(8, count=6, edges=20)
    assert not torch.equal(conv(x, edge_index), conv(x, edge_index))
    conv.eval()
    assert torch.equal(conv(x, edge_index), conv(x, edge_index))


def test_edge_index_class() -> None:
    conv = random_layer(9, heads=2)
    x, edge_index = random_graph(9, count=5, edges=8)
    assert torch.equal(conv(x, EdgeIndex(edge_index, sparse_size=(5, 5))), conv(x, edge_index))


def test_unsupported_inputs_are_rejected() -> None:
    with pytest.raises(ArchitectureError, match=r"bipartite input(.|\n)*in_channels=\(3, 4\)(.|\n)*GATConv"):
        LipschitzGATConv((3, 4), 2)
    with pytest.raises(ArchitectureError, match=r"edge_dim=1"):
        LipschitzGATConv(3, 2, edge_dim=1)
    x, edge_index = random_graph(10, count=4, edges=6)
    conv = random_layer(10)
    with pytest.raises(ForwardError, match=r"one tensor of node features(.|\n)*GATConv"):
        conv((x, x), edge_index)
    with pytest.raises(ForwardError, match=r"no edge features"):
        conv(x, edge_index, torch.ones(6, 1))

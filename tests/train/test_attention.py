import pytest
import torch
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, TransformerConv
from torch_geometric.utils import remove_self_loops, softmax

from equipoise.nn.gat import FusedGATConv
from equipoise.nn.gatv2 import FusedGATv2Conv
from equipoise.nn.lipschitz import LipschitzGATConv
from equipoise.nn.omega_gat import OmegaGATConv
from equipoise.train.attention import SCORES, attention_scores
from tests.networks import random_graph, random_layer


def coefficients(scores, target, nodes):
    return softmax(scores, target, num_nodes=nodes)


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("kind", [GATv2Conv, FusedGATv2Conv, OmegaGATConv, GATConv, FusedGATConv, LipschitzGATConv])
def test_coefficients_are_those_of_pyg(kind, heads, loops):
    x, edge_index = random_graph(0, count=9, edges=20)
    edge_index = remove_self_loops(edge_index)[0].unique(dim=1)
    conv = random_layer(kind, seed=1, heads=heads, add_self_loops=loops, dropout=0.5)
    _, (edges, alpha) = conv.eval()(x, edge_index, return_attention_weights=True)
    conv.train()
    scores, target = attention_scores(conv, x, edge_index)
    torch.testing.assert_close(target, edges[1])
    torch.testing.assert_close(coefficients(scores, target, 9), alpha)
    assert conv.training


def test_separate_weights_of_gatv2():
    x, edge_index = random_graph(1, count=9, edges=20)
    edge_index = remove_self_loops(edge_index)[0]
    conv = random_layer(GATv2Conv, seed=1, share_weights=False)
    _, (_, alpha) = conv(x, edge_index, return_attention_weights=True)
    scores, target = attention_scores(conv, x, edge_index)
    torch.testing.assert_close(coefficients(scores, target, 9), alpha)


def test_other_layers_are_asked_and_those_without_attention_left_alone():
    x, edge_index = random_graph(2, count=9, edges=20)
    conv = random_layer(TransformerConv, seed=1, heads=2)
    assert TransformerConv not in SCORES
    _, (_, alpha) = conv(x, edge_index, return_attention_weights=True)
    scores, target = attention_scores(conv, x, edge_index)
    torch.testing.assert_close(coefficients(scores, target, 9), alpha)
    assert attention_scores(random_layer(GCNConv, seed=1), x, edge_index) is None

"""Which form of features a model gets."""

import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT

from equipoise.nn.fuse import fuse_
from equipoise.nn.stack import Stack
from equipoise.train.features import features_for, trial


def words(share=0.05):
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(60, 50, generator=generator) < share).float()
    return Data(x=x, edge_index=torch.randint(0, 60, (2, 200), generator=generator))


def test_bags_of_words_become_sparse_rows():
    data = words()
    for model in (Stack("gatv2", [50, 8, 3]), Stack("gcn", [50, 8, 3], dropout=0.5), fuse_(GAT(50, 8, 2, 3))):
        x = features_for(model, data)
        assert x.layout == torch.sparse_csr
        assert torch.equal(x.to_dense(), data.x)


def test_dense_and_sparse_features_stay_what_they_are():
    dense = words(share=0.5)
    assert features_for(Stack("gatv2", [50, 8, 3]), dense) is dense.x
    sparse = words()
    sparse.x = sparse.x.to_sparse_csr()
    assert features_for(Stack("gatv2", [50, 8, 3]), sparse) is sparse.x


class DropsItsInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = Stack("gatv2", [50, 3])

    def forward(self, x, edge_index):
        return self.conv(nn.functional.dropout(x, 0.5, self.training), edge_index)


class ReadsZeros(nn.Module):
    """Takes sparse features and makes something else of them."""

    def forward(self, x, _edge_index):
        return x.sum(dim=1) if x.layout == torch.strided else torch.zeros(60)


def test_models_that_do_not_work_on_sparse_rows_get_dense_features():
    data = words()
    for model in (DropsItsInput(), ReadsZeros()):
        assert features_for(model, data) is data.x


def test_a_trial_leaves_no_trace():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout()).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    with trial(model):
        model.train()(torch.randn(5, 3))
    assert not model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())

import pytest
import torch
from torch import nn
from torch_geometric.data import Data

from equipoise.errors import ForwardError, LawError
from equipoise.laws.discover import discover
from equipoise.laws.probe import Probe
from tests.networks import CLASSES, FEATURES, gatv2, graph

X = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))


def test_keyword_arguments_and_pyg_data():
    class DataModel(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = gatv2([FEATURES, 8, CLASSES])

        def forward(self, data, scale=1.0):
            return scale * self.net(data.x, data.edge_index)

    x, edge_index = graph()
    data = Data(x=x.clone(), edge_index=edge_index)
    assert len(discover(DataModel(), data, scale=2.0)) == 1
    assert data.x.dtype == torch.float32
    assert torch.equal(data.x, x)


def test_sparse_inputs_are_supported():
    x, edge_index = graph()
    laws = discover(gatv2([FEATURES, 8, CLASSES]), x.relu().to_sparse_coo(), edge_index)
    assert [law.neurons for law in laws] == [8]


def test_gates_prevent_oversmoothing_in_a_deep_network():
    model = gatv2([FEATURES, *[16] * 40, CLASSES], share_weights=True, bias=False)
    x, _ = graph()
    complete = torch.cartesian_prod(torch.arange(len(x)), torch.arange(len(x))).T
    probe = Probe(model, (x, complete), {}, None)
    probe.randomize()
    ungated, gated = (relative_deviation(probe.forward(gated).detach()) for gated in (False, True))
    assert ungated < 1e-6
    assert gated > 1e-2


def relative_deviation(output):
    return float((output - output.mean(0)).norm() / output.norm())


def test_forward_is_deterministic_until_randomize():
    model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    probe = Probe(model, (X,), {}, None)
    probe.randomize()
    first, second = probe.forward(), probe.forward()
    probe.randomize()
    assert torch.equal(first, second)
    assert not torch.equal(first, probe.forward())


def test_positive_parameters_stay_positive():
    model = nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8))
    probe = Probe(model, (X,), {}, None)
    probe.randomize()
    assert bool((probe.parameters["1.weight"] > 0).all())
    assert bool((probe.parameters["0.weight"] < 0).any())


def test_discover_works_without_gradients():
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        assert len(discover(model, X)) == 1
        assert not torch.is_grad_enabled()
    with torch.inference_mode():
        assert len(discover(model, X.clone())) == 1


def test_lazy_parameters_are_initialised_on_a_copy():
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 3))
    (law,) = discover(model, X)
    assert isinstance(model[0].weight, nn.UninitializedParameter)
    with pytest.raises(LawError, match="run the model once"):
        law.imbalance()
    model(X)
    assert law.imbalance().shape == (8,)


def test_missing_attribute_of_a_data_object():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = gatv2([FEATURES, 8, CLASSES])

        def forward(self, x, edge_index, position):
            return self.net(x + position, edge_index)

    x, edge_index = graph()
    with pytest.raises(ForwardError, match="requires 'position', which Data does not have"):
        discover(Model(), Data(x=x, edge_index=edge_index))


def test_a_short_bias_that_happens_to_be_positive_hides_no_term():
    """Kept positive and large, it would make LeakyReLU linear, and the scores would lose the target weights."""
    for seed in range(4):
        torch.manual_seed(seed)
        model = gatv2([FEATURES, 8, 8, CLASSES], share_weights=False, bias=True)
        for conv in (model.conv3.lin_l, model.conv3.lin_r):
            nn.init.uniform_(conv.bias, 0.1, 1.0)
        laws = discover(model, *graph())
        assert len(laws) == 2
        assert "conv3.lin_r.weight" in {slot.name for slot in laws[1].outgoing}


def test_a_short_parameter_under_a_logarithm_stays_positive():
    class LogScale(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.scale = (
                nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)),
                nn.Parameter(torch.ones(3)),
            )

        def forward(self, x):
            return self.net(x) + self.scale.log()

    model = LogScale()
    model.scale.data = torch.tensor([0.5, 1.0, 2.0])
    assert [law.neurons for law in discover(model, X)] == [8]


def test_a_forward_pass_gives_no_more_samples_than_its_output_has_entries():
    """Further ones would be linear combinations, and the search would take every relation among them for a law."""

    class Mean(nn.Module):
        def forward(self, x):
            return x.mean()

    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3), Mean())
    assert len(Probe(model, (X,), {}, None).gradient_products(5)) == 1
    assert [law.neurons for law in discover(model, X)] == [8]


def test_tensors_of_the_default_dtype_are_float64_in_the_copy_only():
    """As in PyG's ``SGFormer``."""

    class Normalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(5, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.second(self.first(x).relu()) / (x @ torch.ones(5, 1)).abs()

    assert [law.neurons for law in discover(Normalised(), X)] == [8]
    assert torch.get_default_dtype() == torch.float32

"""Laws hold on the networks they belong to, and only there: by rescaling and by gradients."""

import torch
import torch_geometric.nn as pyg
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from equipoise.laws.discover import discover, verify
from equipoise.laws.law import Law
from equipoise.laws.probe import Probe
from equipoise.laws.verification import plausible
from tests.networks import CLASSES, FEATURES, Chain, gatv2, graph, loss, random_gatv2


def test_verify_distinguishes_laws_from_other_relations():
    model = gatv2([FEATURES, 8, 8, CLASSES])
    laws = discover(model, *graph())
    incomplete = Law(laws[0].incoming, laws[0].outgoing[1:])
    changes = verify(model, [*laws, incomplete], *graph())
    assert max(changes[:2]) < 1e-12
    assert changes[2] > 1e-3


def test_laws_hold_for_another_model_with_the_same_architecture():
    first, second = (nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)) for _ in range(2))
    x = torch.randn(6, 5)
    assert max(verify(second, discover(first, x), x)) < 1e-12


def test_a_false_candidate_does_not_refute_true_ones_of_the_same_shape():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    x = torch.randn(6, 4)
    first, second = discover(model, x)
    false = Law(first.incoming, second.outgoing)
    probe = Probe(model, (x,), {}, None)
    assert plausible(probe, [false, first, second]) == [first, second]


@given(random_gatv2(), st.integers(0, 99))
def test_laws_of_random_networks_hold_at_random_parameters(model, seed):
    x, edge_index = graph(seed, torch.float64)
    laws = discover(model, x, edge_index)
    assert len(laws) == len(list(model.children())) - 1
    assert max(verify(model, laws, x, edge_index)) < 1e-9
    torch.manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.5)
    assume(bool(model(x, edge_index).any()))  # not all ReLUs of a layer are dead
    loss(model(x, edge_index)).backward()
    for law in laws:
        size = max(float(slot.gradient_product().abs().max()) for slot in law.slots)
        assert float(law.residual().abs().max()) <= 1e-12 * size


def test_erratum_1_published_law_for_separate_weights_fails_and_the_corrected_one_holds():
    """The paper's law for separate weights omits the target weights of the next layer."""
    convs = [pyg.GATv2Conv(a, b, bias=False) for a, b in ((FEATURES, 8), (8, 8), (8, CLASSES))]
    model = Chain(*convs).double()
    x, edge_index = graph(dtype=torch.float64)
    corrected = discover(model, x, edge_index)[0]
    published = Law(corrected.incoming, tuple(s for s in corrected.outgoing if s.name != "conv2.lin_r.weight"))
    assert len(published.outgoing) == len(corrected.outgoing) - 1
    loss(model(x, edge_index)).backward()
    size = float(corrected.incoming[0].gradient_product().abs().max())
    published_residual, corrected_residual = (float(law.residual().abs().max()) for law in (published, corrected))
    message = f"terms {size:.1e}, residual as published {published_residual:.1e}, corrected {corrected_residual:.1e}"
    assert published_residual > 1e-3 * size, message
    assert corrected_residual < 1e-14 * size + 1e-17, message

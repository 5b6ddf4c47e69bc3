import pytest
import torch

from equipoise.bench.cases import Case, load_graph
from equipoise.bench.competitors import (
    WARMUP_EPOCHS,
    EmptyNetwork,
    build_stack,
    check_agreement,
    compiled_variants,
    plain_loop_timer,
    pyg_variants,
    train_timer,
)
from equipoise.bench.report import EQUIPOISE
from equipoise.errors import MeasurementError

DENSE = Case("dense", layers=2, nodes=60, edges=240, features=5, width=8)
SPARSE = Case("sparse", layers=2, dataset="synthetic-citation", width=8)


@pytest.mark.parametrize(
    ("case", "names"),
    [
        (DENSE, ["PyG", "PyG looped"]),
        (SPARSE, ["PyG", "PyG looped", "PyG sparse", "PyG sparse looped"]),
    ],
)
def test_all_pyg_variants_agree_with_the_stack(case, names):
    data = load_graph(case)
    variants = pyg_variants(case, data)
    assert list(variants) == names
    check_agreement(build_stack(case, data), data, {name: forward for name, (_, forward) in variants.items()})


def test_single_variant_on_request():
    assert list(pyg_variants(SPARSE, load_graph(SPARSE), every=False)) == ["PyG looped"]


def test_different_scores_are_an_error():
    data = load_graph(DENSE)
    model = build_stack(DENSE, data)
    with pytest.raises(MeasurementError, match="PyG and equipoise differ"):
        check_agreement(model, data, {"PyG": lambda: model(data.x, data.edge_index) * 1.01})


def test_both_timers_take_the_same_steps():
    data = load_graph(DENSE)
    model = build_stack(DENSE, data)
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    ((stock, forward),) = pyg_variants(DENSE, data, every=False).values()
    assert len(train_timer(model, data)(2)) == 2
    assert len(plain_loop_timer(stock, forward, data)(2 + WARMUP_EPOCHS)) == 2 + WARMUP_EPOCHS
    for name, value in model.state_dict().items():
        assert torch.allclose(value, stock.state_dict()[name], atol=1e-6)
    weight = "convs.0.lin_l.weight"
    assert not torch.equal(initial[weight], model.state_dict()[weight])


def test_diverged_training_is_not_timed():
    data = load_graph(DENSE)
    data.x = data.x * float("inf")
    with pytest.raises(MeasurementError, match="diverged"):
        train_timer(build_stack(DENSE, data), data)(2)


@pytest.mark.slow
def test_compiled_variants_agree():
    data = load_graph(DENSE)
    variants = compiled_variants(DENSE, data)
    assert set(variants) == {EQUIPOISE, "PyG looped"}
    check_agreement(build_stack(DENSE, data), data, {name: forward for name, (_, forward) in variants.items()})


def test_empty_network_trains_the_same_parameters_to_no_effect():
    data = load_graph(SPARSE)
    model = build_stack(SPARSE, data)
    empty = EmptyNetwork(model, data)
    before = [weight.detach().clone() for weight in model.parameters()]
    assert len(train_timer(empty, data)(2)) == 2
    assert [weight.shape for weight in empty.parameters()] == [weight.shape for weight in before]
    assert all(weight.grad is not None and not weight.grad.any() for weight in empty.parameters())
    assert all(torch.equal(*pair) for pair in zip(empty.parameters(), before, strict=True))

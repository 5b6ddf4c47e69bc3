import pytest
import torch

from equipoise.bench.cases import Case
from equipoise.bench.contestants import check_agreement, network, ours, pyg_variants, rival
from equipoise.bench.graphs import graph_of
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
def test_all_variants_of_pyg_compute_what_ours_does(case, names):
    data = graph_of(case)
    variants = pyg_variants(case, data)
    assert list(variants) == names
    check_agreement(network(case, data), data, {name: forward for name, (_, forward) in variants.items()})


def test_only_the_usual_best_where_one_is_enough():
    assert list(pyg_variants(SPARSE, graph_of(SPARSE), every=False)) == ["PyG looped"]


def test_a_rival_that_computes_something_else_is_an_error():
    data = graph_of(DENSE)
    model = network(DENSE, data)
    with pytest.raises(MeasurementError, match="PyG and equipoise differ"):
        check_agreement(model, data, {"PyG": lambda: model(data.x, data.edge_index) * 1.01})


def test_an_epoch_of_either_takes_the_same_step():
    data = graph_of(DENSE)
    model = network(DENSE, data)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    ((stock, forward),) = pyg_variants(DENSE, data, every=False).values()
    assert len(ours(model, data)(2)) == 2  # three epochs: time runs from the end of the first
    assert len(rival(stock, forward, data)(3)) == 3
    for name, value in model.state_dict().items():
        assert torch.allclose(value, stock.state_dict()[name], atol=1e-6)
    weight = "convs.0.lin_l.weight"
    assert not torch.equal(start[weight], model.state_dict()[weight])


def test_a_run_that_does_not_finish_is_not_timed():
    data = graph_of(DENSE)
    data.x = data.x * float("inf")
    with pytest.raises(MeasurementError, match="diverged"):
        ours(network(DENSE, data), data)(2)

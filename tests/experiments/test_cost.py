import numpy as np
import torch

from equipoise.experiments.cost import (
    CALIBRATION_NETWORKS,
    calibrate,
    epoch_operations,
    estimate_memory,
    estimate_seconds,
    relative_cost,
)
from tests.experiments.workloads import spec


def test_calibration_networks_separate_the_types_of_operations():
    rows = np.array([epoch_operations(spec(depth=net.depth, width=net.width), net) for net in CALIBRATION_NETWORKS])
    assert np.linalg.matrix_rank(rows / rows.max(axis=0), tol=1e-3) == 4


def test_calibration_uses_one_thread_and_restores_their_number():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    factors = calibrate(["gcn"])
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)
    assert factors.keys() == {"gcn"}
    assert (factors["gcn"] >= 0).all()
    assert factors["gcn"].any()
    once, twice = (estimate_seconds(spec(kind="gcn", epochs=epochs), factors) for epochs in (100, 200))
    assert once > 0
    assert np.isclose(twice, 2 * once)


def test_memory_counts_weights_moments_and_features():
    """Measured peaks of whole processes in MB, one run of three epochs each; estimates are lower, but not by much."""
    for measured, settings in (
        (526, {"dataset": "synthetic-citation", "depth": 2, "width": 8}),
        (614, {"dataset": "cora", "depth": 10, "width": 64}),
        (699, {"dataset": "cora", "depth": 100, "width": 64}),
        (993, {"dataset": "cora", "depth": 100, "width": 64, "dropout": 0.5, "optimizer": "adam"}),
        (779, {"dataset": "pubmed", "depth": 20, "width": 64}),
    ):
        assert 0.6 * measured < estimate_memory(spec(**settings)) / 1e6 < 1.1 * measured, settings
    assert estimate_memory(spec(depth=3, width=100_000_000)) > 1e17


def test_cost_grows_with_every_size():
    small = relative_cost(spec())
    for larger in (
        {"depth": 3},
        {"width": 16},
        {"heads": 2},
        {"out_heads": 2},
        {"share_weights": False},
        {"epochs": 7},
        {"undirected": True},
        {"dataset": "pubmed"},
    ):
        assert relative_cost(spec(**larger)) > small, larger

import numpy as np
import torch

from equipoise.experiments.calibration import CASES, calibrate, seconds
from equipoise.experiments.cost import parts, work
from tests.experiments.workloads import spec


def test_every_part_of_an_epoch_can_be_told_apart():
    rows = np.array([parts(spec(depth=case.depth, width=case.width), case) for case in CASES])
    assert np.linalg.matrix_rank(rows / rows.max(axis=0), tol=1e-3) == 4


def test_an_epoch_is_timed_on_one_thread_for_each_kind():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    factors = calibrate(["gcn"])
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)
    assert factors.keys() == {"gcn"}
    assert (factors["gcn"] >= 0).all()
    assert factors["gcn"].any()
    once, twice = (seconds(spec(kind="gcn", epochs=epochs), factors) for epochs in (100, 200))
    assert once > 0
    assert np.isclose(twice, 2 * once)


def test_work_grows_with_all_that_makes_an_epoch_long():
    small = work(spec())
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
        assert work(spec(**larger)) > small, larger

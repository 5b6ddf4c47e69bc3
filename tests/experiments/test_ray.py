"""A cluster of two nodes on this machine, one of which is lost on the way."""

import sys
import time

import pytest

from equipoise.errors import ClusterError
from equipoise.experiments.ray_executor import ray_tasks
from equipoise.experiments.run import run
from equipoise.experiments.store import Store
from equipoise.experiments.sweep import Watcher, sweep
from tests.experiments.workloads import Counted, same, spec

SPECS = [spec(depth=4, epochs=100, seed=seed, init=init) for seed in range(3) for init in ("xav", "bal-o")]


class Saboteur(Watcher):
    """Takes a node away when both have had a run and are in the middle of the next."""

    def __init__(self, cluster, begun):
        self.cluster, self.begun, self.node = cluster, begun, cluster.add_node(num_cpus=1)
        self.running, self.results = set(), 0

    def starts(self, spec):
        self.running.add(spec.key)
        if self.results >= 2 and len(self.running) == 2 and self.node is not None:
            while not self.running <= {file.name.split("-")[0] for file in self.begun.iterdir()}:
                time.sleep(0.05)
            self.cluster.remove_node(self.node, allow_graceful=False)
            self.node = None

    def ends(self, result):
        self.running.discard(result.key)
        self.results += 1


def test_a_lost_node_costs_no_result(ray_cluster, tmp_path):
    begun = tmp_path / "begun"
    begun.mkdir()

    def executor(specs, work):
        return ray_tasks(ray_cluster.address)(specs, Counted(begun, work))

    with Store(tmp_path / "ray.sqlite") as store:
        results = sweep(SPECS, store, executor, Saboteur(ray_cluster, begun))
        kept = store.results(curves=True)
    assert len(list(begun.iterdir())) == len(SPECS) + 1, "one run was to be lost and begun again"
    assert len(results) == len(SPECS)
    assert all(same(kept[spec.key], run(spec)) for spec in SPECS)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "head:port"])
def test_says_that_there_is_no_cluster(address, tmp_path):
    pytest.importorskip("ray", reason="needs Ray: pip install 'equipoise[ray]'")
    with Store(tmp_path / "a.sqlite") as store, pytest.raises(ClusterError, match=r"no Ray cluster(.|\n)*ray start"):
        sweep(SPECS, store, ray_tasks(address))


def test_says_that_ray_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ClusterError, match=r"not installed(.|\n)*equipoise\[ray\]"):
        ray_tasks("local")

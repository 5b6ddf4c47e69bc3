"""A cluster of two nodes on this machine, one of which is lost on the way."""

import sys

import pytest

from equipoise.errors import ClusterError
from equipoise.experiments.ray_executor import ray_tasks
from equipoise.experiments.run import run
from equipoise.experiments.store import Store
from equipoise.experiments.sweep import Watcher, sweep
from tests.experiments.workloads import same, spec

SPECS = [spec(depth=4, epochs=150, seed=seed, init=init) for seed in range(3) for init in ("xav", "bal-o")]


class Saboteur(Watcher):
    """Takes a node away when the first result is there and all cores are busy."""

    def __init__(self, cluster):
        self.cluster, self.node = cluster, cluster.add_node(num_cpus=1)
        self.running, self.lost_at = set(), None

    def starts(self, spec):
        self.running.add(spec.key)

    def ends(self, result):
        self.running.discard(result.key)
        if self.lost_at is None:
            self.lost_at = len(self.running)
            self.cluster.remove_node(self.node, allow_graceful=False)


def test_a_lost_node_costs_no_result(ray_cluster, tmp_path):
    saboteur = Saboteur(ray_cluster)
    with Store(tmp_path / "ray.sqlite") as store:
        results = sweep(SPECS, store, ray_tasks(ray_cluster.address), saboteur)
        assert saboteur.lost_at == 1, "both nodes were to be busy"
        kept = store.results(curves=True)
    assert sorted(kept) == sorted(spec.key for spec in SPECS)
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

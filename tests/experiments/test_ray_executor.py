"""A cluster of two nodes on this machine, one of which is lost during the sweep."""

import os
import socket
import sys
import time

import pytest

from equipoise.errors import ClusterError
from equipoise.experiments.parser import load_experiment
from equipoise.experiments.ray_executor import ray_executor
from equipoise.experiments.run import run
from equipoise.experiments.store import Store
from equipoise.experiments.sweep import SweepCallback, sweep
from tests.commands.processes import RUNS, start_command, write_experiment
from tests.experiments.workloads import CountingRun, equal_results, spec

SPECS = [spec(depth=4, epochs=100, seed=seed, init=init) for seed in range(3) for init in ("xav", "bal-o")]


class NodeRemover(SweepCallback):
    """Removes a node once both nodes have finished a run and are executing the next one."""

    def __init__(self, cluster, started):
        self.cluster, self.started, self.node = cluster, started, cluster.add_node(num_cpus=1)
        self.running, self.results = set(), 0

    def on_run_start(self, spec):
        self.running.add(spec.key)
        if self.results >= 2 and len(self.running) == 2 and self.node is not None:
            while not self.running <= {file.name.split("-")[0] for file in self.started.iterdir()}:
                time.sleep(0.05)
            self.cluster.remove_node(self.node, allow_graceful=False)
            self.node = None

    def on_run_end(self, result):
        self.running.discard(result.key)
        self.results += 1


def test_lost_node_loses_no_result(ray_cluster, tmp_path):
    started = tmp_path / "started"
    started.mkdir()

    def executor(specs, run_function):
        return ray_executor(ray_cluster.address)(specs, CountingRun(started, run_function))

    with Store(tmp_path / "ray.sqlite") as store:
        results = sweep(SPECS, store, executor, NodeRemover(ray_cluster, started))
        stored = store.results(curves=True)
    assert len(list(started.iterdir())) == len(SPECS) + 1, "exactly one run should have been lost and repeated"
    assert len(results) == len(SPECS)
    assert all(equal_results(stored[spec.key], run(spec)) for spec in SPECS)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "head:port"])
def test_no_cluster_at_the_address(address, tmp_path):
    pytest.importorskip("ray", reason="needs Ray: pip install 'equipoise[ray]'")
    with Store(tmp_path / "a.sqlite") as store, pytest.raises(ClusterError, match=r"no Ray cluster(.|\n)*ray start"):
        sweep(SPECS, store, ray_executor(address))


def test_head_that_does_not_answer(tmp_path, monkeypatch):
    """A listening socket accepts connections and stays silent, as a stopped head does."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'equipoise[ray]'")
    monkeypatch.setattr("equipoise.experiments.ray_executor.CONNECT_TIMEOUT", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as head, Store(tmp_path / "a.sqlite") as store:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        with pytest.raises(ClusterError, match=r"the head does not answer within 0.3 s"):
            sweep(SPECS, store, ray_executor(address))
        assert not store.outcomes()


def test_other_versions_on_a_node_are_named_before_the_first_run(ray_cluster, tmp_path):
    """The workers of the second node find the metadata of another torch first."""
    metadata = tmp_path / "torch-9.9.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    node = ray_cluster.add_node(num_cpus=1, env_vars={"PYTHONPATH": path})
    try:
        with Store(tmp_path / "a.sqlite") as store:
            with pytest.raises(ClusterError, match=r": torch 9.9 instead of \d(.|\n)*install the same versions"):
                sweep(SPECS, store, ray_executor(ray_cluster.address))
            assert not store.outcomes()
    finally:
        ray_cluster.remove_node(node)


@pytest.mark.slow
def test_driver_is_killed_and_started_again(ray_cluster, tmp_path):
    path = write_experiment(tmp_path, epochs=300)
    store, command = tmp_path / "equipoise.sqlite", ("reproduce", str(path), "--ray", ray_cluster.address)
    process = start_command(tmp_path, *command)
    while not (store.exists() and stored(store)):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.1)
    process.kill()
    process.communicate()
    before = stored(store)
    process = start_command(tmp_path, *command)
    stderr = process.communicate()[1]
    assert process.returncode == 0, stderr
    after = stored(store)
    assert 0 < len(before) < len(after) == RUNS, "the driver was killed during the sweep"
    assert all(after[key] == result for key, result in before.items()), "no stored run is run again"
    assert all(equal_results(after[one.key], run(one)) for one in load_experiment(path).specs)


def stored(path):
    with Store(path) as store:
        return store.results(curves=True)


def test_refused_token_is_not_reported_as_a_missing_cluster(monkeypatch):
    """As Ray 2.60 reports it: a failed connection, caused by an error whose text has the traceback."""
    ray = pytest.importorskip("ray", reason="needs Ray: pip install 'equipoise[ray]'")

    def init(*_, **__):
        try:
            raise RuntimeError("Failed to connect to GCS. Last connection error: … ray.exceptions.AuthenticationError")
        except RuntimeError as error:
            raise ConnectionError("Failed to connect to Ray cluster at 192.0.2.1:6379") from error

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ClusterError, match=r"its token is missing or wrong(.|\n)*auth_token"):
        next(ray_executor("auto")(SPECS, run))


def test_ray_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ClusterError, match=r"not installed(.|\n)*equipoise\[ray\]"):
        ray_executor("local")

"""Runs as tasks on a Ray cluster: the same runs, the same results, more machines."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from typing import Any

import torch

from equipoise.data.folders import VARIABLE
from equipoise.errors import ClusterError
from equipoise.experiments.executors import Executor, News, Work
from equipoise.experiments.result import Result, failed
from equipoise.experiments.spec import RunSpec

RETRIES = 3
REACH = 10.0  # seconds for a cluster to answer
LOOK = 1.0  # seconds after which the size of the cluster is looked at again


def ray_tasks(address: str = "local", retries: int = RETRIES) -> Executor:
    """Runs as tasks of one core each; nodes need this package and the data, the driver alone needs the store.

    Args:
        address: ``"local"`` for a cluster of this machine alone, started and ended here; ``"auto"``, ``host:port`` or
            ``ray://host:port`` for one that is running.
        retries: of a run whose worker or node was lost.
    """
    ray = _ray()

    def execute(specs: Sequence[RunSpec], work: Work) -> News:
        _connect(ray, address)
        try:
            task = ray.remote(num_cpus=1, max_retries=retries)(_one_thread)
            waiting = list(reversed(specs))
            under_way: dict[Any, RunSpec] = {}
            while waiting or under_way:
                # As many tasks as there are cores, so that those under way are those that run, long ones first.
                while waiting and len(under_way) < max(1, int(ray.cluster_resources().get("CPU", 0))):
                    spec = waiting.pop()
                    under_way[task.remote(work, spec)] = spec
                    yield spec
                over, _ = ray.wait(list(under_way), num_returns=1, timeout=LOOK)
                for reference in over:
                    yield _result(ray, reference, under_way.pop(reference), retries)
        finally:
            ray.shutdown()

    return execute


def _one_thread(work: Work, spec: RunSpec) -> Result:
    torch.set_num_threads(1)
    return work(spec)


def _result(ray: Any, reference: Any, spec: RunSpec, retries: int) -> Result:
    try:
        result: Result = ray.get(reference)
    except ray.exceptions.RayError as error:
        lines = str(error).strip().splitlines() or ["lost"]
        return failed(spec, f"{type(error).__name__} after {retries} retries: {lines[0]}", str(error))
    return result


def _ray() -> Any:
    try:
        import ray  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ClusterError("Ray is not installed", remedy="pip install 'equipoise[ray]'") from error
    return ray


def _connect(ray: Any, address: str) -> None:
    # The data folder of the driver, where it names one, is that of all nodes.
    variables = {VARIABLE: os.environ[VARIABLE]} if os.environ.get(VARIABLE) else {}
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
    if address == "local":
        options["include_dashboard"] = False
    try:
        _reach(address)
        ray.init(address, runtime_env={"env_vars": variables}, **options)
    except (OSError, ValueError, RuntimeError) as error:  # among the first, ConnectionError
        raise ClusterError(
            f"there is no Ray cluster at {address}: {str(error).splitlines()[0]}",
            where=f"--ray {address}",
            remedy="start one with `ray start --head` (docs/cluster.md), or use --ray local",
        ) from error


def _reach(address: str) -> None:
    """Ray would wait for minutes where nobody answers."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host:
        socket.create_connection((host, int(port)), timeout=REACH).close()

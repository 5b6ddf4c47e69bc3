"""An executor on a Ray cluster. The results are the same as on one machine."""

from __future__ import annotations

import importlib
import logging
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

import torch

from equipoise.data.files import DATA_VARIABLE
from equipoise.errors import ClusterError
from equipoise.experiments.executors import Events, Executor, RunFunction
from equipoise.experiments.result import Result, failed_result, library_versions
from equipoise.experiments.spec import RunSpec

RETRIES = 3
CONNECT_TIMEOUT = 10.0  # seconds
START_TIMEOUT = 300.0  # seconds until a node has started a worker process
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # and an empty SETTINGS frame
POLL_INTERVAL = 1.0  # seconds after which the size of the cluster is checked again


def ray_executor(address: str = "local", retries: int = RETRIES, run_timeout: float | None = None) -> Executor:
    """Create an executor that runs specs as Ray tasks of one core each.

    All nodes need this package and the data; only the machine that runs the sweep needs the store.

    Args:
        address: ``"local"`` for a temporary cluster on this machine; ``"auto"``, ``host:port`` or ``ray://host:port``
            for a running cluster.
        retries: how often a run is repeated whose worker or node was lost.
        run_timeout: seconds after which a run is ended and counts as failed, the start of its worker and retries
            included; ``None`` for no limit.

    Returns:
        The executor.

    Raises:
        ClusterError: If Ray is not installed, there is no cluster at the address, it refuses the token, its head does
            not answer, or a node has other library versions.
    """
    ray = _import_ray()

    def execute(specs: Sequence[RunSpec], run_function: RunFunction) -> Events:
        _connect(ray, address)
        try:
            _check_versions(ray, address)
            tasks = _Tasks(ray, specs, run_function, retries)
            yield from tasks.start()
            while tasks.running:
                results = [*tasks.collect(), *tasks.end_expired(run_timeout)]
                started = tasks.start()  # before the results are stored, so that no core waits for the disk
                yield from results
                yield from started
        finally:
            ray.shutdown()

    return execute


class _Tasks:
    """The tasks of a sweep: as many as the cluster has cores, so that submitted runs are running ones."""

    def __init__(self, ray: Any, specs: Sequence[RunSpec], run_function: RunFunction, retries: int) -> None:
        self.ray, self.retries = ray, retries
        self.pending = list(reversed(specs))  # the first, which takes longest, is at the end
        self.running: dict[Any, tuple[RunSpec, float]] = {}  # task → run, time of its start
        self._task = ray.remote(num_cpus=1, max_retries=retries)(_run_single_threaded)
        self._run_function = ray.put(run_function)  # once: it holds the recording plans of all runs
        self._cores, self._counted = 1, -POLL_INTERVAL

    def start(self) -> list[RunSpec]:
        """Submit runs for all free cores, and return them."""
        now = time.monotonic()
        if now - self._counted >= POLL_INTERVAL:  # nodes may join and leave
            self._cores, self._counted = max(1, int(self.ray.cluster_resources().get("CPU", 0))), now
        started = []
        while self.pending and len(self.running) < self._cores:
            spec = self.pending.pop()
            self.running[self._task.remote(self._run_function, spec)] = (spec, now)
            started.append(spec)
        return started

    def collect(self) -> list[Result]:
        """Wait for a moment, and return the result that arrived, if any."""
        done, _ = self.ray.wait(list(self.running), num_returns=1, timeout=POLL_INTERVAL)
        return [_result(self.ray, task, self.running.pop(task)[0], self.retries) for task in done]

    def end_expired(self, run_timeout: float | None) -> list[Result]:
        """Cancel the runs that exceed the time limit."""
        if run_timeout is None:
            return []
        expired = [task for task, (_, start) in self.running.items() if time.monotonic() - start > run_timeout]
        for task in expired:
            self.ray.cancel(task, force=True)
        reason = f"time limit: not finished after {run_timeout:g} s (--run-timeout)"
        return [failed_result(self.running.pop(task)[0], reason) for task in expired]


def _run_single_threaded(run_function: RunFunction, spec: RunSpec) -> Result:
    torch.set_num_threads(1)
    return run_function(spec)


def _result(ray: Any, reference: Any, spec: RunSpec, retries: int) -> Result:
    try:
        result: Result = ray.get(reference)
    except ray.exceptions.RayError as error:
        lines = str(error).strip().splitlines() or ["lost"]
        return failed_result(spec, f"{type(error).__name__} after {retries} retries: {lines[0]}", str(error))
    return result


def _import_ray() -> Any:
    try:
        import ray  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise ClusterError("Ray is not installed", remedy="pip install 'equipoise[ray]'") from error
    return ray


def _connect(ray: Any, address: str) -> None:
    # All nodes use the data folder of this machine, if the environment names one.
    variables = {DATA_VARIABLE: os.environ[DATA_VARIABLE]} if os.environ.get(DATA_VARIABLE) else {}
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
    if address == "local":
        options["include_dashboard"] = False
    try:
        _check_reachable(address)
        ray.init(address, runtime_env={"env_vars": variables}, **options)
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:  # ConnectionError is an OSError
        if _is_refused(error):
            raise ClusterError(
                f"the Ray cluster at {address} refuses this process: its token is missing or wrong",
                where=f"--ray {address}",
                remedy="copy ~/.ray/auth_token from the head node, with RAY_AUTH_MODE=token (docs/guide/cluster.md)",
            ) from error
        raise ClusterError(
            f"there is no Ray cluster at {address}: {(str(error).splitlines() or [repr(error)])[0]}",
            where=f"--ray {address}",
            remedy="start one with `ray start --head` (docs/guide/cluster.md), or use --ray local",
        ) from error


def _is_refused(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is one of authentication; Ray reports it as a failed connection."""
    while error is not None:
        if any(word in f"{type(error).__name__} {error}" for word in ("AuthenticationError", "AuthToken")):
            return True
        error = error.__cause__ or error.__context__
    return False


def _check_reachable(address: str) -> None:
    """Fail fast if no server answers; ``ray.init`` would wait for minutes, and then end the process.

    Ray speaks gRPC, so that a head which is alive answers the first bytes of HTTP/2 at once. A host that is stopped
    or overloaded accepts the connection, but stays silent.

    Raises:
        TimeoutError: If the head stays silent.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host:
        return
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT) as connection:
            connection.sendall(HTTP2_PREFACE)
            connection.recv(1)
    except TimeoutError as error:
        raise TimeoutError(f"the head does not answer within {CONNECT_TIMEOUT:g} s") from error


def _node_versions() -> dict[str, str]:
    return library_versions()


def _check_versions(ray: Any, address: str) -> None:
    """Compare the library versions of every node with those of this process, before the first run."""
    strategy = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    names, tasks = {}, {}
    for node in ray.nodes():
        if node["Alive"]:
            options = {"num_cpus": 0, "scheduling_strategy": strategy(node["NodeID"], soft=False)}
            names[node["NodeID"]] = node["NodeManagerHostname"]
            tasks[node["NodeID"]] = ray.remote(**options)(_node_versions).remote()
    own, problems = library_versions(), []
    for identifier, task in tasks.items():
        try:
            other = ray.get(task, timeout=START_TIMEOUT)
        except ray.exceptions.GetTimeoutError:
            problems.append(f"{names[identifier]}: no worker process starts within {START_TIMEOUT:g} s")
        except ray.exceptions.RayTaskError as error:
            problems.append(f"{names[identifier]}: equipoise cannot be imported: {error.cause!r}")
        except ray.exceptions.RayError:
            continue  # the node has just left
        else:
            different = [name for name in own if own[name] != other.get(name)]
            problems += [f"{names[identifier]}: {name} {other.get(name)} instead of {own[name]}" for name in different]
    if problems:
        raise ClusterError(
            "nodes of the cluster cannot give the same numbers as this machine:\n    " + "\n    ".join(problems),
            where=f"--ray {address}",
            remedy="install the same versions on every node",
        )

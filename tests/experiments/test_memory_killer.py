"""The kernel's memory killer ends a worker: a sweep in a control group whose memory is limited.

The group is a child of the group of this process, version 1 or 2. The tests are skipped where it cannot be created.
"""

import os
import signal
import time

import pytest

from equipoise.experiments import memory
from equipoise.experiments.parser import load_experiment
from equipoise.experiments.store import Store
from tests.commands.processes import start_command
from tests.experiments.test_kills import Sweep

LIMIT = 1_300_000_000  # bytes; a process with torch needs a third of it

# The wide run is estimated at 1.2 GB, so it is not refused; beside the driver it does not fit.
EXPERIMENT = """
title = "A wide run and a narrow one"
[grid]
dataset = "synthetic-citation"
depth = [2, 5]
init = "xav"
seed = 0
lr = 0.001
epochs = {epochs}
[[set]]
where = {{ depth = 2 }}
width = 8
[[set]]
where = {{ depth = 5 }}
width = {width}
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def memory_group():
    """The folder of a new control group with a memory limit."""
    if not (own := memory._own_groups()):
        pytest.skip("no control group counts the memory of this process")
    group = own[0][0] / f"equipoise-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be created in {group.parent}: {error.strerror}")
    try:
        file = next((group / name for name in ("memory.max", "memory.limit_in_bytes") if (group / name).exists()), None)
        if file is None:
            pytest.skip(f"{group.parent} does not delegate the memory controller")
        file.write_text(str(LIMIT))
        if (swap := group / "memory.swap.max").exists():
            swap.write_text("0")
        yield group
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        while (group / "cgroup.procs").read_text():
            time.sleep(0.05)
        group.rmdir()


def kills(group):
    return sum(memory._field(file, "oom_kill") for file in memory._event_files(group))


class LimitedSweep(Sweep):
    """A sweep whose driver and workers are in a control group."""

    def __init__(self, folder, group, **settings):
        super().__init__(folder, epochs=1)
        self.group = group
        self.path.write_text(EXPERIMENT.format(**settings))

    def start(self):
        self.process = start_command(self.folder, "reproduce", str(self.path), "--jobs", "2")
        (self.group / "cgroup.procs").write_text(str(self.process.pid))  # long before it imports torch

    def results(self):
        with Store(self.store) as store:
            stored = store.results()
        return {spec.depth: stored[spec.key] for spec in load_experiment(self.path).specs}


def test_run_that_exhausts_the_memory_fails_and_the_others_finish(tmp_path, memory_group):
    sweep = LimitedSweep(tmp_path, memory_group, epochs=5, width=4000)
    sweep.start()
    assert sweep.collect() == 1, sweep.stderr
    assert kills(memory_group) == 2, "killed by the kernel, once beside the other run and once alone"
    results = sweep.results()
    assert results[2].outcome == "finished"
    assert results[5].outcome == "failed"
    assert results[5].reason.startswith("out of memory: the process was killed with ")
    assert results[5].reason.endswith(f" of {LIMIT / 1e9:g} GB in use, 2 times")
    assert sweep.stderr.count("the run is repeated without others beside it") == 1
    last = sweep.stderr.splitlines()[-1]
    assert last.startswith("1 of them need more memory than there is")
    assert last.endswith("on a machine with more, add  --retry failed")

    sweep.start()
    assert sweep.collect() == 1, "failed until it is asked for"
    assert kills(memory_group) == 2, "not run again"


def test_process_killed_from_outside_is_told_from_it(tmp_path, memory_group):
    """The same limit and the same signal, sent by somebody else: the run goes on in a new process."""
    sweep = LimitedSweep(tmp_path, memory_group, epochs=3000, width=8)
    sweep.start()
    for _ in range(3):  # more often than a run may exhaust the memory
        sweep.wait_until_busy()
        for pid in sweep.workers():
            os.kill(pid, signal.SIGKILL)
        time.sleep(1.0)
    assert sweep.collect() == 0, sweep.stderr
    assert kills(memory_group) == 0
    assert "the process was killed by SIGKILL from outside; the run is repeated" in sweep.stderr
    assert "out of memory" not in sweep.stderr
    assert {result.outcome for result in sweep.results().values()} == {"finished"}

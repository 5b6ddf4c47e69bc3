"""Signals to the driver and the workers of a sweep at random moments: the same results, and no process is left."""

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from equipoise.experiments.parser import load_experiment
from equipoise.experiments.run import run
from equipoise.experiments.store import Store
from tests.commands.processes import RUNS, start_command, write_experiment
from tests.experiments.workloads import equal_results

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
ORPHAN_SECONDS = 5

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="finds worker processes in /proc")


class Sweep:
    """A sweep in a process of its own, started again with the same command when it has ended."""

    def __init__(self, folder, epochs):
        self.folder, self.path = folder, write_experiment(folder, epochs)
        self.store, self.checkpoints = folder / "equipoise.sqlite", folder / "equipoise.sqlite.checkpoints"
        self.process, self.seen, self.stderr = None, {}, ""

    def start(self):
        self.process = start_command(self.folder, "reproduce", str(self.path), "--jobs", "2")

    def has_ended(self):
        return self.process.poll() is not None

    def wait_until_busy(self):
        """Wait until a run has written a checkpoint, or the sweep has ended."""
        while not self.has_ended() and not (self.checkpoints.exists() and any(self.checkpoints.glob("*.pt"))):
            time.sleep(0.01)

    def workers(self):
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        found = []
        for pid in children:
            with suppress(OSError):  # it has just ended
                if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(int(pid))
        return found

    def collect(self):
        """Wait for the end of the driver; nothing of its process group may remain, and no stored row may change."""
        self.stderr = self.process.communicate()[1]
        end = time.monotonic() + ORPHAN_SECONDS
        while group_exists(self.process.pid):
            assert time.monotonic() < end, "processes outlived their driver"
            time.sleep(0.05)
        code, self.process = self.process.returncode, None
        if self.store.exists():
            with Store(self.store) as store:
                stored = store.results()
            assert all(stored[key] == result for key, result in self.seen.items()), "a finished run was run again"
            self.seen = stored
        return code


def group_exists(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(("rounds", "seed", "epochs"), [(5, 30, 300), pytest.param(50, 0, 600, marks=pytest.mark.slow)])
def test_kills_change_no_result(tmp_path, rounds, seed, epochs):
    """A third of the signals goes to the driver, the others to one or to all workers; as many sweeps as that takes."""
    choice, sent, undisturbed = random.Random(seed), [], {}
    while len(sent) < rounds:
        folder = tmp_path / str(len(sent))
        folder.mkdir()
        sweep = Sweep(folder, epochs)
        try:
            while len(sent) < rounds and disturb(sweep, choice, sent):
                pass
            if sweep.process is None:
                sweep.start()
            assert sweep.collect() == 0, sweep.stderr
        finally:
            if sweep.process is not None:
                os.killpg(sweep.process.pid, signal.SIGKILL)
        undisturbed = undisturbed or {spec.key: run(spec) for spec in load_experiment(sweep.path).specs}
        with Store(sweep.store) as store:
            results = store.results(curves=True)
        assert results.keys() == undisturbed.keys()
        assert len(results) == RUNS
        assert all(equal_results(results[key], result) for key, result in undisturbed.items()), sent
        assert not sweep.checkpoints.exists()


def disturb(sweep, choice, sent):
    """Send one signal at a random moment; False if the sweep has ended before."""
    if sweep.process is None:
        sweep.start()
    sweep.wait_until_busy()
    time.sleep(choice.uniform(0.0, 0.4))
    target, number = choice.choice(("driver", "worker", "all workers")), choice.choice(SIGNALS)
    if sweep.has_ended():
        return False
    workers = sweep.workers()
    for pid in {"driver": [sweep.process.pid], "worker": workers[:1], "all workers": workers}[target]:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    sent.append((target, number.name))
    if target == "driver":
        code = sweep.collect()
        # Before the command has begun, while Python is importing it, the signal ends the process itself.
        assert code in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, 130, 0), sweep.stderr
        if code == 130:
            assert "run the same command again to resume" in sweep.stderr
    return True

"""Ranks that die, hang or are interrupted, and jobs that torchrun restarts."""

import io
import json
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
import torch

import equipoise as eq
from equipoise.distributed.process_group import _name_group
from equipoise.errors import DistributedError
from equipoise.experiments.checkpoint import DIGITS, HEADER
from equipoise.training.loop import train
from tests.commands.processes import start_python
from tests.distributed.ranks import run_ranks
from tests.distributed.splitting import owners, random_graph, split


def train_with_a_failure(rank, world_size, failure):
    """Train until the last rank fails in epoch 3; return the error of the others and the seconds until then."""
    data = random_graph()
    part = split(data, owners(data, world_size, "random"), world_size)[rank]
    model = eq.initialize_(eq.Stack("gatv2", [6, 8, 3]), generator=torch.Generator().manual_seed(0)).double()
    start = time.monotonic()

    def on_epoch(epoch, history):
        nonlocal start
        if epoch == 3:
            start = time.monotonic()
            if rank == world_size - 1:
                os.kill(os.getpid(), signal.SIGKILL) if failure == "killed" else time.sleep(8)

    with pytest.raises(DistributedError) as error:
        train(model, part, lr=0.1, epochs=100, on_epoch=on_epoch)
    return str(error.value), time.monotonic() - start


def test_a_rank_that_dies_is_an_error_on_the_others():
    *others, killed = run_ranks(3, train_with_a_failure, "killed")
    assert killed is None
    for rank, (message, seconds) in enumerate(others):
        assert message.startswith(f"rank {rank}: ")
        assert "another rank" in message
        assert "--max-restarts" in message
        assert seconds < 60


def test_a_rank_that_hangs_is_an_error_after_the_timeout():
    (message, seconds), _ = run_ranks(2, train_with_a_failure, "hangs", timeout=3.0)
    assert "did not answer in time" in message
    assert seconds < 60


class Job:
    """A job of ``torchrun … -m equipoise train --parts`` with two ranks."""

    def __init__(self, folder, *arguments, restarts=0):
        launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
        command = ("-m", "equipoise", "train", "--parts", "parts", "--layers", "3", "--width", "8", "--lr", "0.1")
        options = (f"--max-restarts={restarts}", *command, *arguments)
        self.process = start_python(folder, *launcher, *options, OMP_NUM_THREADS="1")

    def finish(self):
        out, err = self.process.communicate(timeout=300)
        return self.process.returncode, out, err


def rank_process(launcher, rank):
    """The process of a rank that a launcher has started, or None."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            environment = (folder / "environ").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if parent == launcher.pid and f"RANK={rank}".encode() in environment:
            return int(folder.name)
    return None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    eq.partition(eq.load_dataset("synthetic-citation"), 2, folder / "parts", method="blocks")
    return folder


def wait_for(condition, seconds=240):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


@pytest.mark.slow
def test_a_restarted_job_continues_with_the_same_numbers(folder):
    options = ("--epochs", "400", "--dropout", "0.2", "--json")
    code, out, _ = Job(folder, *options).finish()
    assert code == 0
    expected = json.loads(out)  # one result only: that of rank 0
    job, checkpoint = Job(folder, *options, "--checkpoint-every", "0", restarts=1), folder / "parts" / "checkpoint.pt"

    def has_epochs():
        if not checkpoint.exists():
            return False
        content = io.BytesIO(checkpoint.read_bytes()[len(HEADER) + DIGITS + 1 :])
        state = torch.load(content, weights_only=True)["state"]
        return len(state["history"]["loss"]) >= 20

    wait_for(has_epochs)
    os.kill(rank_process(job.process, 1), signal.SIGKILL)
    code, out, err = job.finish()
    assert code == 0
    assert json.loads(out)["loss"] == expected["loss"]
    assert "rank 0: " in err
    assert not checkpoint.exists()


@pytest.mark.slow
def test_a_restart_on_one_of_two_machines(folder):
    """Each machine counts its own restarts: that of the failed rank one, the other none."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
    launcher = ("-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "1")
    rendezvous = ("--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--local-addr", "127.0.0.1")
    command = ("-m", "equipoise", "train", "--parts", "parts", "--layers", "3", "--width", "8", "--lr", "0.1")
    options = ("--epochs", "200", "--timeout", "20", "--checkpoint-every", "0", "--checkpoint", "machines.pt", "--json")
    machines = [start_python(folder, *launcher, *rendezvous, *command, *options, OMP_NUM_THREADS="1") for _ in range(2)]
    wait_for((folder / "machines.pt").exists)
    victim = next(pid for machine in machines if (pid := rank_process(machine, 1)))
    os.kill(victim, signal.SIGKILL)
    outputs = [machine.communicate(timeout=300) for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], outputs
    (result,) = (json.loads(out) for out, _ in outputs if out)
    assert result["epochs"] == 200


def test_ranks_that_never_start_are_named(folder):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = "import equipoise as eq; eq.DistributedGraph(eq.load_part('parts'), timeout=1)"
    environment = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    process = start_python(folder, "-c", script, **environment)
    _, err = process.communicate(timeout=120)
    assert "DistributedError: rank 0: no connection to the other ranks" in err
    assert "start all 2 ranks within --timeout (1 s)" in err


def test_the_name_of_a_group_is_not_that_of_an_earlier_attempt():
    store, names = torch.distributed.HashStore(), {}

    def name(rank):
        names[rank] = _name_group(store, rank, 3, timeout=30.0)

    for _attempt in range(2):
        previous, names = names, {}
        threads = [threading.Thread(target=name, args=(rank,), daemon=True) for rank in (1, 2, 0)]
        for thread in threads:
            thread.start()
            time.sleep(0.1)  # the first ranks see what the previous attempt has left
        for thread in threads:
            thread.join(timeout=60)
        assert len(names) == 3
        assert len(set(names.values())) == 1
        assert names != previous


@pytest.mark.slow
def test_interrupt_ends_all_ranks(folder):
    job = Job(folder, "--epochs", "100000", "--checkpoint", "run.pt", "--checkpoint-every", "0")
    wait_for((folder / "run.pt").exists)
    os.killpg(job.process.pid, signal.SIGINT)  # as Ctrl-C in a terminal does
    _, out, _ = job.finish()
    assert out.count("interrupted") == 1


@pytest.mark.slow
def test_wrong_number_of_ranks_is_refused_before_training(tmp_path):
    eq.partition(eq.load_dataset("synthetic-citation"), 3, tmp_path / "parts", method="blocks")
    code, out, err = Job(tmp_path, "--epochs", "1").finish()
    assert code != 0
    assert not out
    assert "the partition has 3 parts, but the job has 2 ranks" in err

"""Ranks that die, hang or are interrupted, and jobs that torchrun restarts."""

import io
import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch

import equipoise as eq
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

    def rank_process(self, rank):
        """The process of a rank."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
                environment = (folder / "environ").read_bytes().split(b"\0")
            except (OSError, ValueError):
                continue
            if parent == self.process.pid and f"RANK={rank}".encode() in environment:
                return int(folder.name)
        raise AssertionError(f"there is no process of rank {rank}")


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
    os.kill(job.rank_process(1), signal.SIGKILL)
    code, out, err = job.finish()
    assert code == 0
    assert json.loads(out)["loss"] == expected["loss"]
    assert "rank 0: " in err
    assert not checkpoint.exists()


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

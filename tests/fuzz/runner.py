"""Worker processes that try the inputs of a target, and report one that crashes, hangs or fails."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import multiprocessing
import os
import resource
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.strategies import SearchStrategy

START_METHOD = "forkserver"  # torch is imported once, not once per worker
TIMEOUT = 120.0  # seconds without a new input: the target hangs
MEMORY = 12 << 30  # bytes of address space, so that an absurd size in a file is a MemoryError
MOST_FAILURES = 5  # of one target; more are the same
MOST_TEXT = 6000  # characters of an input or a traceback


@dataclass(frozen=True)
class Target:
    """What is fuzzed.

    Attributes:
        name: on the command line and in the table.
        inputs: descriptions of inputs, whose ``repr`` is enough to build them again.
        check: tries one input; raises for any outcome but a named error and a right result.
        count: number of inputs of a full run.
        batch: number of inputs per seed.
    """

    name: str
    inputs: SearchStrategy[Any]
    check: Callable[[Any], None]
    count: int
    batch: int = 250


@dataclass
class Outcome:
    """What became of the inputs of a target."""

    tried: int = 0
    failures: list[str] = field(default_factory=list)


def fuzz(targets: dict[str, Target], name: str, inputs: int, seed: int = 0) -> Outcome:
    """Try inputs of a target in a worker process, which is replaced when it dies.

    Args:
        targets: all targets; the worker imports the same ones.
        name: the target.
        inputs: number of inputs; the last batch may try a few more.
        seed: seed of the first batch; the next ones count up.

    Returns:
        The number of inputs tried, and the failures with the seed and the input of each.
    """
    context: Any = multiprocessing.get_context(START_METHOD)
    context.set_forkserver_preload(["tests.fuzz.targets"])
    outcome, batch = Outcome(), min(inputs, targets[name].batch)
    while outcome.tried < inputs and len(outcome.failures) < MOST_FAILURES:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(sender, name, seed, batch))
        process.start()
        sender.close()
        try:
            seed = _listen(receiver, process, outcome, inputs, f"{name} --inputs {batch} --seed")
        finally:
            process.kill()
            process.join()
    return outcome


def _listen(receiver: Connection, process: Any, outcome: Outcome, inputs: int, command: str) -> int:
    """Count inputs until there are enough or the worker dies; return the seed to go on with."""
    seed, text = 0, "no input"
    while True:
        try:
            if not receiver.poll(TIMEOUT):
                outcome.failures.append(f"hangs for {TIMEOUT:.0f} s ({command} {seed}):\n{text}")
                return seed + 1
            kind, content = receiver.recv()
        except EOFError:
            process.join()
            outcome.failures.append(f"crash, exit code {process.exitcode} ({command} {seed}):\n{text}")
            return seed + 1
        if kind == "seed":
            if outcome.tried >= inputs or len(outcome.failures) >= MOST_FAILURES:
                return seed
            seed = content
        elif kind == "input":
            outcome.tried += 1
            text = content
        else:
            outcome.failures.append(f"failure ({command} {seed}):\n{content}")


def _work(sender: Connection, name: str, seed: int, batch: int) -> None:
    """Try batch after batch until the parent ends this process."""
    from tests.fuzz.targets import TARGETS  # noqa: PLC0415 (imports the parent's module, which is this one)

    faulthandler.enable()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, hard))
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        os.chdir(folder)
        while True:
            sender.send(("seed", seed))
            try:
                _try_batch(sender, TARGETS[name], seed, batch)
            except BaseException as error:  # SystemExit and KeyboardInterrupt are no outcomes of a target either
                sender.send(("failure", "".join(traceback.format_exception(error))[-MOST_TEXT:]))
            seed += 1


def _try_batch(sender: Connection, target: Target, seed: int, batch: int) -> None:
    @hypothesis.seed(seed)
    @settings(
        max_examples=batch,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @hypothesis.given(target.inputs)
    def try_input(value: Any) -> None:
        sender.send(("input", repr(value)[:MOST_TEXT]))
        target.check(value)

    try_input()

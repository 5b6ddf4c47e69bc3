"""Start the command line in its own process, with an experiment of short runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

EXPERIMENT = """
title = "A small experiment"
[grid]
dataset = "synthetic-citation"
depth = [2, 4]
init = ["xav", "bal-o"]
seed = [0, 1]
width = 8
lr = 0.1
epochs = {epochs}
"""
RUNS = 8

# The command line with ten checkpoints per second instead of one per minute, so that runs of a second have some.
SCRIPT = """
from functools import partial
import equipoise.experiments.sweep as module
from equipoise.cli import main
if __name__ == "__main__":
    module.sweep = partial(module.sweep, checkpoint_interval=0.1)
    main()
"""


def write_experiment(folder: Path, epochs: int = 6) -> Path:
    path = folder / "small.toml"
    path.write_text(EXPERIMENT.format(epochs=epochs))
    return path


def start_command(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start ``equipoise`` with these arguments in a folder, as a new process group."""
    script = folder / "command.py"
    script.write_text(SCRIPT)
    return start_python(folder, str(script), *arguments)


def start_python(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start Python with the sources of this repository in a folder, as a new process group that reacts to Ctrl-C.

    Shells start background jobs with SIGINT ignored, and children inherit that: ``make test &`` would fail.
    """
    paths = [str(Path(__file__).parents[2] / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_restore_interrupt,  # noqa: PLW1509 - the test process starts no threads of its own
    )


def _restore_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

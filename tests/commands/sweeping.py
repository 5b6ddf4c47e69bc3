"""The command line as a user runs it: processes of its own, on runs of a second or less."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXPERIMENT = """
title = "a small one"
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

# The command with checkpoints several times a second instead of once a minute, so that runs of a second have some.
DRIVER = """
from functools import partial
import equipoise.experiments.sweep as module
from equipoise.cli import main
if __name__ == "__main__":
    module.sweep = partial(module.sweep, checkpoint_every=0.1)
    main()
"""


def experiment(folder: Path, epochs: int = 6) -> Path:
    path = folder / "mine.toml"
    path.write_text(EXPERIMENT.format(epochs=epochs))
    return path


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """``equipoise`` with these arguments, in a folder and a process group of its own."""
    script = folder / "driver.py"
    script.write_text(DRIVER)
    source = Path(__file__).parents[2] / "src"
    return subprocess.Popen(
        [sys.executable, str(script), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(source), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

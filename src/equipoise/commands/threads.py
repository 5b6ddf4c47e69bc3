"""How the threads of a command wait for each other."""

from __future__ import annotations

import os


def wait_passively() -> None:
    """Let idle OpenMP threads sleep instead of spin-waiting, unless the environment says otherwise.

    Threads that spin take the cores from those that work as soon as the machine has other work to do. OpenMP reads the
    variable when torch is imported, so call this first.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

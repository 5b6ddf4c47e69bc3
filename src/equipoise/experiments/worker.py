"""A worker process: receives specs and sends results through a pipe, and ends when its parent ends.

Importing this module imports neither torch nor NumPy. The process therefore watches its parent from its first
moments, before it spends seconds on importing what its runs need.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

READY = "ready"  # the first message of a worker, after its imports
PR_SET_PDEATHSIG = 1  # from linux/prctl.h
OOM_SCORE_ADJ = 200  # as if the process used so many thousandths of the memory in addition


def serve(pipe: Connection, pickled_run_function: bytes) -> None:
    """Main function of a worker process.

    Args:
        pipe: connection to the parent.
        pickled_run_function: function of a spec that returns a result, pickled, since loading it may import torch.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which stops its workers
    _end_with_parent()
    _be_killed_before_parent()
    run_function = ForkingPickler.loads(pickled_run_function)
    import torch  # noqa: PLC0415 - after the parent is watched

    torch.set_num_threads(1)
    pipe.send(READY)
    while True:
        try:
            spec: Any = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(run_function(spec))


def _end_with_parent() -> None:
    """Let this process end when its parent dies: a killed parent cannot stop its workers.

    On Linux the kernel sends SIGKILL, at once and whatever the process is computing. Elsewhere a thread waits for the
    end of the parent.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent.pid:  # it died before the request
            os._exit(1)
    threading.Thread(target=_wait_for_end, args=(parent.sentinel,), daemon=True).start()


def _be_killed_before_parent() -> None:
    """Let the kernel's memory killer choose this process rather than its parent, whose end would stop the sweep."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # not on Linux, or not permitted
        file.write(str(OOM_SCORE_ADJ))


def _wait_for_end(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)

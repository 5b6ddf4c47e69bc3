"""Why a process died: by its own fault, for lack of memory, or because somebody else killed it."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass

NEAR_LIMIT = 0.5  # fraction of the machine's memory from which on a killed process is taken for the reason

# Signals that others send; all others, such as SIGSEGV, follow from what the process did.
OUTSIDE = frozenset(
    getattr(signal, name)
    for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGXCPU")
    if hasattr(signal, name)
)


@dataclass(frozen=True)
class Death:
    """The end of a process that did not finish its run.

    A process killed for lack of memory and one killed with its machine both end with SIGKILL. In the first case the
    process used much memory, or the kernel's count of such kills has grown. In all other cases the machine, its batch
    system or a user has ended the process.

    Attributes:
        exit_code: as :attr:`multiprocessing.Process.exitcode`: minus the signal, or the exit code.
        peak: its largest memory, in bytes; 0 if unknown.
        limit: memory of the machine, in bytes; ``None`` if unknown.
        memory_killed: whether the kernel's count of processes killed for lack of memory includes this one.

    Example:
        >>> print(Death(-9, peak=20 * 10**9, limit=24 * 10**9))
        out of memory: the process was killed with 20 of 24 GB in use
        >>> Death(-15, peak=10**9, limit=24 * 10**9).is_own_fault
        False
    """

    exit_code: int
    peak: int = 0
    limit: int | None = None
    memory_killed: bool = False

    @property
    def is_out_of_memory(self) -> bool:
        """Whether the process was killed for lack of memory."""
        if -self.exit_code not in (signal.SIGKILL, signal.SIGTERM):  # user-space memory killers begin with SIGTERM
            return False
        near_limit = self.limit is not None and self.peak >= NEAR_LIMIT * self.limit
        return near_limit or (self.memory_killed and self.exit_code == -signal.SIGKILL)

    @property
    def is_own_fault(self) -> bool:
        """Whether the run would probably end its process again."""
        return self.is_out_of_memory or -self.exit_code not in OUTSIDE

    def __str__(self) -> str:
        if self.is_out_of_memory:
            limit = "" if self.limit is None else f" of {self.limit / 1e9:.3g}"
            return f"out of memory: the process was killed with {self.peak / 1e9:.3g}{limit} GB in use"
        if self.exit_code >= 0:
            return f"the process exited with code {self.exit_code}"
        try:
            name = signal.Signals(-self.exit_code).name
        except ValueError:  # a real-time signal
            name = f"signal {-self.exit_code}"
        return f"the process was killed by {name}" + (" from outside" if -self.exit_code in OUTSIDE else "")


def children_peak() -> int:
    """Return the largest memory of all processes that this one has started and that have ended, in bytes."""
    if sys.platform == "win32":
        return 0
    import resource  # noqa: PLC0415 - POSIX only

    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

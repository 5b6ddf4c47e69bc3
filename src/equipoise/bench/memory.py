"""The most memory that this process has had."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from equipoise.errors import MeasurementError

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peak() -> None:
    """From now on, the peak is that of what follows; where the system has no such thing, that of the whole process."""
    try:
        CLEAR.write_text("5")  # see proc(5)
    except OSError:
        return


def peak() -> int:
    """Bytes of resident memory at their highest.

    Linux's ``ru_maxrss`` would count the process that started this one, so its status is read instead.
    """
    if STATUS.exists():
        found = re.search(r"^VmHWM:\s+(\d+) kB$", STATUS.read_text(), re.MULTILINE)
        if found:
            return 1024 * int(found[1])
    try:
        import resource
    except ImportError as error:
        raise MeasurementError("this system does not say how much memory a process has had") from error
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return highest if sys.platform == "darwin" else 1024 * highest

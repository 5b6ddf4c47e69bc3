"""The machine's clock jumps back again and again during a sweep, whose driver is killed and restarted.

libfaketime answers the calls of driver and workers that ask for the time; it leaves the monotonic clock as it is, as
an administrator does who sets the clock back.
"""

import os
import re
import signal
import threading
import time
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest

from equipoise.experiments.parser import load_experiment
from equipoise.experiments.run import run
from equipoise.experiments.store import Store
from tests.commands.processes import RUNS, SCRIPT, start_python, write_experiment
from tests.experiments.workloads import equal_results

LIBRARIES = [file for folder in ("lib*", "lib*/*") for file in Path("/usr").glob(f"{folder}/faketime/libfaketime.so.1")]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not LIBRARIES, reason="needs libfaketime (apt-get install faketime)"),
]


@pytest.fixture
def clock(tmp_path):
    """Environment of a process whose clock goes back by a day thirty times per second."""
    file, stop = tmp_path / "offset", threading.Event()
    file.write_text("+0")

    def set_back():
        for days in count(1):
            new = file.with_suffix(".new")
            new.write_text(f"-{days}d")
            new.replace(file)
            if stop.wait(0.03):
                return

    thread = threading.Thread(target=set_back)
    thread.start()
    yield {
        "LD_PRELOAD": str(LIBRARIES[0]),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    stop.set()
    thread.join()


def test_clock_that_jumps_back_changes_nothing_but_the_dates(tmp_path, clock):
    path, script = write_experiment(tmp_path, epochs=300), tmp_path / "command.py"
    script.write_text(SCRIPT)
    arguments = [str(script), "reproduce", str(path), "--jobs", "2", "--run-timeout", "300"]
    checkpoints, messages = tmp_path / "equipoise.sqlite.checkpoints", ""
    process = start_python(tmp_path, *arguments, **clock)
    while process.poll() is None and not (checkpoints.exists() and any(checkpoints.glob("*.pt"))):
        time.sleep(0.01)  # checkpoints are written, ten per second, although the clock goes back
    assert process.poll() is None, process.communicate()
    os.killpg(process.pid, signal.SIGKILL)
    messages += process.communicate()[1]
    process = start_python(tmp_path, *arguments, **clock)
    messages += process.communicate(timeout=300)[1]
    assert process.returncode == 0, messages
    assert not re.search(r"[-−]\d+(\.\d+)? (s|min|h|days|runs)", messages), "a negative duration"

    with Store(tmp_path / "equipoise.sqlite") as store:
        results = store.results(curves=True)
    assert len(results) == RUNS
    assert all(0 <= result.seconds < 300 for result in results.values())
    dates = [datetime.fromisoformat(result.when) for result in results.values()]
    assert dates[-1] < dates[0] < datetime.now(UTC) - timedelta(hours=23), "the clock did go back"
    assert all(equal_results(results[spec.key], run(spec)) for spec in load_experiment(path).specs)
    assert not checkpoints.exists()

import signal

import pytest

from equipoise.experiments.process_death import Death

GB = 10**9


@pytest.mark.parametrize(
    ("death", "out_of_memory", "own_fault"),
    [
        (Death(-signal.SIGKILL, GB, 24 * GB), False, False),
        (Death(-signal.SIGKILL, 20 * GB, 24 * GB), True, True),
        (Death(-signal.SIGKILL, 20 * GB, None), False, False),
        (Death(-signal.SIGKILL, GB, 24 * GB, memory_killed=True), True, True),
        (Death(-signal.SIGKILL, GB, None, memory_killed=True), True, True),
        (Death(-signal.SIGTERM, 20 * GB, 24 * GB), True, True),
        (Death(-signal.SIGTERM, GB, 24 * GB, memory_killed=True), False, False),
        (Death(-signal.SIGHUP, 20 * GB, 24 * GB), False, False),
        (Death(-signal.SIGSEGV, 20 * GB, 24 * GB), False, True),
        (Death(-signal.SIGABRT), False, True),
        (Death(1), False, True),
        (Death(-60), False, True),
    ],
    ids=str,
)
def test_causes(death, out_of_memory, own_fault):
    assert (death.is_out_of_memory, death.is_own_fault) == (out_of_memory, own_fault)
    assert ("out of memory" in str(death)) == out_of_memory

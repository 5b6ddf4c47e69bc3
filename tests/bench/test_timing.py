import sys

import numpy as np
import pytest

from equipoise.bench.timing import interleave, make_timer, peak_memory, reset_peak_memory


def test_timer_repeats_the_action():
    calls = []
    times = make_timer(lambda: calls.append(1))(4)
    assert len(calls) == len(times) == 4
    assert min(times) >= 0


def test_timers_alternate_after_a_warmup_round():
    order = []

    def make(name):
        def timer(repeats):
            order.append((name, repeats))
            return [float(len(order))] * repeats

        return timer

    samples = interleave({"a": make("a"), "b": make("b")}, rounds=2, repeats=3)
    assert order == [("a", 1), ("b", 1), ("a", 3), ("b", 3), ("a", 3), ("b", 3)]
    assert samples == {"a": [3.0] * 3 + [5.0] * 3, "b": [4.0] * 3 + [6.0] * 3}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can reset the peak")
def test_peak_memory_counts_from_the_reset():
    np.ones(2**25, np.uint8)
    reset_peak_memory()
    before = peak_memory()
    np.ones(2**26, np.uint8)
    growth = peak_memory() - before
    assert 2**25 < growth < 2**27

"""A crash, a hang and a wrong result are reported with the seed and the input."""

import os
import time

import pytest
from hypothesis import strategies as st

from tests.fuzz import runner, targets
from tests.fuzz.runner import Target, fuzz


def crash(value: int) -> None:
    if value > 3:
        os.abort()


def hang(value: int) -> None:
    if value > 3:
        time.sleep(600)


def fail(value: int) -> None:
    assert value <= 3, "too large"


@pytest.mark.parametrize(("check", "words"), [(crash, "crash, exit code -6"), (hang, "hangs"), (fail, "too large")])
def test_failures_are_reported(check, words, monkeypatch):
    monkeypatch.setattr(runner, "TIMEOUT", 3.0)
    monkeypatch.setattr(runner, "MOST_FAILURES", 1)
    target = Target("numbers", st.integers(0, 9), check, count=20, batch=20)
    monkeypatch.setitem(targets.TARGETS, "numbers", target)
    monkeypatch.setattr(runner, "START_METHOD", "fork")  # the worker sees this target, too
    outcome = fuzz(targets.TARGETS, "numbers", 20)
    assert len(outcome.failures) == 1
    assert words in outcome.failures[0]
    assert "numbers --inputs 20 --seed 0" in outcome.failures[0]
    assert any(f"{number}" in outcome.failures[0].splitlines()[-1] for number in range(4, 10)) or check is fail

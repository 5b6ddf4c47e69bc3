import os

import pytest

from equipoise.commands.threads import wait_passively


@pytest.mark.parametrize(("before", "after"), [(None, "passive"), ("active", "active")])
def test_idle_threads_sleep_unless_the_environment_says_otherwise(monkeypatch, before, after):
    monkeypatch.setenv("OMP_WAIT_POLICY", before or "")
    if before is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    wait_passively()
    assert os.environ["OMP_WAIT_POLICY"] == after

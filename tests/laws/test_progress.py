"""Progress of a long search appears on a terminal only, and after a delay."""

import sys

import pytest

from equipoise.laws import progress
from equipoise.laws.progress import Progress


@pytest.mark.parametrize(("delay", "terminal", "shown"), [(0.0, True, True), (0.0, False, False), (60.0, True, False)])
def test_progress_on_a_terminal_after_a_delay(monkeypatch, capsys, delay, terminal, shown):
    monkeypatch.setattr(progress, "DELAY", delay)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with Progress("discover") as display:
        display.update("width 8 (1 of 3)")
    text = capsys.readouterr().err
    assert ("discover: width 8 (1 of 3)" in text) == shown
    assert text.endswith("\r\x1b[K") == shown  # the line is removed at the end

"""The notice that kernels are being compiled."""

import logging
import time

from equipoise.kernels import jit


def test_slow_compilation_is_logged_once_and_not_printed(monkeypatch, caplog, capfd):
    monkeypatch.setattr(jit, "COMPILE_NOTICE_SECONDS", 0.01)
    jit._log_compiling.cache_clear()
    with caplog.at_level(logging.INFO, logger="equipoise"):
        for _ in range(2):
            with jit.compilation_notice():
                time.sleep(0.1)
    messages = [record.getMessage() for record in caplog.records if record.name == "equipoise"]
    assert [message.startswith("Compiling kernels") for message in messages] == [True]
    assert capfd.readouterr() == ("", "")


def test_fast_compilation_is_not_logged(caplog):
    jit._log_compiling.cache_clear()
    with caplog.at_level(logging.INFO, logger="equipoise"), jit.compilation_notice():
        pass
    assert not [record for record in caplog.records if record.name == "equipoise"]

"""Coverage-guided fuzzing of one target, where atheris is installed (``pip install atheris``).

``python -m tests.fuzz.coverage_guided TARGET [-atheris_runs=N]`` tries inputs of the same strategies as
``python -m tests.fuzz``. Atheris chooses the bytes that Hypothesis draws from, and prefers those that reach new lines
of equipoise. It ends with the first failure, or after N inputs.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import atheris
from hypothesis import HealthCheck, given, settings

with atheris.instrument_imports(include=["equipoise"]):
    from tests.fuzz.targets import TARGETS

SEEDS, LENGTH = 64, 4096  # inputs to begin with, and their bytes


def main(arguments: list[str]) -> None:
    """Fuzz the target that the first argument names; the others are libFuzzer's."""
    if not arguments or arguments[0] not in TARGETS:
        sys.exit(f"name a target: {', '.join(TARGETS)}")
    target = TARGETS[arguments[0]]

    @settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(target.inputs)
    def check(value: Any) -> None:
        target.check(value)

    with tempfile.TemporaryDirectory() as folder:  # targets write their files to the current folder
        os.chdir(folder)
        Path("corpus").mkdir()
        for seed in range(SEEDS):  # libFuzzer begins with a few bytes, from which Hypothesis cannot draw an input
            Path("corpus", str(seed)).write_bytes(Random(seed).randbytes(LENGTH))
        options = [f"-max_len={LENGTH}", "-len_control=0", *arguments[1:], "corpus"]
        atheris.Setup([sys.argv[0], *options], check.hypothesis.fuzz_one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])

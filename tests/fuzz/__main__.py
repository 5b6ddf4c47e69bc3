"""Fuzz all targets, or some: ``python -m tests.fuzz [TARGET …] [--inputs N] [--seed N]``."""

from __future__ import annotations

import argparse
import sys
import time

from tests.fuzz.runner import fuzz
from tests.fuzz.targets import TARGETS


def main() -> int:
    """Print one row per target and every failure; return 1 if there is any."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of: {', '.join(TARGETS)}; all by default")
    parser.add_argument("--inputs", type=int, help="per target; by default 122,400 in all")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first batch, as a failure names it")
    arguments = parser.parse_args()
    if unknown := set(arguments.targets) - set(TARGETS):
        parser.error(f"no target {', '.join(unknown)}; choose of: {', '.join(TARGETS)}")
    total = failed = 0
    for name in arguments.targets or TARGETS:
        start = time.monotonic()
        outcome = fuzz(TARGETS, name, arguments.inputs or TARGETS[name].count, arguments.seed)
        total, failed = total + outcome.tried, failed + len(outcome.failures)
        seconds, failures = time.monotonic() - start, len(outcome.failures)
        print(f"{name:18} {outcome.tried:7,} inputs  {failures:2} failures  {seconds:6.0f} s", flush=True)
        for failure in outcome.failures:
            print(failure, flush=True)
    print(f"{'all':18} {total:7,} inputs  {failed:2} failures")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())

"""About a thousand inputs in all; ``make fuzz`` tries a hundred times as many."""

import pytest

from tests.fuzz.runner import fuzz
from tests.fuzz.targets import TARGETS

SHARE = 0.01  # of the inputs of a full run


@pytest.mark.parametrize("name", TARGETS)
def test_every_input_gives_a_named_error_or_a_right_result(name: str) -> None:
    inputs = round(SHARE * TARGETS[name].count)
    outcome = fuzz(TARGETS, name, inputs)
    assert outcome.tried >= inputs
    assert not outcome.failures, "\n\n".join(outcome.failures)

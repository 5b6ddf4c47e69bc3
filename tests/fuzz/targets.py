"""All targets."""

from __future__ import annotations

from tests.fuzz.command_lines import COMMAND_LINES
from tests.fuzz.files import FILES
from tests.fuzz.interface import INTERFACE
from tests.fuzz.layers import LAYERS
from tests.fuzz.stacks import STACKS

TARGETS = {target.name: target for target in (LAYERS, STACKS, *INTERFACE, *FILES, COMMAND_LINES)}

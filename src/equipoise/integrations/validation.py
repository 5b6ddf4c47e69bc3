"""Check of what the sinks listen to."""

from __future__ import annotations

from equipoise.errors import EquipoiseError
from equipoise.training.recorder import Recorder


def check_recorder(recorder: object) -> None:
    """Raise :class:`EquipoiseError` unless the argument is a recorder."""
    if not isinstance(recorder, Recorder):
        raise EquipoiseError(
            f"expected a recorder, got {type(recorder).__name__}", remedy="pass rec = Recorder(model, laws, every=25)"
        )

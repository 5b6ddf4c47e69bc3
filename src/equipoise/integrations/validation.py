"""Checks of recorders and rebalancers."""

from __future__ import annotations

from equipoise.errors import EquipoiseError
from equipoise.training.rebalancer import Rebalancer
from equipoise.training.recorder import Recorder


def check_recorder(recorder: object) -> None:
    """Raise :class:`EquipoiseError` unless the argument is a recorder."""
    if not isinstance(recorder, Recorder):
        raise EquipoiseError(
            f"expected a recorder, got {type(recorder).__name__}", remedy="pass rec = Recorder(model, laws, every=25)"
        )


def check_rebalancer(rebalancer: object) -> None:
    """Raise :class:`EquipoiseError` unless the argument is a rebalancer."""
    if not isinstance(rebalancer, Rebalancer):
        raise EquipoiseError(
            f"expected a rebalancer, got {type(rebalancer).__name__}", remedy="pass Rebalancer(laws, every=10)"
        )

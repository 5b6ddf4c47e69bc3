"""equipoise: deep graph neural networks that train.

The public names, each imported when it is first used:

    discover, explain, verify        every rescaling law of any network, and why a neuron has none
    imbalance, residual, telescope   what gradient flow conserves, and whether it does
    rebalance_                       the same function, in balance
    Law, Slot                        what a law is made of
    EquipoiseError                   the family of errors
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equipoise.errors import EquipoiseError as EquipoiseError
    from equipoise.laws.discover import discover as discover
    from equipoise.laws.explain import Explanation as Explanation
    from equipoise.laws.explain import explain as explain
    from equipoise.laws.law import Law as Law
    from equipoise.laws.law import imbalance as imbalance
    from equipoise.laws.law import residual as residual
    from equipoise.laws.rebalance import rebalance_ as rebalance_
    from equipoise.laws.slot import Slot as Slot
    from equipoise.laws.telescope import telescope as telescope
    from equipoise.laws.verify import verify as verify

__version__ = "0.1.0"

_HOMES = {
    "EquipoiseError": "equipoise.errors",
    "Explanation": "equipoise.laws.explain",
    "Law": "equipoise.laws.law",
    "Slot": "equipoise.laws.slot",
    "discover": "equipoise.laws.discover",
    "explain": "equipoise.laws.explain",
    "imbalance": "equipoise.laws.law",
    "rebalance_": "equipoise.laws.rebalance",
    "residual": "equipoise.laws.law",
    "telescope": "equipoise.laws.telescope",
    "verify": "equipoise.laws.verify",
}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'equipoise' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

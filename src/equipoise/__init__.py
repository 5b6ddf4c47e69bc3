"""equipoise: deep graph neural networks that train.

The public names, each imported when it is first used:

    discover, explain, verify        every rescaling law of any network, and why a neuron has none
    imbalance, residual, telescope   what gradient flow conserves, and whether it does
    rebalance_                       the same function, in balance
    initialize_, balance_            a start from which a deep network trains
    Stack, fuse_                     a deep network in one line; fused layers for any model
    load_dataset, train, History     the paper's data, one training run, what it leaves behind
    Recorder, Recording              what happens meanwhile: gradients, balance, representations
    depth_check                      what happens to a model of yours as it gets deeper
    Law, Slot                        what a law is made of
    EquipoiseError                   the family of errors
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equipoise.data.load import load_dataset as load_dataset
    from equipoise.depth import depth_check as depth_check
    from equipoise.errors import EquipoiseError as EquipoiseError
    from equipoise.init.balance import balance_ as balance_
    from equipoise.init.schemes import initialize_ as initialize_
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
    from equipoise.nn.fuse import fuse_ as fuse_
    from equipoise.nn.stack import Stack as Stack
    from equipoise.train.history import History as History
    from equipoise.train.protocol import train as train
    from equipoise.train.recorder import Recorder as Recorder
    from equipoise.train.recording import Recording as Recording

__version__ = "0.1.0"

_HOMES = {
    "EquipoiseError": "equipoise.errors",
    "Explanation": "equipoise.laws.explain",
    "History": "equipoise.train.history",
    "Law": "equipoise.laws.law",
    "Recorder": "equipoise.train.recorder",
    "Recording": "equipoise.train.recording",
    "Slot": "equipoise.laws.slot",
    "Stack": "equipoise.nn.stack",
    "balance_": "equipoise.init.balance",
    "depth_check": "equipoise.depth",
    "discover": "equipoise.laws.discover",
    "explain": "equipoise.laws.explain",
    "fuse_": "equipoise.nn.fuse",
    "initialize_": "equipoise.init.schemes",
    "imbalance": "equipoise.laws.law",
    "load_dataset": "equipoise.data.load",
    "rebalance_": "equipoise.laws.rebalance",
    "residual": "equipoise.laws.law",
    "telescope": "equipoise.laws.telescope",
    "train": "equipoise.train.protocol",
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

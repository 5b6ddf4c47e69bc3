"""equipoise: train deep graph neural networks.

Public names, imported lazily on first use:

    discover, verify                 find the rescaling laws of any network; check them by rescaling
    explain, Explanation             report on laws, their balance and the cause of missing laws
    imbalance, residual, telescope   conserved quantities of gradient flow, and checks that they are conserved
    rebalance_, Rebalancer           balance a network without changing its function, once or during training
    initialize_, balance_            initialise a network so that it trains at any depth; balance given weights
    Stack, fuse_, unfuse_            build a deep network in one line; use fused CPU layers in any model
    load_dataset, train, History     load the paper's data; train a network; its learning curves
    partition, load_part, Part       partition a graph for training on several machines; load the part of a rank
    DistributedGraph                 the part of a rank, for layers that take edge_index
    sum_gradients, sum_over_ranks    gradients and loss of all ranks, for training loops of your own
    Recorder, Recording              record gradients, balance and representations during training
    depth_check, width_check         report whether your model trains as it gets deeper or wider (DepthCheck)
    Law, Slot, Telescope             data structures of a law, its parameters, and a chain of laws
    EquipoiseError                   base class of all exceptions
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equipoise.data.load import load_dataset as load_dataset
    from equipoise.depth.check import depth_check as depth_check
    from equipoise.depth.check import width_check as width_check
    from equipoise.depth.result import DepthCheck as DepthCheck
    from equipoise.distributed.gradients import sum_gradients as sum_gradients
    from equipoise.distributed.gradients import sum_over_ranks as sum_over_ranks
    from equipoise.distributed.graph import DistributedGraph as DistributedGraph
    from equipoise.distributed.parts.loading import load_part as load_part
    from equipoise.distributed.parts.part import Part as Part
    from equipoise.distributed.parts.partition import partition as partition
    from equipoise.errors import EquipoiseError as EquipoiseError
    from equipoise.init.balance import balance_ as balance_
    from equipoise.init.schemes import initialize_ as initialize_
    from equipoise.laws.discover import discover as discover
    from equipoise.laws.discover import verify as verify
    from equipoise.laws.explain import Explanation as Explanation
    from equipoise.laws.explain import explain as explain
    from equipoise.laws.law import Law as Law
    from equipoise.laws.law import imbalance as imbalance
    from equipoise.laws.law import residual as residual
    from equipoise.laws.rebalance import rebalance_ as rebalance_
    from equipoise.laws.slot import Slot as Slot
    from equipoise.laws.telescope import Telescope as Telescope
    from equipoise.laws.telescope import telescope as telescope
    from equipoise.nn.fused_convs import fuse_ as fuse_
    from equipoise.nn.fused_convs import unfuse_ as unfuse_
    from equipoise.nn.stack import Stack as Stack
    from equipoise.training.history import History as History
    from equipoise.training.loop import train as train
    from equipoise.training.rebalancer import Rebalancer as Rebalancer
    from equipoise.training.recorder import Recorder as Recorder
    from equipoise.training.recording import Recording as Recording

__version__ = "0.1.0"

_HOMES = {
    "DepthCheck": "equipoise.depth.result",
    "DistributedGraph": "equipoise.distributed.graph",
    "EquipoiseError": "equipoise.errors",
    "Explanation": "equipoise.laws.explain",
    "History": "equipoise.training.history",
    "Law": "equipoise.laws.law",
    "Part": "equipoise.distributed.parts.part",
    "Rebalancer": "equipoise.training.rebalancer",
    "Recorder": "equipoise.training.recorder",
    "Recording": "equipoise.training.recording",
    "Slot": "equipoise.laws.slot",
    "Stack": "equipoise.nn.stack",
    "Telescope": "equipoise.laws.telescope",
    "balance_": "equipoise.init.balance",
    "depth_check": "equipoise.depth.check",
    "discover": "equipoise.laws.discover",
    "explain": "equipoise.laws.explain",
    "fuse_": "equipoise.nn.fused_convs",
    "initialize_": "equipoise.init.schemes",
    "imbalance": "equipoise.laws.law",
    "load_dataset": "equipoise.data.load",
    "load_part": "equipoise.distributed.parts.loading",
    "partition": "equipoise.distributed.parts.partition",
    "rebalance_": "equipoise.laws.rebalance",
    "residual": "equipoise.laws.law",
    "sum_gradients": "equipoise.distributed.gradients",
    "sum_over_ranks": "equipoise.distributed.gradients",
    "telescope": "equipoise.laws.telescope",
    "train": "equipoise.training.loop",
    "unfuse_": "equipoise.nn.fused_convs",
    "verify": "equipoise.laws.discover",
    "width_check": "equipoise.depth.check",
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

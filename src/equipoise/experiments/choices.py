"""Names that the settings of a run may take: kinds of layers, schemes, optimizers and others.

This module imports no large package, so that the help of the command line is fast. The names are therefore literals;
the tests compare them with the registries of :mod:`equipoise.nn`, :mod:`equipoise.init` and :mod:`equipoise.training`.
"""

from __future__ import annotations

from typing import Literal, get_args

from equipoise.data.catalog import CATALOG

Kind = Literal["gatv2", "gat", "gcn", "omega-gat", "lipschitz-gat", "transformer"]
SchemeName = Literal[
    "default",
    "xav",
    "xav-z",
    "bal-x",
    "llortho",
    "bal-o",
    "identity",
    "bal-identity",
    "llidentity",
    "bal-llidentity",
    "rebalanced",
]
Activation = Literal["relu", "leaky-relu", "elu", "gelu", "tanh", "identity"]
Skip = Literal["linear", "identity"]
Norm = Literal["layer", "batch"]
JumpingKnowledge = Literal["cat"]
CriterionName = Literal["weights", "gradients", "relative-gradients"]
OptimizerName = Literal["sgd", "adam", "adamw", "nadam", "radam", "adamax", "rmsprop", "adagrad"]

BALANCED_SCHEMES = ("bal-x", "bal-o", "bal-identity", "bal-llidentity")

CHOICES: dict[str, tuple[str | None, ...]] = {
    "dataset": tuple(CATALOG),
    "init": get_args(SchemeName),
    "kind": get_args(Kind),
    "activation": get_args(Activation),
    "skip": (None, *get_args(Skip)),
    "norm": (None, *get_args(Norm)),
    "jk": (None, *get_args(JumpingKnowledge)),
    "optimizer": get_args(OptimizerName),
    "rebalance_criterion": get_args(CriterionName),
}

"""Which path a layer takes, the fused kernels or PyG's own, and why."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import GATConv, GCNConv, MessagePassing

from equipoise.errors import ChoiceError
from equipoise.kernels.csr import Graphs

VARIABLE = "EQUIPOISE_ENGINE"
ENGINES = ("fused", "reference")

# Graphs that layers have seen, shared by all of them: sorting edges once per graph, not once per layer.
GRAPHS = Graphs()


def obstacle(conv: MessagePassing, x: Any, edge_index: Any, *extras: Any) -> str:
    """Why PyG's own path has to be taken for this call; empty if the kernels serve it."""
    reasons = {
        f"{VARIABLE}=reference": not _wanted(),
        "two kinds of nodes": not isinstance(x, Tensor),
        "edge features, edge weights or attention weights to be returned": any(extra is not None for extra in extras),
        "a sparse adjacency matrix": not isinstance(edge_index, Tensor) or edge_index.layout != torch.strided,
    }
    for reason, holds in reasons.items():
        if holds:
            return reason
    reasons = {
        f"features on {x.device.type}": x.device.type != "cpu" or edge_index.device.type != "cpu",
        f"features of {x.dtype}": x.dtype not in (torch.float32, torch.float64),
        "messages against the direction of edges, or not summed": conv.flow != "source_to_target" or _not_summed(conv),
        "a function transform or compilation": torch.compiler.is_compiling()
        or torch._C._functorch.is_functorch_wrapped_tensor(x),
        "an explainer": bool(conv.explain),
        "two matrices, one for each kind of nodes": isinstance(conv, GATConv) and conv.lin is None,
        "weights that are not normalised": isinstance(conv, GCNConv) and not conv.normalize,
        "a cached normalisation": isinstance(conv, GCNConv) and bool(conv.cached),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _wanted() -> bool:
    engine = os.environ.get(VARIABLE, "fused")
    if engine not in ENGINES:
        raise ChoiceError(f"engine in {VARIABLE}", engine, ENGINES)
    return engine == "fused"


def _not_summed(conv: MessagePassing) -> bool:
    return conv.aggr not in ("add", "sum")

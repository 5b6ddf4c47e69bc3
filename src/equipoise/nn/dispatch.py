"""Dispatch of a layer call to the fused kernels or to PyG's implementation."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import GATConv, GCNConv, MessagePassing

from equipoise.errors import ChoiceError
from equipoise.kernels.csr import GraphCache

ENGINE_VARIABLE = "EQUIPOISE_ENGINE"
ENGINES = ("fused", "reference")

# Shared by all layers, so that the edges of a graph are sorted once and not once per layer.
GRAPH_CACHE = GraphCache()


def fallback_reason(conv: MessagePassing, x: Any, edge_index: Any, *extras: Any) -> str:
    """Why a call has to use PyG's implementation; empty if the fused kernels support it.

    Args:
        conv: the layer.
        x: its input features.
        edge_index: its graph.
        extras: other arguments of the call, which the kernels support only as None.

    Returns:
        The first reason that applies.
    """
    reasons = {
        f"{ENGINE_VARIABLE}=reference": not _fused_enabled(),
        "bipartite input": not isinstance(x, Tensor),
        "edge features, edge weights or requested attention weights": any(extra is not None for extra in extras),
        "sparse adjacency matrix": not isinstance(edge_index, Tensor) or edge_index.layout != torch.strided,
    }
    for reason, applies in reasons.items():
        if applies:
            return reason
    reasons = {
        f"features on {x.device.type}": x.device.type != "cpu" or edge_index.device.type != "cpu",
        f"features of {x.dtype}": x.dtype not in (torch.float32, torch.float64),
        "flow='target_to_source' or an aggregation other than sum": conv.flow != "source_to_target"
        or conv.aggr not in ("add", "sum"),
        "function transform or torch.compile": torch.compiler.is_compiling()
        or torch._C._functorch.is_functorch_wrapped_tensor(x),
        "explainer": bool(conv.explain),
        "separate weights for source and target nodes": isinstance(conv, GATConv) and conv.lin is None,
        "normalize=False": isinstance(conv, GCNConv) and not conv.normalize,
        "cached=True": isinstance(conv, GCNConv) and bool(conv.cached),
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def _fused_enabled() -> bool:
    engine = os.environ.get(ENGINE_VARIABLE, "fused")
    if engine not in ENGINES:
        raise ChoiceError(f"engine in {ENGINE_VARIABLE}", engine, ENGINES)
    return engine == "fused"

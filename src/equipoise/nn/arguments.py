"""Arguments of a layer call: which of them the fused kernels take as they are, and errors for those that are malformed.

A function named ``…_reason`` returns why PyG's implementation has to be called, or the empty string.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import (
    GATv2Conv,
    GCNConv,
    GINConv,
    GraphConv,
    MessagePassing,
    SAGEConv,
    TransformerConv,
)

from equipoise.errors import GraphError

INDEX_TYPES = (torch.int64, torch.int32)
CONVERTED_INDEX_TYPES = (torch.int16, torch.int8, torch.uint8, torch.bool)  # by PyG, if it adds self-loops
FEATURE_TYPES = (torch.float32, torch.float64)


class MalformedCall(str):
    """A reason to call PyG's implementation that PyG is likely to reject, too.

    PyG decides, as it accepts some calls by broadcasting; :func:`call_pyg` turns its error into a ``GraphError``.

    Attributes:
        remedy: what the caller can do about it.
    """

    remedy: str

    def __new__(cls, reason: str, remedy: str) -> MalformedCall:
        self = super().__new__(cls, reason)
        self.remedy = remedy
        return self


def check_edge_index(conv: nn.Module, edge_index: Tensor) -> None:
    """Check type and shape of ``edge_index``; its indices are checked when the graph is sorted.

    Args:
        conv: the layer, for the message.
        edge_index: the argument.

    Raises:
        GraphError: it is not a (2, edges) tensor of integers.
    """
    if edge_index.dtype in INDEX_TYPES and edge_index.dim() == 2 and edge_index.size(0) == 2:
        return
    if edge_index.dtype not in INDEX_TYPES:
        problem = f"is a {str(edge_index.dtype).removeprefix('torch.')} tensor, expected integers"
    elif edge_index.dim() != 2:
        problem = f"has {edge_index.dim()} dimension{'s' * (edge_index.dim() != 1)}, expected 2"
    else:
        problem = f"has shape {tuple(edge_index.shape)}, expected (2, edges)"
    raise GraphError(
        f"{type(conv).__name__}: edge_index {problem}",
        remedy="pass a torch.long tensor of shape (2, edges): sources in row 0, targets in row 1",
    )


def edge_index_reason(conv: MessagePassing, edge_index: Tensor) -> str:
    """Reason in the graph; raises a ``GraphError`` if its type or shape is wrong."""
    if edge_index.dtype in CONVERTED_INDEX_TYPES:
        return f"edge_index of {edge_index.dtype}"
    check_edge_index(conv, edge_index)
    if edge_index.dtype != torch.int64 and not getattr(conv, "add_self_loops", False):
        return MalformedCall(f"edge_index is of {edge_index.dtype}, expected torch.int64", "pass edge_index.long()")
    return "" if edge_index.device.type == "cpu" else f"edge_index on {edge_index.device.type}"


def feature_reason(conv: MessagePassing, x: Any, part: int = 0) -> str:
    """Reason in the features of nodes.

    Args:
        conv: the layer.
        x: features of all nodes, of sources or of targets.
        part: 1 for features of targets in a bipartite call.

    Returns:
        The first reason that applies.
    """
    if type(x) not in (Tensor, nn.Parameter):
        return "tensor subclass"
    if x.device.type != "cpu":
        return f"features on {x.device.type}"
    weight = next(conv.parameters(), x)
    if x.dtype != weight.dtype:
        remedy = "convert one of them: x.float(), model.double()"
        return MalformedCall(f"x is of {x.dtype}, the weights are of {weight.dtype}", remedy)
    if x.dtype not in FEATURE_TYPES:
        return f"features of {x.dtype}"
    return _layout_reason(conv, x) or _width_reason(conv, x, part)


def _layout_reason(conv: MessagePassing, x: Tensor) -> str:
    """Reason in the number of dimensions of features, or in their sparsity."""
    if x.dim() != 2:
        remedy = "pass (nodes, features); merge a batch of graphs into one with torch_geometric.data.Batch"
        return MalformedCall(f"x has {x.dim()} dimensions, expected 2", remedy)
    if x.layout == torch.strided:
        return ""
    if x.requires_grad:
        return "gradient of sparse features"
    if isinstance(conv, GraphConv | GINConv) or (isinstance(conv, SAGEConv) and not conv.project):
        return MalformedCall("x is sparse, but sums over neighbours need dense features", "pass x.to_dense()")
    return ""


def _width_reason(conv: MessagePassing, x: Tensor, part: int) -> str:
    """Reason in the number of features; a lazy layer, with -1 channels, takes any."""
    channels = getattr(conv, "in_channels", -1)
    expected = channels if isinstance(channels, int) else channels[part]
    if expected in (-1, x.size(1)):
        return ""
    problem = f"x has {x.size(1)} features, but the layer expects {expected}"
    return MalformedCall(problem, "build the layer with in_channels=x.shape[1]")


def parameter_reason(conv: MessagePassing) -> str:
    """Reason in the shape of attention vectors: kernels read them without bounds checks, PyG broadcasts some."""
    for name in ("att", "att_src", "att_dst", "att_edge"):
        vector = conv._parameters.get(name)
        if vector is not None and vector.shape != (1, conv.heads, conv.out_channels):
            expected = (1, conv.heads, conv.out_channels)
            return MalformedCall(f"{name} has shape {tuple(vector.shape)}, expected {expected}", "restore its shape")
    return ""


def input_reason(conv: MessagePassing, x: Any, size: Any) -> str:
    """Reason in the features of bipartite input, or in its size.

    Args:
        conv: the layer.
        x: features of all nodes, or a pair of those of sources and targets; those of targets may be
            None for layers that do not need them.
        size: numbers of sources and targets; None to take them from the features.

    Returns:
        The first reason that applies.
    """
    if isinstance(x, Tensor):
        source = target = x
    else:
        if isinstance(conv, GCNConv):
            return "bipartite input"
        remedy = "pass (x_source, x_target)"
        if not isinstance(x, tuple | list) or len(x) != 2:
            number = f" of {len(x)}" if isinstance(x, tuple | list) else ""
            return MalformedCall(f"x is a {type(x).__name__}{number}, expected a tensor or a pair", remedy)
        source, target = x
        optional = Tensor if isinstance(conv, GATv2Conv | TransformerConv) else (Tensor, type(None))
        if not isinstance(source, Tensor) or not isinstance(target, optional):
            kinds = ", ".join(type(part).__name__ for part in x)
            return MalformedCall(f"x is a pair ({kinds}), expected two tensors", remedy)
        if target is not None and target.dim() != 2:
            problem = f"x_target has {target.dim()} dimensions, expected 2"
            return MalformedCall(problem, "pass (targets, features)")
    reason = feature_reason(conv, source) or (feature_reason(conv, target, part=1) if target is not None else "")
    return reason or _size_reason(source, target, size)


def _size_reason(source: Tensor, target: Tensor | None, size: Any) -> str:
    if size is None:
        return ""
    is_pair = isinstance(size, tuple | list) and len(size) == 2 and all(type(n) is int and n >= 0 for n in size)
    problem = "expected a pair of integers"
    if is_pair:
        sources, targets = source.size(0), size[1] if target is None else target.size(0)
        if tuple(size) == (sources, targets):
            return ""
        problem = f"but x has {sources} sources and {targets} targets"
    return MalformedCall(f"size={size!r}, {problem}", "pass (sources, targets), or omit size to take it from x")


def edge_attr_reason(conv: Any, edge_index: Tensor, edge_attr: Any) -> str:
    """Reason in edge features, or in edge weights of GCN and GraphConv.

    Args:
        conv: the layer.
        edge_index: its graph.
        edge_attr: features (edges, edge_dim), or (edges) for one feature; weights (edges); None without.

    Returns:
        The first reason that applies.
    """
    if isinstance(conv, TransformerConv):
        return _transformer_reason(conv, edge_attr)
    if edge_attr is None:
        return ""
    if isinstance(conv, GCNConv | GraphConv):
        name, columns, reason = "edge_weight", None, ""
    else:
        name, columns, reason = "edge_attr", getattr(conv.lin_edge, "in_channels", None), _projection_reason(conv)
    return (
        _edge_tensor_reason(name, edge_index, edge_attr)
        or reason
        or _shape_reason(name, tuple(edge_attr.shape), edge_index.size(1), columns)
    )


def _transformer_reason(conv: Any, edge_attr: Any) -> str:
    if edge_attr is not None:
        return "edge features of TransformerConv"
    if conv.lin_edge is None:
        return ""
    problem = f"edge_attr is missing, but the layer has edge_dim={conv.edge_dim}"
    return MalformedCall(problem, "pass edge features, or construct the layer without edge_dim")


def _projection_reason(conv: Any) -> str:
    """Reason in the linear map of edge features."""
    if conv.lin_edge is None:
        return MalformedCall("edge_attr is given, but the layer has no edge_dim", "construct the layer with edge_dim")
    return "" if hasattr(conv.lin_edge, "in_channels") else "linear map of edge features replaced by another module"


def _edge_tensor_reason(name: str, edge_index: Tensor, edge_attr: Any) -> str:
    if not isinstance(edge_attr, Tensor):
        return MalformedCall(f"{name} is a {type(edge_attr).__name__}, expected a tensor", f"pass {name} as a tensor")
    plain = type(edge_attr) in (Tensor, nn.Parameter) and edge_attr.layout == torch.strided
    if not plain or edge_attr.device.type != "cpu" or edge_attr.dtype not in FEATURE_TYPES:
        return f"{name} of another tensor class, device or dtype"
    if edge_index.dtype != torch.int64:
        return f"{name} for edge_index of {edge_index.dtype}"
    return ""


def _shape_reason(name: str, shape: tuple[int, ...], edges: int, columns: int | None) -> str:
    """Reason in the shape (edges, columns), or (edges) for one column or None; −1 columns are any number."""
    if columns == -1 and len(shape) == 2:  # lazily initialised
        columns = shape[1]
    if shape == (edges, columns) or (columns in (None, 1) and shape == (edges,)):
        return ""
    expected = f"({edges},)" if columns is None else f"({edges}, {columns})"
    return MalformedCall(f"{name} has shape {shape}, expected {expected}", "pass one row per edge of edge_index")


def traced_reason(conv: Any, x: Any, edge_index: Any, edge_attr: Any) -> str:
    """Reason in a call that torch.compile or torch.export traces, with tensors that have no values.

    Args:
        conv: the layer.
        x: its input.
        edge_index: its graph.
        edge_attr: edge features of GAT and GATv2, edge weights of GCN.

    Returns:
        The first reason that applies.
    """
    if isinstance(conv, SAGEConv | GraphConv | GINConv | TransformerConv):
        return "traced call of a layer without an operator of torch.library"
    gcn = isinstance(conv, GCNConv)
    if gcn and (edge_attr is not None or conv.cached):
        return "traced call with edge weights or cached=True"
    pair = isinstance(x, tuple | list) and len(x) == 2 and not gcn
    features = (*(x if pair else (x,)), *(() if edge_attr is None else (edge_attr,)))
    if not all(_is_plain(tensor, FEATURE_TYPES) and tensor.dim() == 2 for tensor in features):
        return "traced call with features that are not a dense float32 or float64 matrix on the CPU"
    if edge_attr is not None and conv.lin_edge is None:
        return "traced call with edge features of a layer without edge_dim"
    if not (_is_plain(edge_index, (torch.int64,)) and edge_index.dim() == 2 and edge_index.shape[0] == 2):
        return "traced call with an edge_index that is not a torch.int64 tensor of shape (2, edges)"
    return ""


def _is_plain(tensor: Any, dtypes: tuple[torch.dtype, ...]) -> bool:
    if not isinstance(tensor, Tensor):
        return False
    return tensor.dtype in dtypes and tensor.device.type == "cpu" and tensor.layout == torch.strided

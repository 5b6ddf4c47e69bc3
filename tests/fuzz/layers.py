"""Calls of every fused layer, most of them malformed: the outcome is that of PyG's own layer, gradients included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_geometric.nn import (
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GraphConv,
    SAGEConv,
    TransformerConv,
)

from equipoise import fuse_
from equipoise.errors import EquipoiseError
from tests.fuzz.runner import Target
from tests.fuzz.tensors import HUGE, Features, features

WIDTH, SOURCES, TARGETS = 3, 5, 4
ATTENTION, AGGREGATION = (GATv2Conv, GATConv, TransformerConv), (SAGEConv, GraphConv, GINConv)


@dataclass(frozen=True)
class Edges:
    """An ``edge_index``.

    Attributes:
        rows: sources and targets.
        dtype: its dtype.
        form: how it is stored, or what it is instead of a (2, edges) tensor.
    """

    rows: tuple[tuple[int, ...], tuple[int, ...]]
    dtype: str = "int64"
    form: str = "plain"

    def build(self) -> Any:
        """The tensor; a new one at every call."""
        index = torch.tensor(self.rows, dtype=torch.int64).reshape(2, -1).to(getattr(torch, self.dtype))
        return FORMS[self.form](index) if self.form in FORMS else index


FORMS: dict[str, Callable[[Tensor], Any]] = {
    "flat": lambda index: index.reshape(-1),
    "transposed": lambda index: index.t(),
    "strided": lambda index: torch.stack([index, index], dim=-1)[..., 0],
    "column major": lambda index: index.t().contiguous().t(),
    "expanded": lambda index: index[:, :1].expand(index.shape) if index.size(1) else index,
    "one row expanded": lambda index: index[:1].expand(2, -1),
    "three rows": lambda index: torch.cat([index, index[:1]]),
    "one row": lambda index: index[:1],
    "batch": lambda index: index[None],
    "sparse": lambda index: torch.eye(SOURCES).to_sparse_csr(),
    "sparse coo": lambda index: torch.eye(SOURCES).to_sparse_coo(),
    "meta": lambda index: index.to("meta"),
    "parameter": lambda index: nn.Parameter(index, requires_grad=False),
    "inference": torch.inference_mode()(torch.clone),
    "quantized": lambda index: torch.quantize_per_tensor(index.real.float().clamp(0, 4), 1.0, 0, torch.qint8),
    "list": lambda index: index.tolist(),
    "none": lambda index: None,
}
INDICES = st.one_of(
    *[st.integers(0, TARGETS - 1)] * 8, st.integers(-3, 9), st.sampled_from([-(2**62), 2**31, 2**40, 2**62])
)


@st.composite
def edge_indices(draw: st.DrawFn) -> Edges:
    """Graphs of up to eight edges."""
    edges = draw(st.integers(0, 8))
    index = draw(st.sampled_from([st.integers(0, TARGETS - 1)] * 3 + [INDICES]))
    rows = [tuple(draw(st.lists(index, min_size=edges, max_size=edges))) for _ in range(2)]
    dtype = draw(st.sampled_from(["int64"] * 14 + ["int32", "int16", "uint8", "float32", "bool", "complex64"]))
    return Edges((rows[0], rows[1]), dtype, draw(st.sampled_from(["plain"] * 30 + list(FORMS))))


@dataclass(frozen=True)
class Call:
    """A layer and the arguments of one call.

    Attributes:
        layer: class of the layer.
        options: arguments of its constructor.
        x: features of all nodes, or of sources, targets and so on.
        edges: the graph.
        edge_attr: edge features or weights.
        size: numbers of sources and targets.
        attention: ``return_attention_weights``.
        change: what is done to the layer before the call.
        repeat: call it twice, the second time with cached graphs.
        training: mode of the layer.
        threads: number of threads.
    """

    layer: str
    options: dict[str, Any]
    x: tuple[Features | None, ...]
    edges: Edges
    edge_attr: Features | None = None
    size: Any = None
    attention: bool | None = None
    change: str = "none"
    repeat: bool = False
    training: bool = False
    threads: int = 1
    pair: bool = field(default=False)

    def run(self, fused: bool) -> Any:
        """Outputs and gradients of the layer, or the error that it raises."""
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        try:
            conv = build(self.layer, tuple(self.options.items()), fused, self.change)
        except Exception as error:
            return error
        conv.train(self.training)
        if self.layer == "GCNConv":
            conv._cached_edge_index = None  # of an earlier call
        parts = [None if part is None else part.build(number) for number, part in enumerate(self.x)]
        x = tuple(parts) if self.pair else parts[0]
        edge_index = self.edges.build()
        extras = [] if self.edge_attr is None else [self.edge_attr.build(7)]
        torch.default_generator.manual_seed(0)
        result = outcome(conv, self._arguments(x, edge_index, extras), [*parts, *extras])
        if self.repeat:
            result = outcome(conv, self._arguments(x, edge_index, extras), [*parts, *extras])
        return result

    def _arguments(self, x: Any, edge_index: Any, extras: list[Any]) -> list[Any]:
        edge_attr = extras[0] if extras else None
        match self.layer:
            case "GATv2Conv" | "TransformerConv":
                return [x, edge_index, edge_attr, self.attention]
            case "GATConv":
                return [x, edge_index, edge_attr, self.size, self.attention]
            case "GCNConv":
                return [x, edge_index, edge_attr]
            case "GraphConv":
                return [x, edge_index, edge_attr, self.size]
        return [x, edge_index, self.size]

    @property
    def may_crash_torch(self) -> bool:
        """Whether PyG's own layer may read out of bounds."""
        return any(part is not None and part.may_crash_torch for part in (*self.x, self.edge_attr))


@lru_cache(maxsize=2000)
def build(layer: str, options: tuple[tuple[str, Any], ...], fused: bool, change: str) -> nn.Module:
    """One of PyG's layers, or its fused twin with equal parameters."""
    torch.default_generator.manual_seed(0)  # faster than torch.manual_seed, which seeds other devices
    if layer == "GINConv":
        conv = GINConv(nn.Linear(WIDTH, 8), **dict(options))
    else:
        classes = {cls.__name__: cls for cls in (*ATTENTION, *AGGREGATION, GCNConv)}
        conv = classes[layer](**dict(options))
    change_layer(conv, change)
    return fuse_(conv) if fused else conv


CHANGES = ("double", "half weights", "wide output", "fewer rows", "dropout 1", "dropout 2", "slope nan", "frozen")


def change_layer(conv: nn.Module, name: str) -> None:
    """Change parameters, or replace a linear map by one that returns another shape."""
    linear = next((module for module in conv.modules() if type(module).__name__ == "Linear"), None)
    match name:
        case "double":
            conv.double()
        case "half weights":
            conv.half()
        case "wide output" if linear is not None:
            linear.register_forward_hook(lambda _module, _inputs, out: torch.cat([out, out], dim=-1))
        case "fewer rows" if linear is not None:
            linear.register_forward_hook(lambda _module, _inputs, out: out[1:])
        case "dropout 1" if hasattr(conv, "dropout"):
            conv.dropout = 1.0
        case "dropout 2" if hasattr(conv, "dropout"):
            conv.dropout = 2.0
        case "slope nan" if hasattr(conv, "negative_slope"):
            conv.negative_slope = float("nan")
        case "frozen":
            conv.requires_grad_(False)


def outcome(conv: nn.Module, arguments: list[Any], inputs: list[Any]) -> Any:
    """Outputs, then gradients of parameters and inputs; or the error."""
    leaves = [part for part in inputs if isinstance(part, Tensor) and part.requires_grad]
    try:
        result = conv(*arguments)
        parts = [result[0], *result[1]] if isinstance(result, tuple) else [result]
        differentiable = [part for part in parts if isinstance(part, Tensor) and part.requires_grad]
        if not differentiable:
            return parts
        # Weights of the sum that differ between entries: a plain sum has no gradient with respect to attention scores.
        loss = sum((part * torch.linspace(1, 2, part.numel(), dtype=part.real.dtype).view(part.shape)).real.sum()
                   for part in differentiable)  # fmt: skip
        leaves += [parameter for parameter in conv.parameters() if parameter.requires_grad]
        return [*parts, *torch.autograd.grad(loss, leaves, allow_unused=True)]
    except Exception as error:
        return error


ERRORS = (RuntimeError, IndexError, ValueError, TypeError)  # those of torch; a call may be wrong in several ways


def check(call: Call) -> None:
    """Both layers raise, or both return the same."""
    result = call.run(fused=True)
    if call.may_crash_torch and isinstance(result, EquipoiseError):
        return  # without a call of PyG's layer
    expected = call.run(fused=False)
    if "Inference tensors" in str(expected):  # which autograd refuses to save, and most kernels do not need to
        if "Inference tensors" in str(result):
            return
        expected = without_inference(call).run(fused=False)
    if isinstance(expected, Exception):
        assert isinstance(result, Exception), f"PyG refuses ({expected!r}), the fused layer returns {result}"
        named = isinstance(result, (EquipoiseError, *ERRORS)) or type(result) is type(expected)
        assert named, f"PyG raises {expected!r}, the fused layer {result!r}"
        return
    if isinstance(result, EquipoiseError) and (call.edges.build().dim() != 2 or not normal(call) or out_of_range(call)):
        return  # PyG accepts some malformed calls by accident
    assert not isinstance(result, Exception), f"PyG accepts, the fused layer raises {result!r}"
    assert_equal(result, expected, call)


def without_inference(call: Call) -> Call:
    """The same call with tensors that autograd can save."""

    def plain(part: Features | None) -> Features | None:
        return replace(part, layout="plain", grad=False) if part is not None and part.layout == "inference" else part

    edges = replace(call.edges, form="plain") if call.edges.form == "inference" else call.edges
    return replace(call, edges=edges, x=tuple(map(plain, call.x)), edge_attr=plain(call.edge_attr))


def out_of_range(call: Call) -> bool:
    """Whether an index is that of no node, or may be."""
    return any(index not in range(TARGETS) for row in call.edges.rows for index in row)


def normal(call: Call) -> bool:
    """Whether all values are of ordinary size: otherwise the order of operations decides over NaN and infinity."""
    parts = [part for part in (*call.x, call.edge_attr) if part is not None]
    return all(part.values in ("normal", "zeros", "tiny") for part in parts)


TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
WEIGHT_DTYPES = {"double": torch.float64, "half weights": torch.float16}  # float32 without such a change


def tolerance(call: Call, dtype: torch.dtype) -> float:
    """Rounding of the least precise operand: a float64 output may be computed from a product in float32."""
    operands = [getattr(torch, part.dtype) for part in (*call.x, call.edge_attr) if part is not None]
    operands.append(WEIGHT_DTYPES.get(call.change, torch.float32))
    return max(TOLERANCES.get(kind, 2e-2) for kind in (dtype, *operands) if kind.is_floating_point or kind is dtype)


def assert_equal(results: list[Any], expected: list[Any], call: Call) -> None:
    """Compare outputs and gradients; of values that overflow, only those that are finite in both."""
    ordinary = normal(call)
    assert len(results) == len(expected)
    pairs = [pair for pair in zip(results, expected, strict=True) if isinstance(pair[1], Tensor)]
    assert all(mine is None for mine, theirs in zip(results, expected, strict=True) if theirs is None)
    dense = [(comparable(mine), comparable(theirs)) for mine, theirs in pairs]
    # Rounding is relative to the largest number: a gradient may be zero as the difference of large ones.
    finite = [abs(float(value)) for _, theirs in dense for value in theirs.flatten() if abs(value) < float("inf")]
    # So it is to huge inputs, which are factors of such differences.
    scale = max([1.0 if ordinary else HUGE, *finite])
    for mine, theirs in dense:
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        both = (
            torch.isfinite(mine) & torch.isfinite(theirs) if not ordinary else torch.ones_like(mine, dtype=torch.bool)
        )
        error = tolerance(call, theirs.dtype)
        torch.testing.assert_close(mine[both], theirs[both], rtol=error, atol=error * scale, equal_nan=True)


def comparable(tensor: Tensor) -> Tensor:
    """A dense tensor on the CPU; of zeros for one without values."""
    tensor = tensor.detach()
    if tensor.device.type == "meta":
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


FEATURES = features(
    (SOURCES, WIDTH),
    (SOURCES, WIDTH + 1),
    (0, WIDTH),
    (1, WIDTH),
    (2, SOURCES, WIDTH),
    (SOURCES,),
    (WIDTH, SOURCES),
    (SOURCES, 0),
    (),
)
TARGET_FEATURES = features(
    (TARGETS, WIDTH), (0, WIDTH), (2, TARGETS, WIDTH), (TARGETS,), (TARGETS, WIDTH + 1), sparse=False
)
SIZES = st.sampled_from(
    [None] * 12 + [(5, 4), (5, 5), (4, 5), (5,), (5, 4, 3), (5, None), ("5", 4), 5, (-5, 4), (2**40, 2**40), (5.0, 4.0)]
)
FILLS = st.sampled_from(["mean"] * 4 + ["max", 2.0, float("nan"), "nonsense", None])


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Calls of all layers."""
    layer = draw(st.sampled_from([cls.__name__ for cls in (*ATTENTION, *AGGREGATION, GCNConv)]))
    edges = draw(edge_indices())
    pair = layer != "GCNConv" and draw(st.integers(0, 2)) == 0
    source = draw(FEATURES)
    x: tuple[Features | None, ...] = (source,)
    if pair:
        target = draw(TARGET_FEATURES)
        others = [(source,), (source, target, target), (None, target), (source, None)]
        x = draw(st.sampled_from([(source, target)] * 12 + others))
    count = len(edges.rows[0])
    extra = None
    if layer in {"GATv2Conv", "GATConv", "TransformerConv"} and draw(st.booleans()):
        extra = draw(
            features((count, 2), (count,), (count, 1), (count + 1, 2), (1, 2), (0, 2), (count, 1, 2), (), sparse=False)
        )
    elif layer in {"GCNConv", "GraphConv"} and draw(st.booleans()):
        extra = draw(features((count,), (count, 1), (count + 1,), (1,), (), (1, count), (0,), (2, count), sparse=False))
    return Call(
        layer,
        draw(options(layer, pair)),
        x,
        edges,
        extra,
        size=draw(SIZES),
        attention=draw(st.sampled_from([None, None, True, False])),
        change=draw(st.sampled_from(["none"] * 16 + list(CHANGES))),
        repeat=draw(st.booleans()),
        training=draw(st.booleans()),
        threads=draw(st.sampled_from([1, 1, 1, 2])),
        pair=pair,
    )


@st.composite
def options(draw: st.DrawFn, layer: str, pair: bool) -> dict[str, Any]:
    """Arguments of the constructor of a layer."""
    loops, flag = draw(st.booleans()), draw(st.booleans())
    width = (WIDTH, WIDTH) if pair and draw(st.booleans()) else WIDTH
    channels = draw(st.sampled_from([8, 8, 8, 1, 2, 5, 0]))
    common: dict[str, Any] = {"in_channels": width, "out_channels": channels, "bias": draw(st.booleans())}
    attention = {
        **common,
        "heads": draw(st.sampled_from([1, 2, 2, 0])),
        "concat": draw(st.booleans()),
        "edge_dim": draw(st.sampled_from([2, 2, 1, None])),
    }
    aggr = {"aggr": draw(st.sampled_from(["add", "mean", "max", "add"]))}
    match layer:
        case "GATv2Conv" | "GATConv":
            shared = {"share_weights": flag} if layer == "GATv2Conv" else {}
            return (
                attention
                | shared
                | {"add_self_loops": loops, "fill_value": draw(FILLS), "residual": draw(st.booleans())}
            )
        case "TransformerConv":
            return attention | {"beta": flag, "root_weight": loops}
        case "GCNConv":
            extra = {"cached": draw(st.booleans()), "improved": flag, "normalize": loops}
            return common | extra | {"add_self_loops": loops and draw(st.booleans())}
        case "SAGEConv":
            return common | aggr | {"normalize": flag, "project": loops, "root_weight": draw(st.booleans())}
        case "GraphConv":
            return common | aggr
    return aggr | {"train_eps": flag, "eps": draw(st.sampled_from([0.0, -1.0, float("inf")]))}


LAYERS = Target("fused layers", calls(), check, count=30_000)

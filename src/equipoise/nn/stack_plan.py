"""Plan of a fused stack: views of its parameters and compiled kernels, made once and used by every pass."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.errors import GraphError
from equipoise.kernels.arguments import HeadShape
from equipoise.kernels.simd import padded_channels
from equipoise.nn.autograd import compile_attention_kernels
from equipoise.nn.kernel_arrays import Array, cached_blocks

if TYPE_CHECKING:
    from equipoise.nn.workspace import Workspace

MAX_SAVED_BYTES = 2**24  # larger products x Wᵀ are recomputed in the backward pass, cheap compared with its edges
MAX_POOLED_BYTES = 2**28  # larger workspaces are freed, not kept for the next pass


class StackGraph(Protocol):
    """A graph as a workspace sees it; :class:`CSRGraph` is one.

    On a part of a graph, rows of the halo follow those of the targets, so that there are more sources than targets.
    """

    @property
    def targets(self) -> int: ...
    @property
    def sources(self) -> int: ...
    @property
    def edges(self) -> int: ...


class LayerPlan(NamedTuple):
    """What stays the same between passes of one layer.

    Attributes:
        weight: the matrix, (width, inputs), a view of the parameter or, if it needs padding, a copy.
        transposed: its transpose, a contiguous copy.
        att: the attention vector, flat.
        width: heads · channels, padded.
        shape: heads and channels.
        slope: negative slope of the LeakyReLU.
        relu: whether a ReLU follows.
    """

    weight: Tensor
    transposed: Tensor
    att: Array
    width: int
    shape: HeadShape
    slope: Any
    relu: bool


class StackPlan:
    """The layers of a stack, with views of their parameters.

    Args:
        convs: GATv2 layers with shared weights, without bias.
        dtype: of the features.

    Raises:
        GraphError: the shape of a parameter does not match its layer or the layer before.
    """

    def __init__(self, convs: Sequence[Any], dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.parameters = _parameters(convs)
        _check_shapes(convs)
        self.storage = _storage(self.parameters)
        self.slopes = [conv.negative_slope for conv in convs]
        self.layers = [_plan_layer(conv, dtype, relu=conv is not convs[-1]) for conv in convs]
        self.max_width = max(layer.width for layer in self.layers)
        self.max_heads = max(layer.shape.heads for layer in self.layers)
        self._transposes = [(layer.transposed.numpy(), layer.weight.numpy().T) for layer in self.layers]
        self.pool: list[Workspace] = []

    def is_valid(self, convs: Sequence[Any], dtype: torch.dtype) -> bool:
        """Whether nothing has changed that the plan depends on: parameters, their storage, options."""
        parameters = _parameters(convs)
        return (
            self.dtype == dtype
            and len(parameters) == len(self.parameters)
            and all(map(is_, parameters, self.parameters))
            and _storage(parameters) == self.storage
            and self.slopes == [conv.__dict__["negative_slope"] for conv in convs]
        )

    def update_copies(self) -> None:
        """Copy the current weights where a layer does not use a view of them: padded channels, transposes."""
        layer, (weight, att) = self.layers[-1], self.parameters[-2:]
        if layer.weight.shape[0] != weight.shape[0]:
            layer.weight[: weight.shape[0]].copy_(weight.detach())
            layer.att[: att.shape[-1]] = att.detach().view(-1).numpy()
        for transposed, source in self._transposes:
            np.copyto(transposed, source)

    def take(self, graph: StackGraph, build: Callable[[], Workspace]) -> Workspace:
        """A workspace for one pass: from the pool, or new.

        Args:
            graph: the graph.
            build: makes a new one.

        Returns:
            The workspace.
        """
        threads = torch.get_num_threads()
        while self.pool:
            workspace = self.pool.pop()
            if workspace.graph is graph and workspace.threads == threads:
                return workspace
        return build()

    def saves_products(self, graph: StackGraph) -> bool:
        """Whether products of features and weights are small enough to be saved for the backward pass."""
        return graph.sources * self.max_width * self.dtype.itemsize <= MAX_SAVED_BYTES

    def is_poolable(self, graph: StackGraph) -> bool:
        """Whether a workspace is small enough to be kept for the next pass."""
        entries = 2 * graph.sources * self.max_width + graph.edges * self.max_heads
        return len(self.layers) * entries * self.dtype.itemsize <= MAX_POOLED_BYTES


_PLANS: weakref.WeakKeyDictionary[nn.Module, StackPlan] = weakref.WeakKeyDictionary()


def plan_for(convs: Sequence[Any], dtype: torch.dtype) -> StackPlan:
    """The plan of a stack, from the cache if nothing has changed since.

    Args:
        convs: the layers.
        dtype: of the features.

    Returns:
        The plan. One plan per stack is kept.
    """
    plan = _PLANS.get(convs[0])
    if plan is None or not plan.is_valid(convs, dtype):
        plan = _PLANS[convs[0]] = StackPlan(convs, dtype)
    return plan


def _check_shapes(convs: Sequence[Any]) -> None:
    """Check that the layers fit each other: kernels read weights without bounds checks."""
    inputs = convs[0].lin_l.weight.shape[1]
    for index, conv in enumerate(convs):
        outputs = conv.heads * conv.out_channels
        expected = {"lin_l.weight": (outputs, inputs), "att": (1, conv.heads, conv.out_channels)}
        for name, parameter in (("lin_l.weight", conv.lin_l.weight), ("att", conv.att)):
            if parameter.shape != expected[name]:
                raise GraphError(
                    f"{name} of layer {index} has shape {tuple(parameter.shape)}, expected {expected[name]}",
                    remedy="a layer takes as many features as the layer before it returns",
                )
        inputs = outputs


def _parameters(convs: Sequence[Any]) -> list[nn.Parameter]:
    """Weight and attention of every layer, alternately; without nn.Module.__getattr__, since every pass calls it."""
    return [p for conv in convs for p in (conv._modules["lin_l"]._parameters["weight"], conv._parameters["att"])]


def _storage(parameters: Sequence[nn.Parameter]) -> list[Any]:
    """Where the values of parameters are; views of them are valid while this stays the same."""
    return [*map(Tensor.data_ptr, parameters), *map(Tensor.size, parameters), *map(Tensor.stride, parameters)]


def _plan_layer(conv: Any, dtype: torch.dtype, relu: bool) -> LayerPlan:
    compile_attention_kernels("gatv2", dtype, conv.out_channels)
    channels = padded_channels(conv.out_channels)
    width = conv.heads * channels
    weight, att = conv.lin_l.weight.detach(), conv.att.detach().view(-1)
    if channels != conv.out_channels:  # only in the last layer, which has one head
        weight, att = weight.new_zeros(width, weight.shape[1]), att.new_zeros(width)
    slope = torch.empty(0, dtype=dtype).numpy().dtype.type(conv.negative_slope)
    shape = HeadShape(conv.heads, cached_blocks(channels, dtype))
    transposed = weight.new_empty(weight.shape[1], weight.shape[0])
    return LayerPlan(weight, transposed, att.numpy(), width, shape, slope, relu)

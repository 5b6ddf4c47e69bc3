"""Plans and preallocated arrays of a fused stack: made once per stack, graph and dtype, reused by every pass.

On a small graph, allocating arrays, converting tensors and looking up arguments takes longer than the computation. A
:class:`StackPlan` keeps views of the weights and everything else that stays the same between passes. A
:class:`Workspace` holds the arrays of one pass from its forward to its backward pass. It returns to the plan when
autograd frees the pass, so that the next pass can reuse it; two passes at a time get two workspaces.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.kernels import gatv2
from equipoise.kernels.csr import CSRGraph, reachable_sources
from equipoise.kernels.simd import Blocks, padded_channels
from equipoise.kernels.threads import node_ranges, run_kernel
from equipoise.nn.autograd import Array, cached_blocks, compile_kernels

MAX_SAVED_BYTES = 2**24  # larger products x Wᵀ are recomputed in the backward pass, cheap compared with its edges
MAX_POOLED_BYTES = 2**26  # larger workspaces are freed, not kept for the next pass
MAX_POOLED = 2  # the previous pass is often still alive during the next one


class LayerPlan(NamedTuple):
    """What stays the same between passes of one layer.

    Attributes:
        weight: the matrix, (width, inputs), a view of the parameter or, if it needs padding, a copy.
        transposed: its transpose.
        att: the attention vector, flat.
        width: heads · channels, padded.
        heads: number of attention heads.
        blocks: channels of a head as SIMD vectors.
        slope: negative slope of the LeakyReLU.
        relu: whether a ReLU follows.
    """

    weight: Tensor
    transposed: Tensor
    att: Array
    width: int
    heads: int
    blocks: Blocks
    slope: Any
    relu: bool


class StackPlan:
    """The layers of a stack on one graph, with views of their parameters.

    Args:
        convs: GATv2 layers with shared weights, without bias.
        graph: the graph.
        dtype: of the features.
    """

    def __init__(self, convs: Sequence[Any], graph: CSRGraph, dtype: torch.dtype) -> None:
        self.dtype, self.threads = dtype, torch.get_num_threads()
        self.parameters = _parameters(convs)
        self.storage = [parameter.data_ptr() for parameter in self.parameters]
        self.slopes = [conv.negative_slope for conv in convs]
        self.layers = [_plan_layer(conv, dtype, relu=conv is not convs[-1]) for conv in convs]
        self.pool: list[Workspace] = []
        self.graph = weakref.ref(graph, _clearing(self.pool))
        width, heads = max(layer.width for layer in self.layers), max(layer.heads for layer in self.layers)
        itemsize = torch.empty(0, dtype=dtype).element_size()
        self.max_width, self.max_heads = width, heads
        self.save_products = graph.nodes * width * itemsize <= MAX_SAVED_BYTES
        per_layer = 2 * graph.nodes * width + graph.edges * heads
        self.poolable = len(self.layers) * per_layer * itemsize <= MAX_POOLED_BYTES

    def is_valid(self, convs: Sequence[Any], graph: CSRGraph, dtype: torch.dtype) -> bool:
        """Whether nothing has changed that the plan depends on: graph, parameters and their storage, options."""
        parameters = _parameters(convs)
        return (
            self.graph() is graph
            and self.dtype == dtype
            and self.threads == torch.get_num_threads()
            and len(parameters) == len(self.parameters)
            and all(new is old for new, old in zip(parameters, self.parameters, strict=True))
            and all(p.data_ptr() == pointer for p, pointer in zip(parameters, self.storage, strict=True))
            and self.slopes == [conv.negative_slope for conv in convs]
        )

    def update_padding(self) -> None:
        """Copy the current weights of the last layer, if their channels are padded; other layers are views."""
        layer, (weight, att) = self.layers[-1], self.parameters[-2:]
        if layer.weight.shape[0] != weight.shape[0]:
            layer.weight[: weight.shape[0]].copy_(weight.detach())
            layer.att[: att.shape[-1]] = att.detach().view(-1).numpy()


class Workspace:
    """The arrays of one pass.

    Args:
        plan: the plan of the stack.
        graph: its graph.
        inference: no backward pass follows, so that layers share their arrays.
    """

    def __init__(self, plan: StackPlan, graph: CSRGraph, inference: bool = False) -> None:
        self.plan, self.graph, self.inference = plan, graph, inference
        like, depth = torch.empty(0, dtype=plan.dtype), len(plan.layers)
        products, outputs, alphas = (1, 2, 1) if inference else (depth if plan.save_products else 1, depth - 1, depth)
        self._products = [like.new_empty(graph.nodes * plan.max_width) for _ in range(products)]
        self._outputs = [like.new_empty(graph.nodes * plan.max_width) for _ in range(min(outputs, depth - 1))]
        self._alphas = [np.empty(graph.edges * plan.max_heads, like.numpy().dtype) for _ in range(alphas)]
        self.outputs: list[Tensor] = []
        self._no_mask = np.empty(0, like.numpy().dtype)
        self._scratch: tuple[Tensor, Tensor, Array, Array, Array] | None = None

    def product(self, index: int) -> Tensor:
        """The array for x Wᵀ of a layer, (nodes, width)."""
        return self._rows(self._products[index % len(self._products)], index)

    def alpha(self, index: int) -> Array:
        """The array for the attention coefficients of a layer, flat."""
        return self._alphas[index % len(self._alphas)][: self.graph.edges * self.plan.layers[index].heads]

    def _rows(self, array: Tensor, index: int) -> Tensor:
        """The beginning of an array as (nodes, width) of a layer."""
        width = self.plan.layers[index].width
        return array[: self.graph.nodes * width].view(self.graph.nodes, width)

    def attend(self, index: int) -> Tensor:
        """Apply attention, and the ReLU if there is one, to the product of a layer.

        Args:
            index: of the layer.

        Returns:
            (nodes, width). The last layer's is a new tensor, as it belongs to the caller.
        """
        graph, layer = self.graph, self.plan.layers[index]
        z, alpha = self.product(index).numpy().ravel(), self.alpha(index)
        last = index == len(self.plan.layers) - 1
        if last:
            out = torch.empty(graph.nodes, layer.width, dtype=self.plan.dtype)
        else:
            out = self._rows(self._outputs[index % len(self._outputs)], index)
        if index == 0:
            self.outputs = []
        self.outputs.append(out)
        arrays = (z, z, layer.att, layer.slope, self._no_mask, alpha, alpha, out.numpy().ravel())
        run_kernel(gatv2.forward, graph.ptr, graph.src, graph.order, *arrays, layer.relu, layer.heads, layer.blocks)
        return out

    def backward(self, index: int, grad: Tensor) -> tuple[Tensor, Array]:
        """Backward pass of attention.

        Args:
            index: of the layer.
            grad: gradient of its output; overwritten if a ReLU follows.

        Returns:
            Gradient of the product, valid until the next call, and gradient of the attention vector.
        """
        graph, layer = self.graph, self.plan.layers[index]
        dproduct, _, dscore_all, active_all, sums_all = self.scratch()
        dz_tensor = dproduct[: graph.nodes * layer.width].view(graph.nodes, layer.width)
        dz, dscore = dz_tensor.numpy().ravel(), dscore_all[: graph.edges * layer.heads]
        active, sums = active_all[: graph.nodes * layer.heads], sums_all[:, : layer.width]
        sums.fill(0)
        z, alpha, out = self.product(index).numpy().ravel(), self.alpha(index), self.outputs[index].numpy().ravel()
        g, mask, shape = grad.numpy().ravel(), self._no_mask, (layer.heads, layer.blocks)
        partial_sum = {lo: sums[i] for i, (lo, _) in enumerate(node_ranges(graph.ptr))}
        csr = (graph.ptr, graph.src, graph.order)
        if graph.symmetric:
            run_kernel(gatv2.backward_scores, *csr, z, mask, alpha, out, g, g, layer.relu, dscore, active, *shape)
            for_features = (z, layer.att, layer.slope, alpha, g, dscore, reachable_sources(graph, active), dz)
            kernel = _with_partial_sum(gatv2.backward_symmetric, partial_sum, shape)
            run_kernel(kernel, graph.ptr, graph.src, graph.position, graph.order, *for_features)
            return dz_tensor, _total(sums) / 2
        for_targets = (z, z, layer.att, layer.slope, mask, alpha, out, g, g, layer.relu, dscore, active, dz)
        run_kernel(_with_partial_sum(gatv2.backward_targets, partial_sum, shape), *csr, *for_targets)
        reachable = reachable_sources(graph, active)
        for_sources = (z, z, layer.att, layer.slope, alpha, g, dscore, active, reachable, dz, *shape)
        run_kernel(gatv2.backward_sources, graph.tptr, graph.dst, graph.position, graph.torder, *for_sources)
        return dz_tensor, _total(sums)

    def scratch(self) -> tuple[Tensor, Tensor, Array, Array, Array]:
        """Arrays that only the backward pass needs, shared by all layers and allocated by the first one."""
        if self._scratch is None:
            plan, graph = self.plan, self.graph
            size, ranges = graph.nodes * plan.max_width, len(node_ranges(graph.ptr))
            tensors = (torch.empty(size, dtype=plan.dtype), torch.empty(size, dtype=plan.dtype))
            dtype = self._no_mask.dtype
            dscore = np.empty(graph.edges * plan.max_heads, dtype)
            active = np.empty(graph.nodes * plan.max_heads, np.bool_)
            self._scratch = (*tensors, dscore, active, np.empty((ranges, plan.max_width), dtype))
        return self._scratch

    def gradient(self, width: int) -> Tensor:
        """The array for the gradient of a layer's input, (nodes, width)."""
        return self.scratch()[1][: self.graph.nodes * width].view(self.graph.nodes, width)


class Lease:
    """Returns a workspace to its plan when the pass that uses it is freed."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    def __del__(self) -> None:
        workspace = self.workspace
        if workspace.plan.poolable and not workspace.inference and len(workspace.plan.pool) < MAX_POOLED:
            workspace.outputs = []
            workspace.plan.pool.append(workspace)


_PLANS: weakref.WeakKeyDictionary[nn.Module, StackPlan] = weakref.WeakKeyDictionary()


def plan_for(convs: Sequence[Any], graph: CSRGraph, dtype: torch.dtype) -> StackPlan:
    """The plan of a stack on a graph, from the cache if nothing has changed since.

    Args:
        convs: the layers.
        graph: the graph.
        dtype: of the features.

    Returns:
        The plan. One plan per stack is kept.
    """
    plan = _PLANS.get(convs[0])
    if plan is None or not plan.is_valid(convs, graph, dtype):
        plan = _PLANS[convs[0]] = StackPlan(convs, graph, dtype)
    return plan


def lease_workspace(plan: StackPlan, graph: CSRGraph, *, inference: bool = False, reuse: bool = True) -> Lease:
    """A workspace for one pass: a pooled one, or a new one.

    Args:
        plan: the plan of the stack.
        graph: its graph.
        inference: no backward pass follows.
        reuse: take it from the pool if possible.

    Returns:
        The lease, to be kept alive until the backward pass is over.
    """
    pooled = reuse and not inference and plan.pool
    return Lease(plan.pool.pop() if pooled else Workspace(plan, graph, inference))


def _clearing(pool: list[Workspace]) -> Callable[[Any], None]:
    """A callback that empties the pool: workspaces have the size of a graph that no longer exists."""
    return lambda _: pool.clear()


def _parameters(convs: Sequence[Any]) -> list[nn.Parameter]:
    """Weight and attention of every layer, alternately; without nn.Module.__getattr__, since every pass calls it."""
    return [p for conv in convs for p in (conv._modules["lin_l"]._parameters["weight"], conv._parameters["att"])]


def _plan_layer(conv: Any, dtype: torch.dtype, relu: bool) -> LayerPlan:
    compile_kernels("gatv2", dtype, conv.out_channels)
    channels = padded_channels(conv.out_channels)
    width = conv.heads * channels
    weight, att = conv.lin_l.weight.detach(), conv.att.detach().view(-1)
    if channels != conv.out_channels:  # only in the last layer, which has one head
        weight, att = weight.new_zeros(width, weight.shape[1]), att.new_zeros(width)
    slope = torch.empty(0, dtype=dtype).numpy().dtype.type(conv.negative_slope)
    return LayerPlan(weight, weight.t(), att.numpy(), width, conv.heads, cached_blocks(channels, dtype), slope, relu)


def _with_partial_sum(kernel: Any, partial_sum: dict[int, Array], shape: tuple[int, Blocks]) -> Any:
    """The kernel with the partial sum of its range of nodes inserted before the shape."""
    return lambda lo, hi, *arguments: kernel(lo, hi, *arguments, partial_sum[lo], *shape)


def _total(sums: Array) -> Array:
    total: Array = sums[0].copy() if len(sums) == 1 else sums.sum(axis=0)
    return total

"""A stack of GATv2 layers with ReLUs as a single autograd function.

Kernels and matrix products are those of the single layers, in the same order, so the numbers are the same. But no
autograd nodes, module calls or cache lookups run between layers, the ReLU is part of the kernel before it, and arrays
come from a workspace (:mod:`equipoise.nn.workspace`) that later passes reuse.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch_geometric.nn.dense.linear import Linear

from equipoise.distributed.graph import DistributedGraph
from equipoise.kernels.csr import CSRGraph
from equipoise.kernels.simd import padded_channels
from equipoise.nn.arguments import parameter_reason
from equipoise.nn.dense_product import multiply
from equipoise.nn.dispatch import GRAPH_CACHE, fallback_reason, layer_reason
from equipoise.nn.fused_convs import FusedGATv2Conv, can_fuse_relu
from equipoise.nn.hooks import AttentionCoefficients, has_hooks, observers_of
from equipoise.nn.module_snapshot import ModuleSnapshot
from equipoise.nn.part_workspace import PartGraph, can_fuse_on_part, new_workspace, part_graph
from equipoise.nn.second_order import differentiable_gradients, gatv2_scores, softmax_and_sum
from equipoise.nn.sparse_linear import FeatureMatrix
from equipoise.nn.stack_plan import StackPlan, plan_for
from equipoise.nn.workspace import Lease, Workspace

# Called with the layer's index, its input (None for the stack's own), its output and its coefficients.
LayerCallback = Callable[[int, Tensor | None, Tensor, Tensor], None]


def can_fuse(convs: Sequence[Any], activation: nn.Module, x: Any, edge_index: Any) -> bool:
    """Whether a stack consists only of matrix products, GATv2 attention and ReLUs, and nothing intercepts its calls."""
    return (
        not torch.compiler.is_compiling()  # which fuses the layers' operators with what is between them
        and not has_hooks()
        and _layers_are_fusable(convs, activation)
        and not fallback_reason(convs[0], x, edge_index)
        and (not isinstance(edge_index, DistributedGraph) or can_fuse_on_part(convs, x, edge_index))
    )


# Options that the checks below read, by the names under which PyG stores them.
CHECKED_OPTIONS = (
    *("training", "heads", "out_channels", "negative_slope", "dropout", "concat", "share_weights", "add_self_loops"),
    *("flow", "node_dim", "_decomposed_layers", "_explain"),
)
_FUSABLE: weakref.WeakKeyDictionary[nn.Module, ModuleSnapshot] = weakref.WeakKeyDictionary()


def _layers_are_fusable(convs: Sequence[Any], activation: nn.Module) -> bool:
    """Whether all layers are; the answer is kept while no option, parameter or hook of a layer changes."""
    modules = [activation, *convs]
    for conv in convs:
        submodules = conv._modules
        modules += [submodules["lin_l"], submodules["aggr_module"]] if "lin_l" in submodules else []
    snapshot = _FUSABLE.get(convs[0])
    if snapshot is not None and snapshot.is_current(modules):
        return True
    fusable = (
        isinstance(activation, nn.ReLU)
        and all(_is_fusable(conv) and conv.add_self_loops == convs[0].add_self_loops for conv in convs)
        and all(padded_channels(conv.out_channels) == conv.out_channels for conv in convs[:-1])
        and convs[-1].heads == 1
        and not any(parameter_reason(conv) for conv in convs)
        and not has_hooks(*modules)
        and not any(layer_reason(conv) for conv in convs)
    )
    if fusable:
        _FUSABLE[convs[0]] = ModuleSnapshot(modules, CHECKED_OPTIONS)
    return fusable


def _is_fusable(conv: Any) -> bool:
    return (
        type(conv) is FusedGATv2Conv
        and type(conv.lin_l) is Linear
        and conv.share_weights
        and conv.lin_l.bias is None
        and can_fuse_relu(conv)
        and not (conv.training and conv.dropout)
    )


def fused_forward(convs: Sequence[Any], x: Tensor, edge_index: Tensor) -> Tensor:
    """Run layers with a ReLU between them as one autograd function, and call their observer hooks.

    Args:
        convs: layers for which :func:`can_fuse` holds.
        x: node features, dense or sparse.
        edge_index: the graph.

    Returns:
        Output of the last layer.
    """
    self_loops = convs[0].add_self_loops
    graph: CSRGraph | PartGraph
    if isinstance(edge_index, DistributedGraph):
        graph = part_graph(edge_index, self_loops)
    else:
        graph = GRAPH_CACHE.get(edge_index, x.shape[0], self_loops)
    plan = plan_for(convs, x.dtype)
    features = FeatureMatrix(x)
    observers = [observers_of(conv) for conv in convs] if any(conv._forward_hooks for conv in convs) else []

    def call_observers(layer: int, layer_input: Tensor | None, output: Tensor, alpha: Tensor) -> None:
        assert isinstance(graph, CSRGraph)  # a part with observers runs layer by layer
        conv = convs[layer]
        inputs = (x if layer_input is None else layer_input, edge_index)
        attention = AttentionCoefficients(graph, alpha.view(-1, conv.heads))
        for observer in observers[layer]:
            observer(conv, inputs, {"attention": attention}, output[:, : conv.heads * conv.out_channels])

    callback, dense = call_observers if any(observers) else None, x if features.dense else None
    out: Tensor = _FusedStack.apply(plan, graph, features, callback, dense, *plan.parameters)  # type: ignore[no-untyped-call]
    # The backward pass of a slice copies its gradient, even if the slice is the whole tensor.
    return out if out.shape[1] == convs[-1].out_channels else out[:, : convs[-1].out_channels]


class _FusedStack(Function):
    @staticmethod
    def forward(  # noqa: PLR0917 (autograd passes arguments by position)
        ctx: Any,
        plan: StackPlan,
        graph: CSRGraph | PartGraph,
        features: FeatureMatrix,
        callback: LayerCallback | None,
        x: Tensor | None,
        *weights: Tensor,
    ) -> Tensor:
        inference = callback is None and not any(ctx.needs_input_grad)
        lease = Lease(plan.take(graph, partial(new_workspace, plan, graph, inference)))
        plan.update_copies()
        out = _run_layers(plan, features, lease.workspace, callback)
        ctx.plan, ctx.features, ctx.lease, ctx.observed = plan, features, lease, callback is not None
        # Saving the features lets autograd notice that they were modified in place before the backward pass.
        ctx.save_for_backward(features.values if x is None else x, *weights)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        plan, features, workspace = ctx.plan, ctx.features, ctx.lease.workspace
        x, *weights = ctx.saved_tensors
        dense, needs_dx = features.dense, ctx.needs_input_grad[4]
        if torch.is_grad_enabled():  # create_graph=True
            forward = partial(_differentiable_forward, workspace.graph, features, plan.slopes)
            inputs = (x if dense else None, *weights)
            return None, None, None, None, *differentiable_gradients(forward, inputs, grad)
        if workspace.overwritten:  # by an earlier backward pass with retain_graph=True
            _run_layers(plan, features, workspace)
        arrays = workspace.begin_backward(overwrite=not ctx.observed)
        gradients: list[Tensor] = []
        for index in reversed(range(len(plan.layers))):
            if not workspace.save_products:
                workspace.project(index, features)
            dproduct = workspace.attend_backward(index, grad)
            if index:
                gradients.append(arrays.weight_gradients[index - 1]())
                arrays.input_gradients[index - 1]()
                grad = arrays.grads[index - 1]
            else:
                gradients.append(features.weight_gradient(dproduct))
                grad = multiply(dproduct, plan.layers[0].weight) if needs_dx else grad
        gradients.reverse()
        datt = arrays.attention_gradients(plan.layers, workspace.graph.symmetric)
        # Without padding, and with the strides of the parameter: DistributedDataParallel warns of others.
        att = weights[-1]
        gradients[-1], datt[-1] = gradients[-1][: len(weights[-2])], datt[-1].view(-1)[: att.numel()].view_as(att)
        parameter_gradients = [gradient for pair in zip(gradients, datt, strict=True) for gradient in pair]
        return None, None, None, None, grad if needs_dx else None, *parameter_gradients


def _run_layers(
    plan: StackPlan, features: FeatureMatrix, workspace: Workspace, callback: LayerCallback | None = None
) -> Tensor:
    h: Tensor | None = None
    for index in range(len(plan.layers)):
        workspace.project(index, features)
        layer_input, h = h, workspace.attend(index)
        if callback is not None:
            callback(index, layer_input, h, torch.from_numpy(workspace.alphas[index]))
    workspace.overwritten = False
    assert h is not None  # a stack has at least one layer
    return h


def _differentiable_forward(
    graph: CSRGraph | PartGraph, features: FeatureMatrix, slopes: Sequence[float], x: Tensor | None, *weights: Tensor
) -> Tensor:
    """The stack by operations of torch that can be differentiated twice, padded as the kernels' output is."""
    none, csr = weights[0].new_empty(0), graph.csr() if isinstance(graph, PartGraph) else graph
    h = x
    for layer, slope in enumerate(slopes):
        W, att = weights[2 * layer], weights[2 * layer + 1]
        h = features.linear(W) if h is None else h @ W.t()
        z = h.view(graph.targets, *att.shape[1:])
        source = graph.append_halo(z) if isinstance(graph, PartGraph) else z
        last = layer == len(slopes) - 1
        score = gatv2_scores(csr, source, z, att[0], slope)
        h = softmax_and_sum(csr, score, source, none, relu=not last)[0].flatten(1)
    assert h is not None
    return F.pad(h, (0, padded_channels(h.shape[1]) - h.shape[1]))

"""Preallocated arrays of a fused stack: made once, reused by every pass.

On a small graph, allocating arrays, converting tensors and typing the arguments of kernels takes longer than the
computation. A :class:`Workspace` holds the arrays of one pass over one graph, from its forward to its backward pass,
and kernel calls with their arguments in place. It returns to the stack's plan (:mod:`equipoise.nn.stack_plan`) when
autograd frees the pass, so that the next pass reuses it; two passes at a time get two workspaces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from equipoise.kernels import gatv2
from equipoise.kernels.arguments import Coefficients, GATv2Inputs, Output, ScoreGradients
from equipoise.kernels.csr import CSRGraph, mark_reachable
from equipoise.kernels.jit import entry_point
from equipoise.kernels.threads import Task, node_ranges
from equipoise.nn.dense_product import multiply_task, weight_gradient_task
from equipoise.nn.launch import GATv2Gradients, KernelCall, PartialSums, gatv2_backward_calls
from equipoise.nn.sparse_linear import FeatureMatrix
from equipoise.nn.stack_plan import LayerPlan, StackGraph, StackPlan

MAX_POOLED = 2  # the previous pass is often still alive during the next one


class Workspace:
    """Arrays and kernel calls of one pass.

    Args:
        plan: the plan of the stack.
        graph: the graph.
        inference: no backward pass follows, so that the layers of a large graph share their arrays.
    """

    graph: StackGraph
    can_overwrite = True  # outputs, in the backward pass

    def __init__(self, plan: StackPlan, graph: StackGraph, inference: bool) -> None:
        self.plan, self.graph, self.threads = plan, graph, torch.get_num_threads()
        depth, size = len(plan.layers), graph.sources * plan.max_width
        self.save_products, self.poolable = plan.saves_products(graph), plan.is_poolable(graph)
        share = inference and not self.poolable
        products = torch.empty(depth if self.save_products and not share else 1, size, dtype=plan.dtype)
        outputs = torch.empty(min(2, depth - 1) if share else depth - 1, size, dtype=plan.dtype)
        alphas = torch.empty(1 if share else depth, graph.edges * plan.max_heads, dtype=plan.dtype).numpy()
        layers = list(enumerate(plan.layers))
        self.products = [_rows(products[i % len(products)], graph.sources, layer.width) for i, layer in layers]
        self.alphas = [alphas[i % len(alphas)][: graph.edges * layer.shape.heads] for i, layer in layers]
        self.outputs = [_rows(outputs[i % len(outputs)], graph.targets, layer.width) for i, layer in layers[:-1]]
        # The last output belongs to the caller: a pass over a small graph copies it, others allocate it.
        self.last_output = torch.empty(graph.targets if self.poolable else 0, plan.layers[-1].width, dtype=plan.dtype)
        self.overwritten = False  # a backward pass has overwritten the outputs
        self.backward_arrays: BackwardArrays | None = None
        self._empty = np.empty(0, alphas.dtype)  # no dropout, no edge features
        bound = [*self.outputs, self.last_output] if self.poolable else self.outputs
        self._attend = [self._bind_forward(i, output) for i, output in enumerate(bound)]
        self._project = [
            multiply_task(h, layer.transposed, product[: graph.targets])
            for h, layer, product in zip(self.outputs, plan.layers[1:], self.products[1:], strict=True)
        ]

    def project(self, index: int, features: FeatureMatrix) -> None:
        """Write x Wᵀ, or h Wᵀ of the output h of the previous layer, to the product of a layer.

        Args:
            index: of the layer.
            features: x.
        """
        if index:
            self._project[index - 1]()
        else:
            layer, own = self.plan.layers[0], self.products[0][: self.graph.targets]
            features.product(layer.weight, transposed=layer.transposed, out=own)

    def attend(self, index: int) -> Tensor:
        """Apply attention, and the ReLU if there is one, to the product of a layer.

        Args:
            index: of the layer.

        Returns:
            (nodes, width).
        """
        if index < len(self._attend):
            self._attend[index]()
            return self.outputs[index] if index < len(self.outputs) else self.last_output.clone()
        output = torch.empty(self.graph.targets, self.plan.layers[index].width, dtype=self.plan.dtype)
        self._bind_forward(index, output)()
        # Not the output itself: autograd makes it refer to the pass, and the cycle would keep the workspace alive.
        self.last_output = output.detach()
        return output

    def attend_backward(self, index: int, grad: Tensor) -> Tensor:
        """Backward pass of attention; adds the gradient of the attention vector to ``backward_arrays.datt[index]``.

        Args:
            index: of the layer.
            grad: gradient of its output; overwritten if a ReLU follows.

        Returns:
            Gradient of the product, valid until the next call.
        """
        arrays = self.backward_arrays
        assert arrays is not None
        if index == len(self.outputs) and self.poolable:
            arrays.grads[index][: self.graph.targets].copy_(grad)
        # Otherwise the gradient of a bound call is in `arrays.grads` already.
        bound = index < len(arrays.calls)
        for call in arrays.calls[index] if bound else self._bind_backward(arrays, index, grad):
            call()
        return arrays.dproducts[index][: self.graph.targets]

    def begin_backward(self, overwrite: bool) -> BackwardArrays:
        """Arrays of the backward pass, allocated by the first one, with the sums set to zero.

        Args:
            overwrite: put the gradient of each product into the place of the layer's output, which nothing reads
                afterwards. This saves memory on large graphs; a small workspace keeps the outputs in any case.

        Returns:
            The arrays.
        """
        targets, rows = self.graph.targets, self.graph.sources
        self.overwritten = overwrite and self.can_overwrite and not self.poolable
        if self.backward_arrays is None:
            self.backward_arrays = arrays = self._allocate_backward(self.outputs if self.overwritten else [])
            if self.poolable:
                arrays.grads.append(torch.empty(rows, self.last_output.shape[1], dtype=self.plan.dtype))
            arrays.calls = [self._bind_backward(arrays, i, grad) for i, grad in enumerate(arrays.grads)]
            nonzero = arrays.reachable[:targets]
            for h, layer, dz, grad in zip(
                self.outputs, self.plan.layers[1:], arrays.dproducts[1:], arrays.grads, strict=False
            ):
                arrays.weight_gradients.append(weight_gradient_task(dz[:targets], h, nonzero))
                arrays.input_gradients.append(multiply_task(dz[:targets], layer.weight, grad[:targets], nonzero))
        self.backward_arrays.datt.fill(0)
        return self.backward_arrays

    def _allocate_backward(self, outputs: Sequence[Tensor]) -> BackwardArrays:
        assert isinstance(self.graph, CSRGraph)
        return BackwardArrays(self.plan, self.graph, outputs, self.graph.edges, len(node_ranges(self.graph.ptr)))

    def _bind_forward(self, index: int, output: Tensor) -> Task:
        assert isinstance(self.graph, CSRGraph)
        layer = self.plan.layers[index]
        arguments = (self._inputs(index), self._coefficients(index), output.numpy().ravel(), layer.relu, layer.shape)
        return _bind(KernelCall(gatv2.forward, (self.graph.by_target, *arguments)))

    def _bind_backward(self, arrays: BackwardArrays, index: int, grad: Tensor) -> list[Task]:
        graph, layer, inputs = self.graph, self.plan.layers[index], self._inputs(index)
        assert isinstance(graph, CSRGraph)
        out = (self.outputs[index] if index < len(self.outputs) else self.last_output).numpy().ravel()
        g, dz = grad.numpy().ravel(), arrays.dproducts[index].numpy().ravel()
        dscore = arrays.dscore[: graph.edges * layer.shape.heads]
        active = arrays.active[: graph.targets * layer.shape.heads]
        gradients = GATv2Gradients(
            Output(out, g, g, layer.relu),
            ScoreGradients(dscore, active),
            arrays.reachable,
            dz,
            dz,
            PartialSums(graph, inputs.att, arrays.datt[index, :, : layer.width]),
        )
        first, second = gatv2_backward_calls(graph, inputs, self._coefficients(index), gradients, layer.shape)
        mark = partial(mark_reachable, graph.ptr, graph.src, active, arrays.reachable)
        return [_bind(first), mark, _bind(second)]

    def _inputs(self, index: int) -> GATv2Inputs:
        z, layer = self.products[index].numpy().ravel(), self.plan.layers[index]
        return GATv2Inputs(z, z, self._empty, layer.att, layer.slope)

    def _coefficients(self, index: int) -> Coefficients:
        return Coefficients(self.alphas[index], self.alphas[index], self._empty)


class BackwardArrays:
    """Arrays that only the backward pass needs; all layers share them, except the sums.

    Args:
        plan: the plan of the stack.
        graph: the graph.
        outputs: arrays of hidden layers that the gradients of their products may overwrite; empty for new arrays.
        scores: number of gradients of scores per head.
        ranges: number of ranges of nodes with a partial sum each.

    Attributes:
        dproducts: gradient of the product of each layer, (sources, width).
        grads: gradient of the output of each hidden layer, (sources, width); on small graphs also of the last.
        datt: gradient of the attention vectors, (layers, ranges of nodes, width).
        dscore: gradient of the scores.
        active: which nodes and heads have a gradient.
        reachable: which nodes receive one.
        calls: kernel calls of each hidden layer.
        weight_gradients: functions that return the gradient of the weights of each layer but the first.
        input_gradients: functions that write the gradient of its input to ``grads``.
    """

    def __init__(self, plan: StackPlan, graph: StackGraph, outputs: Sequence[Tensor], scores: int, ranges: int) -> None:
        widths, rows = [layer.width for layer in plan.layers], graph.sources
        grad = torch.empty(rows * max(widths[:-1], default=0), dtype=plan.dtype)
        dproduct = torch.empty(rows * max(widths[len(outputs) :]), dtype=plan.dtype)
        self.dproducts = [*outputs, *(_rows(dproduct, rows, width) for width in widths[len(outputs) :])]
        self.grads = [_rows(grad, rows, width) for width in widths[:-1]]
        dtype = dproduct.numpy().dtype
        self.datt = np.empty((len(widths), ranges, plan.max_width), dtype)
        self.dscore = np.empty(scores * plan.max_heads, dtype)
        self.active = np.empty(graph.targets * plan.max_heads, np.bool_)
        self.reachable = np.empty(rows, np.bool_)
        self.calls: list[list[Task]] = []
        self.weight_gradients: list[Callable[[], Tensor]] = []
        self.input_gradients: list[Callable[[], object]] = []

    def attention_gradients(self, layers: Sequence[LayerPlan], symmetric: bool) -> list[Tensor]:
        """Gradients of all attention vectors in new memory, (1, heads, channels) each, padded."""
        total = self.datt[:, 0].copy() if self.datt.shape[1] == 1 else self.datt.sum(axis=1)
        if symmetric:
            total /= 2  # the kernel visits every edge from both ends
        rows = torch.from_numpy(total).unbind()
        return [row[: layer.width].view(1, layer.shape.heads, -1) for row, layer in zip(rows, layers, strict=True)]


class Lease:
    """Returns a workspace to its plan when the pass that uses it is freed.

    Args:
        workspace: the workspace.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    def __del__(self) -> None:
        pool = self.workspace.plan.pool
        if self.workspace.poolable and len(pool) < MAX_POOLED:
            pool.append(self.workspace)


def _rows(flat: Tensor, nodes: int, width: int) -> Tensor:
    """The beginning of an array as (nodes, width)."""
    return flat[: nodes * width].view(nodes, width)


def _bind(call: KernelCall) -> Task:
    """A function that runs a kernel call; over a single range of nodes, without typing its arguments again."""
    ranges = node_ranges(call.arguments[0].ptr)
    if len(ranges) > 1:
        return call.run
    arguments = call.arguments if call.sums is None else call.sums.insert(0, call.arguments)
    return partial(entry_point(call.kernel, *ranges[0], *arguments), *ranges[0], *arguments)

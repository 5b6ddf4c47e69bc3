"""PyG's TransformerConv on fused kernels: dot-product attention over neighbours."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch_geometric.nn import TransformerConv

from equipoise.distributed.graph import DistributedGraph
from equipoise.kernels import edge_attention, transformer
from equipoise.kernels.arguments import Coefficients, HeadShape, TransformerInputs
from equipoise.kernels.csr import CSRGraph, build_graph
from equipoise.kernels.jit import compilation_notice
from equipoise.kernels.simd import padded_channels
from equipoise.kernels.threads import run_kernel
from equipoise.nn.attention import check_shape, dropout_mask
from equipoise.nn.dispatch import call_pyg, fallback_reason
from equipoise.nn.edge_order import GraphEdges
from equipoise.nn.kernel_arrays import Array, flat_arrays, head_shape, pad_channels, promote
from equipoise.nn.launch import AttentionOutput, OutputGradients, attention_forward, score_gradients
from equipoise.nn.second_order import differentiable_gradients, softmax_and_sum, transformer_scores
from equipoise.nn.sparse_linear import linear


class FusedTransformerConv(TransformerConv):  # type: ignore[misc]  # PyG is untyped
    r"""Graph transformer layer of `"Masked Label Prediction" <https://arxiv.org/abs/2009.03509>`_:

    .. math::
        h'_v = W_1 h_v + \sum_u \alpha_{uv} W_2 h_u, \qquad
        \alpha_{uv} = \mathrm{softmax}_u\, \frac{(W_3 h_v)^\top W_4 h_u}{\sqrt{F_{out}}}

    One kernel computes scores, softmax and sum of a node. Nothing of size edges × channels is allocated or saved for
    the backward pass. A call that the kernels do not support falls back on PyG's implementation: edge features, a
    sparse adjacency matrix, another device or dtype (see :func:`equipoise.nn.dispatch.fallback_reason`).

    Args:
        in_channels (int or tuple): Size of each input sample; a tuple for bipartite input.
        out_channels (int): Size of each output sample, per head.
        heads (int, optional): Number of attention heads. (default: ``1``)
        concat (bool, optional): Concatenate heads; otherwise average them. (default: ``True``)
        beta (bool, optional): Combine :math:`W_1 h_v` and the sum by a learned gate. (default: ``False``)
        dropout (float, optional): Dropout probability of the attention coefficients. (default: ``0``)
        edge_dim (int, optional): Size of edge features. (default: ``None``)
        bias (bool, optional): Learn additive biases. (default: ``True``)
        root_weight (bool, optional): Add the term :math:`W_1 h_v`. (default: ``True``)
        **kwargs (optional): Arguments of :class:`torch_geometric.nn.MessagePassing`.

    Shapes:
        - **input:** node features :math:`(|V|, F_{in})`, dense or sparse, or a pair
          :math:`((|V_s|, F_s), (|V_t|, F_t))` if bipartite; edge indices :math:`(2, |E|)`; edge features
          :math:`(|E|, D)` *(optional)*
        - **output:** :math:`(|V_t|, H \cdot F_{out})`, or :math:`(|V_t|, F_{out})` if heads are averaged; with
          ``return_attention_weights=True`` also edge indices and coefficients :math:`(|E|, H)`

    Example:
        >>> conv = FusedTransformerConv(8, 16, heads=4)
        >>> conv(torch.randn(3, 8), torch.tensor([[0, 1], [1, 2]])).shape
        torch.Size([3, 64])
    """

    def forward(
        self, x: Any, edge_index: Any, edge_attr: Tensor | None = None, return_attention_weights: bool | None = None
    ) -> Any:
        """Run the layer; arguments are those of :class:`torch_geometric.nn.TransformerConv`.

        Args:
            x: node features, or a pair of those of sources and targets.
            edge_index: the graph.
            edge_attr: edge features.
            return_attention_weights: return the coefficients before dropout as well, if it is True or False.

        Returns:
            The new node features; with ``return_attention_weights`` also edges and coefficients, as in PyG.
        """
        reason = fallback_reason(self, x, edge_index, edge_attr=edge_attr)
        if reason:
            return call_pyg(self, reason, super().forward, x, edge_index, edge_attr, return_attention_weights)
        source, target = (x, x) if isinstance(x, Tensor) else x
        query, key, value = (
            linear(lin, features).view(-1, self.heads, self.out_channels)
            for lin, features in ((self.lin_query, target), (self.lin_key, source), (self.lin_value, source))
        )
        if isinstance(edge_index, DistributedGraph):
            key, value = edge_index.append_halo(torch.stack([key, value], dim=1)).unbind(1)  # one exchange for both
        edges = GraphEdges(self, edge_index, key.size(0), query.size(0))
        graph = cast(CSRGraph, edges.graph)  # traced calls are not fused
        out, alpha = transformer_attention(graph, query, key, value, self.dropout if self.training else 0.0)
        out = out.flatten(1) if self.concat else out.mean(dim=1)
        if self.root_weight:
            out = _add_root(self, out, linear(self.lin_skip, target))
        return (out, edges.attention_weights(alpha)) if isinstance(return_attention_weights, bool) else out


def _add_root(conv: Any, out: Tensor, root: Tensor) -> Tensor:
    """Add the projected features of the targets, or combine them by the gate, as PyG does."""
    if conv.lin_beta is None:
        return out + root
    beta: Tensor = conv.lin_beta(torch.cat([out, root, out - root], dim=-1)).sigmoid()
    return beta * root + (1 - beta) * out


def transformer_attention(
    graph: CSRGraph, query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Dot-product attention, Σ_u α_uv value[u] with α_uv = softmax_u ⟨query[v], key[u]⟩ / √channels.

    Args:
        graph: the graph.
        query: (targets, heads, channels).
        key: (sources, heads, channels).
        value: (sources, heads, channels).
        dropout: probability with which coefficients are dropped.

    Returns:
        The sums (targets, heads, channels), and the coefficients before dropout (edges, heads) in the order by target.

    Raises:
        GraphError: the shapes do not match each other or the graph.
    """
    row = query.shape[1:]
    for name, tensor, nodes in (
        ("query", query, graph.targets),
        ("key", key, graph.sources),
        ("value", value, graph.sources),
    ):
        check_shape(name, tensor, (nodes, *row), f"lin_{name}")
    query, key, value = promote(query, key, value)
    _compile_kernels(query.dtype, padded_channels(row[-1]))
    padded = [pad_channels(features) for features in (query, key, value)]
    mask = dropout_mask(graph, query, dropout)
    out, alpha = _DotProductAttention.apply(graph, *padded, row[-1] ** -0.5, mask)  # type: ignore[no-untyped-call]
    return out[..., : row[-1]], alpha


@cache
def _compile_kernels(dtype: torch.dtype, channels: int) -> None:
    """Compile the kernels, or load them from Numba's disk cache."""
    with compilation_notice(), torch.inference_mode(False), torch.enable_grad():
        graph = build_graph(torch.zeros(2, 1, dtype=torch.long), nodes=1, self_loops=False)
        x = torch.ones(1, 1, channels, dtype=dtype, requires_grad=True)
        out, _ = _DotProductAttention.apply(graph, x, x, x, 1.0, x.new_empty(0))  # type: ignore[no-untyped-call]
        torch.autograd.grad(out.sum(), x)


class _DotProductAttention(Function):
    @staticmethod
    def forward(
        ctx: Any, graph: CSRGraph, query: Tensor, key: Tensor, value: Tensor, scale: float, dropout_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        q, k, v, mask = flat_arrays(query, key, value, dropout_mask)
        inputs = TransformerInputs(q, k, v, q.dtype.type(scale))
        output = attention_forward(transformer.forward, graph, inputs, mask, False, head_shape(query))
        out = torch.from_numpy(output.out).view(query.shape)
        alpha = torch.from_numpy(output.coefficients.alpha).view(graph.edges, query.shape[1])
        weight = torch.from_numpy(output.coefficients.weight) if dropout_mask.numel() else alpha
        ctx.graph, ctx.scale = graph, scale
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(query, key, value, dropout_mask, out, alpha, weight)
        return out, alpha

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, dalpha: Tensor | None) -> tuple[Any, ...]:
        tensors = ctx.saved_tensors  # once: torch.utils.checkpoint recomputes them
        graph, features, dropout_mask = ctx.graph, tensors[:3], tensors[3]
        if torch.is_grad_enabled():  # create_graph=True

            def forward(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
                score = transformer_scores(graph, query, key, ctx.scale)
                _, alpha = softmax_and_sum(graph, score, value, score.new_empty(0), relu=False)
                return softmax_and_sum(graph, score, value, dropout_mask, relu=False)[0], alpha

            return None, *differentiable_gradients(forward, features, grad, dalpha), None, None
        q, k, v, mask, out, alpha, weight = flat_arrays(*tensors)
        inputs = TransformerInputs(q, k, v, q.dtype.type(ctx.scale))
        output = AttentionOutput(out, Coefficients(alpha, weight, mask))
        dout = np.zeros_like(out) if grad is None else flat_arrays(grad)[0]
        grads = OutputGradients(dout, None if dalpha is None else flat_arrays(dalpha)[0])
        arrays = _backward(graph, inputs, output, grads, head_shape(features[0]))
        dq, dk, dv = (torch.from_numpy(array).view(like.shape) for array, like in zip(arrays, features, strict=True))
        return None, dq, dk, dv if grad is not None else None, None, None  # coefficients do not depend on values


def _backward(
    graph: CSRGraph, inputs: TransformerInputs, output: AttentionOutput, grads: OutputGradients, shape: HeadShape
) -> tuple[Array, Array, Array]:
    """Gradients of queries, keys and values; ``grads.weight`` is the gradient of the coefficients before dropout."""
    dquery, dkey, dvalue = np.empty_like(inputs.query), np.empty_like(inputs.key), np.empty_like(inputs.value)
    scores, dout = score_gradients(graph, inputs.value, output, False, OutputGradients(grads.out, None), shape)
    if grads.weight is not None:
        before_dropout = Coefficients(output.coefficients.alpha, output.coefficients.alpha, np.empty(0, dout.dtype))
        add = edge_attention.add_coefficient_gradients
        run_kernel(add, graph.by_target, before_dropout, grads.weight, scores, shape)
    run_kernel(transformer.backward_targets, graph.by_target, inputs, scores, dquery, shape)
    for_sources = (inputs, output.coefficients.weight, dout, scores, dkey, dvalue, shape)
    run_kernel(transformer.backward_sources, graph.by_source, *for_sources)
    return dquery, dkey, dvalue

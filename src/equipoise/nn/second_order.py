"""Second derivatives: the kernels' functions by operations of torch that can be differentiated any number of times."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.utils import softmax

from equipoise.kernels.csr import CSRGraph


def differentiable_gradients(
    function: Callable[..., Tensor | tuple[Tensor, ...]],
    inputs: Sequence[Tensor | None],
    *grads: Tensor | None,
) -> list[Tensor | None]:
    """Gradients that are themselves differentiable, for backward passes with ``create_graph=True``.

    Args:
        function: computes one or several outputs from the inputs by operations of torch that can be differentiated
            twice.
        inputs: its arguments.
        grads: gradient of each output; None for an output without gradient.

    Returns:
        One gradient per input; None for None and for inputs that require no gradient.
    """
    # Aliases: an input may depend on another one, and its gradient must not count twice.
    aliases = [None if tensor is None else tensor.view_as(tensor) for tensor in inputs]
    variables = [alias for alias in aliases if alias is not None and alias.requires_grad]
    result = function(*aliases)
    outputs = (result,) if isinstance(result, Tensor) else result
    # Without a path to any variable, as for the coefficients of nodes with a single edge, an output cannot be passed.
    used = [(out, grad) for out, grad in zip(outputs, grads, strict=True) if grad is not None and out.requires_grad]
    if not used:
        return [None] * len(aliases)
    outputs, cotangents = zip(*used, strict=True)
    found = iter(torch.autograd.grad(outputs, variables, cotangents, create_graph=True, allow_unused=True))
    return [next(found) if alias is not None and alias.requires_grad else None for alias in aliases]


def softmax_and_sum(
    graph: CSRGraph, score: Tensor, z: Tensor, dropout_mask: Tensor, relu: bool
) -> tuple[Tensor, Tensor]:
    """What the attention kernels compute from scores, by operations of torch that can be differentiated twice.

    Args:
        graph: the graph.
        score: (edges, heads), in the order by target.
        z: (sources, heads, channels).
        dropout_mask: (edges, heads); empty without dropout.
        relu: apply a ReLU.

    Returns:
        Weighted sums (targets, heads, channels), and coefficients after dropout (edges, heads).
    """
    src, dst = edge_ends(graph)
    alpha: Tensor = softmax(score, dst, num_nodes=graph.targets)
    if len(dropout_mask):
        alpha = alpha * dropout_mask
    messages = alpha[..., None] * z.index_select(0, src)
    out = z.new_zeros(graph.targets, *z.shape[1:]).index_add(0, dst, messages)
    return out.relu() if relu else out, alpha


def gatv2_scores(
    graph: CSRGraph, source: Tensor, target: Tensor, att: Tensor, slope: float, *, edge: Tensor | None = None
) -> Tensor:
    """GATv2's attention scores (edges, heads), by operations of torch."""
    src, dst = edge_ends(graph)
    hidden = source.index_select(0, src) + target.index_select(0, dst)
    return (att * F.leaky_relu(hidden if edge is None else hidden + edge, slope)).sum(dim=-1)


def gat_scores(graph: CSRGraph, p: Tensor, q: Tensor, slope: float, *, edge: Tensor | None = None) -> Tensor:
    """GAT's attention scores (edges, heads), by operations of torch."""
    src, dst = edge_ends(graph)
    score = p.index_select(0, src) + q.index_select(0, dst)
    return F.leaky_relu(score if edge is None else score + edge, slope)


def transformer_scores(graph: CSRGraph, query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Scores (edges, heads) of dot-product attention, by operations of torch."""
    src, dst = edge_ends(graph)
    return scale * (query.index_select(0, dst) * key.index_select(0, src)).sum(dim=-1)


def edge_ends(graph: CSRGraph) -> tuple[Tensor, Tensor]:
    """Source and target of every edge, in the order by target."""
    degree = torch.from_numpy(graph.ptr).diff()
    return torch.from_numpy(graph.src).long(), torch.arange(graph.targets).repeat_interleave(degree)

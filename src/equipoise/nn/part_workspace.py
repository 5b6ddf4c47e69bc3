"""Workspace of a fused stack on a part of a graph: the kernel calls of each layer, with the exchange between them.

Kernels and their order are those of :mod:`equipoise.nn.distributed_gatv2`, which runs layer by layer: inner nodes are
computed while boundary rows arrive, and gradients of own nodes while those of the halo are returned. Here arrays and
arguments are in place from the first pass on. On a graph of the size of Pubmed, that saves a fifth of an epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from equipoise.distributed.exchange import Exchange, let_transfers_run
from equipoise.distributed.graph import DistributedGraph
from equipoise.distributed.overlap import Overlap
from equipoise.kernels import gatv2
from equipoise.kernels.arguments import Output, ScoreGradients
from equipoise.kernels.csr import CSRGraph, mark_reachable
from equipoise.kernels.jit import entry_point
from equipoise.kernels.threads import Range, Task, run_ranges
from equipoise.nn.kernel_arrays import Array
from equipoise.nn.stack_plan import StackPlan, plan_for
from equipoise.nn.workspace import BackwardArrays, Workspace


@dataclass(frozen=True, eq=False)
class PartGraph:
    """A part of a graph, whose edges between own nodes are symmetric, as a workspace sees it.

    Attributes:
        distributed: the distributed graph.
        self_loops: whether every own node has exactly one self-loop.
        overlap: the order of work.
        symmetric: as of :class:`~equipoise.kernels.csr.CSRGraph`.
    """

    distributed: DistributedGraph
    self_loops: bool
    overlap: Overlap
    symmetric: bool = True

    @property
    def exchange(self) -> Exchange:
        """What the rank sends and receives."""
        return self.distributed.exchange

    @property
    def targets(self) -> int:
        """Number of own nodes."""
        return self.overlap.num_own

    @property
    def sources(self) -> int:
        """Number of own nodes and halo nodes."""
        return self.overlap.num_sources

    @property
    def edges(self) -> int:
        """Number of edges into own nodes, and one more: the reverse of edges from the halo, of coefficient zero."""
        return self.overlap.num_edges + 1

    @property
    def scores(self) -> int:
        """Number of gradients of scores per head: one per neighbour of own and halo nodes, and that of the reverse."""
        return int(self.overlap.by_source.ptr[-1]) + 1

    def csr(self) -> CSRGraph:
        """The sorted graph from own nodes and halo to own nodes."""
        return self.distributed.csr(self.self_loops)

    def append_halo(self, rows: Tensor) -> Tensor:
        """Rows of all sources, differentiable; see :meth:`DistributedGraph.append_halo`."""
        return self.distributed.append_halo(rows)


def part_graph(graph: DistributedGraph, self_loops: bool) -> PartGraph:
    """The graph of a rank as a workspace sees it; made once."""
    part: PartGraph = graph.cached(
        ("stack", self_loops), lambda: PartGraph(graph, self_loops, graph.overlap(self_loops))
    )
    return part


def can_fuse_on_part(convs: Sequence[Any], x: Tensor, graph: DistributedGraph) -> bool:
    """Whether a stack that is fused on a whole graph is on this part, too.

    Large parts run layer by layer, which takes less memory. Ranks need not decide alike: both ways exchange the same
    rows in the same order.

    Args:
        convs: layers that can be fused.
        x: features of own nodes.
        graph: the distributed graph.

    Returns:
        Whether edges are symmetric, the arrays are small, and nobody observes the layers.
    """
    if any(conv._forward_hooks for conv in convs) or not graph.overlap(convs[0].add_self_loops).symmetric:
        return False
    plan, part = plan_for(convs, x.dtype), part_graph(graph, convs[0].add_self_loops)
    return plan.saves_products(part) and plan.is_poolable(part)


class PartWorkspace(Workspace):
    """Arrays and kernel calls of one pass over a part; see :class:`~equipoise.nn.workspace.Workspace`.

    Args:
        plan: the plan of the stack.
        graph: the part, for which :func:`can_fuse_on_part` holds.
        inference: no backward pass follows.
    """

    graph: PartGraph
    # A rank that computes overwritten outputs again would exchange rows that the others do not expect.
    can_overwrite = False

    def __init__(self, plan: StackPlan, graph: PartGraph, inference: bool) -> None:
        super().__init__(plan, graph, inference)
        for alpha, layer in zip(self.alphas, plan.layers, strict=True):
            alpha[-layer.shape.heads :] = 0  # of the reverse of edges from the halo

    def _allocate_backward(self, outputs: Sequence[Tensor]) -> BackwardArrays:
        overlap = self.graph.overlap
        ranges = len(overlap.own) + len(overlap.halo)
        return BackwardArrays(self.plan, self.graph, outputs, self.graph.scores, ranges)

    def _bind_forward(self, index: int, output: Tensor) -> Task:
        overlap, exchange, layer = self.graph.overlap, self.graph.exchange, self.plan.layers[index]
        own, halo = self.products[index].tensor_split([overlap.num_own])
        results = (self._coefficients(index), output.numpy().ravel(), layer.relu, layer.shape)
        inner, boundary = (
            _bind(gatv2.forward, ranges, overlap.by_target, self._inputs(index), *results)
            for ranges in (overlap.inner, overlap.boundary)
        )

        def attend() -> None:
            pending = exchange.start_forward(own, halo)
            let_transfers_run()
            inner()
            pending.wait()
            boundary()

        return attend

    def _bind_backward(self, arrays: BackwardArrays, index: int, grad: Tensor) -> list[Task]:
        overlap, exchange, layer = self.graph.overlap, self.graph.exchange, self.plan.layers[index]
        inputs, heads, num_own = self._inputs(index), layer.shape.heads, overlap.num_own
        out = (self.outputs[index] if index < len(self.outputs) else self.last_output).numpy().ravel()
        g, dz, reachable = grad.numpy().ravel(), arrays.dproducts[index].numpy().ravel(), arrays.reachable
        scores = ScoreGradients(arrays.dscore[: self.graph.scores * heads], arrays.active[: num_own * heads])
        targets = _bind(
            gatv2.backward_scores,
            [*overlap.inner, *overlap.boundary],
            *(overlap.by_target, inputs.source, self._coefficients(index), Output(out, g, g, layer.relu)),
            *(scores, layer.shape),
        )
        features = (overlap.by_source, inputs, self.alphas[index], g, scores.dscore, reachable, dz, layer.shape)
        sums = arrays.datt[index, :, : layer.width]
        own = _bind(gatv2.backward_symmetric, overlap.own, *features, sums=sums[: len(overlap.own)])
        halo = _bind(gatv2.backward_symmetric, overlap.halo, *features, sums=sums[len(overlap.own) :])
        down, dhalo = arrays.dproducts[index].tensor_split([num_own])
        sent = exchange.rows.numpy()

        def attend_backward() -> None:
            g[num_own * layer.width :] = 0  # of the halo, times a coefficient of zero
            scores.dscore[overlap.num_edges * heads :] = 0
            targets()
            mark_reachable(overlap.by_target.ptr, overlap.by_target.neighbour, scores.active, reachable)
            reachable[:num_own] |= scores.active.reshape(num_own, heads).any(axis=1)
            halo()
            pending = exchange.start_backward(dhalo)
            let_transfers_run()
            own()
            exchange.add_(down, pending.wait())
            reachable[sent] = True

        return [attend_backward]


def new_workspace(plan: StackPlan, graph: CSRGraph | PartGraph, inference: bool) -> Workspace:
    """A workspace for a whole graph or a part of one."""
    return PartWorkspace(plan, graph, inference) if isinstance(graph, PartGraph) else Workspace(plan, graph, inference)


def _bind(kernel: Any, ranges: list[Range], *arguments: Any, sums: Array | None = None) -> Task:
    """A function that runs a kernel over ranges of nodes, without typing its arguments again.

    Args:
        kernel: the kernel.
        ranges: of nodes.
        arguments: of the kernel, after ``lo`` and ``hi``.
        sums: one partial sum per range, which the kernel takes before its last argument.

    Returns:
        The function.
    """
    calls = {}
    for number, (lo, hi) in enumerate(ranges):
        given = arguments if sums is None else (*arguments[:-1], sums[number], arguments[-1])
        calls[lo] = partial(entry_point(kernel, lo, hi, *given), lo, hi, *given)

    def run(lo: int, _: int) -> None:
        calls[lo]()
        let_transfers_run()

    return partial(run_ranges, run, ranges)

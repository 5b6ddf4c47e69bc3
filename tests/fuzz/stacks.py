"""Calls of stacks of GATv2 layers, most of them malformed: the outcome is that of PyG's layers one by one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from hypothesis import strategies as st
from torch import nn

from equipoise import Stack
from equipoise.nn.fused_convs import FusedGATv2Conv
from tests.fuzz.layers import SOURCES, WIDTH, Edges, check, edge_indices, outcome
from tests.fuzz.runner import Target
from tests.fuzz.tensors import Features, features


@dataclass(frozen=True)
class StackCall:
    """A stack and the arguments of one call.

    Attributes:
        widths: of its layers; at least 2, as PyG broadcasts attention vectors of one channel.
        x: the features, as a tuple of one.
        edges: the graph.
        change: what is done to its parameters before the call.
        layer: the layer that is changed.
        training: mode of the stack.
        repeat: call it twice, the second time with a plan made for it as it was.
        gradients: whether gradients are computed; if so, a wrong shape may be noticed as late as in the backward pass.
        edge_attr: none, as stacks take no edge features.
    """

    widths: tuple[int, ...]
    x: tuple[Features]
    edges: Edges
    change: str = "none"
    layer: int = 0
    training: bool = False
    repeat: bool = False
    gradients: bool = True
    edge_attr: None = None

    def run(self, fused: bool) -> Any:
        """Outputs and gradients of the stack, or the error that it raises."""
        with patch.dict(os.environ, EQUIPOISE_ENGINE="fused" if fused else "reference"):
            torch.default_generator.manual_seed(0)
            stack = Stack("gatv2", list(self.widths)).train(self.training)
            if self.repeat:  # a plan of the unchanged shapes
                stack(torch.rand(SOURCES, self.widths[0]), torch.tensor([[0, 1], [1, 2]]))
            change_stack(stack, self.change, self.layer % len(stack.convs))
            x = self.x[0].build()
            with torch.set_grad_enabled(self.gradients):
                return outcome(stack, [x, self.edges.build()], [x])

    @property
    def may_crash_torch(self) -> bool:
        """Whether torch itself may read out of bounds."""
        return self.x[0].may_crash_torch


CHANGES = (
    "double",
    "attention",
    "attention in place",
    "weight in place",
    "fewer inputs",
    "more inputs",
    "more outputs",
)


def change_stack(stack: Stack, name: str, layer: int) -> None:
    """Replace or change the parameters of one layer, in most cases by others that do not fit."""
    conv = stack.convs[layer]
    inputs, outputs = conv.lin_l.weight.shape[1], conv.out_channels
    options = {"share_weights": True, "bias": False}
    match name:
        case "double":
            stack.double()
        case "attention":
            conv.att = nn.Parameter(torch.rand(1, 1, outputs + 1))
        case "attention in place":
            conv.att.data = torch.rand(1, 1, outputs // 2 or 3)
        case "weight in place":
            conv.lin_l.weight.data = torch.rand(outputs, inputs + 3)
        case "fewer inputs":
            stack.convs[layer] = FusedGATv2Conv(inputs // 2 or 1, outputs, **options)
        case "more inputs":
            stack.convs[layer] = FusedGATv2Conv(inputs + 4, outputs, **options)
        case "more outputs":
            stack.convs[layer] = FusedGATv2Conv(inputs, outputs + 8, **options)


@st.composite
def stack_calls(draw: st.DrawFn) -> StackCall:
    """Calls of stacks of one to four layers."""
    hidden = draw(st.lists(st.sampled_from([8, 8, 16, 5, 2]), max_size=3))
    shapes = [(SOURCES, WIDTH), (SOURCES, WIDTH + 1), (SOURCES, WIDTH - 1), (SOURCES, 1), (SOURCES, 40 * WIDTH)]
    return StackCall(
        (WIDTH, *hidden, draw(st.sampled_from([3, 8, 2]))),
        (draw(features(*shapes, (0, WIDTH), (1, WIDTH), (SOURCES,), (2, SOURCES, WIDTH))),),
        draw(edge_indices()),
        draw(st.sampled_from(["none"] * 8 + list(CHANGES))),
        draw(st.integers(0, 3)),
        training=draw(st.booleans()),
        repeat=draw(st.booleans()),
        gradients=draw(st.booleans()),
    )


STACKS = Target("fused stacks", stack_calls(), check, count=6_000)

"""One forward pass of a copy of a model: which layers run, in which order, and which layer reads which.

The copy runs in evaluation mode on the CPU. The model and torch's global random state do not change.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

NODES = 24  # of the example graph; enough that no ReLU is dead on all nodes
RECTIFIERS = frozenset(  # φ(z) − φ(−z) ∝ z
    {"relu", "relu_", "leaky_relu", "leaky_relu_", "prelu", "rrelu", "rnn_relu", "rnn_relu_cell"}
)
RECTIFIER_MODULES = (nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.RReLU)

Inputs = Sequence[Any]


@dataclass
class LayerTrace:
    """The calls of selected submodules in one forward pass.

    Attributes:
        inputs: positional arguments of the model.
        order: names of the submodules in the order of their first calls.
        sources: autograd nodes that the first input of each call depends on; None if that input is not a tensor.
        results: autograd node of each call's output.
        rectified: whether a ReLU or LeakyReLU runs outside these submodules.
    """

    inputs: Inputs
    order: list[str] = field(default_factory=list)
    sources: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    rectified: bool = False

    def reads(self, reader: str, writer: str) -> bool:
        """Whether the input of ``reader`` depends on the output of ``writer``; True where this cannot be told."""
        source, target = self.sources.get(reader), self.results.get(writer)
        if reader not in self.sources or target is None:
            return True
        return any(node is target for node in _ancestors(source))


class _Functions(TorchFunctionMode):
    """Reports every torch function called."""

    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__()
        self.report = report

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.report(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


def trace_layers(model: nn.Module, names: Sequence[str], inputs: Inputs) -> LayerTrace | None:
    """Run a copy of the model and record the calls of the named submodules.

    Args:
        model: the model.
        names: names of submodules, none of which contains another.
        inputs: positional arguments of the model.

    Returns:
        The trace, or None if the model does not run on these inputs.
    """
    trace, active = LayerTrace(inputs), list[str]()
    # A frozen model has no autograd graph, so the inputs require gradients as well.
    with torch.inference_mode(False):
        inputs = tree_map(_differentiable, tuple(inputs))
    rng_state = torch.get_rng_state()

    def enter(name: str, args: tuple[Any, ...]) -> None:
        active.append(name)
        if name not in trace.order:
            trace.order.append(name)
            if args and isinstance(args[0], Tensor):
                trace.sources[name] = args[0].grad_fn

    def leave(name: str, output: Any) -> None:
        active.remove(name)
        if isinstance(output, Tensor):
            trace.results.setdefault(name, output.grad_fn)

    def report(function: str) -> None:
        trace.rectified |= function in RECTIFIERS and not active

    try:
        traced = copy.deepcopy(model).cpu().eval()
        trace.rectified = any(isinstance(module, RECTIFIER_MODULES) for module in traced.modules())
        for name in names:
            module = traced.get_submodule(name)
            module.register_forward_pre_hook(lambda _, args, name=name: enter(name, args))
            module.register_forward_hook(lambda _, __, output, name=name: leave(name, output))
        with torch.enable_grad(), _Functions(report):
            traced(*inputs)
    except Exception:  # a forward with another signature may raise anything
        return None
    finally:
        torch.set_rng_state(rng_state)
    return trace


def first_trace(model: nn.Module, names: Sequence[str], inputs: Inputs | None) -> LayerTrace | None:
    """Trace the model on its inputs, or else on the first example graph that it accepts; None if there is none."""
    candidates = example_inputs(model) if inputs is None else (inputs,)
    traces = (trace_layers(model, names, arguments) for arguments in candidates)
    return next((trace for trace in traces if trace is not None), None)


def example_inputs(model: nn.Module, widths: Sequence[int] = ()) -> Iterator[Inputs]:
    """Yield inputs to try on a model that takes ``(x, edge_index)`` or ``(x,)``: a small random graph.

    Args:
        model: the model.
        widths: numbers of node features to try first; those that submodules name as ``in_channels`` or ``in_features``
            follow.

    Yields:
        Positional arguments. Which of them the model accepts is for the caller to find out.
    """
    if isinstance(model, GraphModule):  # prints a traceback for every call that fails
        return
    declared = [getattr(module, name, None) for module in model.modules() for name in ("in_channels", "in_features")]
    candidates = [*widths, *(width for width in declared if isinstance(width, int) and width > 0)]
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, NODES, (2, 3 * NODES), generator=generator)
    for width in dict.fromkeys(candidates):
        x = torch.rand(NODES, width, generator=generator, dtype=torch.float64).to(dtype)
        yield x, edge_index
        yield (x,)


def _differentiable(value: Any) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value.detach().cpu() if isinstance(value, Tensor) else value
    value = value.clone() if value.is_inference() else value
    return value.detach().cpu().requires_grad_(value.layout == torch.strided)


def _ancestors(node: Any) -> Iterator[Any]:
    """Yield a node of the autograd graph and all nodes that it depends on."""
    seen, stack = set[Any](), [node]
    while stack:
        current = stack.pop()
        if current is None or current in seen:
            continue
        seen.add(current)
        yield current
        stack += [parent for parent, _ in current.next_functions]

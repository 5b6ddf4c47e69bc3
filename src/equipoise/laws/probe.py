"""A float64 copy of a network with random parameters, to be asked for gradients at leisure.

The copy differs from the user's network in two ways, and neither changes its laws:

* Parameters are drawn at random, so that a zero at the start (attention = 0) hides nothing.
* Every submodule's output is multiplied, entry by entry, by a fixed positive *gate* that brings it to unit size and
  sets neighbouring nodes apart again. Gates commute with a rescaling, which multiplies entries by positive numbers too.
  Without gates the signal of a deep network explodes, vanishes, or becomes the same at every node, and a term that
  matters drowns in rounding.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from equipoise.errors import EquipoiseError, ForwardError, ModelError
from equipoise.laws.checks import Output, check_module, check_trainable, describe, first_line, pick
from equipoise.laws.trace import Trace, Without

INPUT, OUTPUT = "(input {})", "(output)"
GATE_SPREAD = 0.25  # gates are exp(0.25 · normal): wider ones make a deep network chaotic, and its gradients explode


class Probe:
    """A copy of ``model`` that can be run on ``inputs`` with ever new random parameters."""

    def __init__(
        self, model: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any], output: Output | None
    ) -> None:
        check_module(model)
        check_trainable(model)
        self.model = model
        self.output = output
        self.without: frozenset[str] = (
            frozenset()
        )  # functions and modules to leave out, to see what a law would be but for them
        self.generator = torch.Generator().manual_seed(0)
        self.copy = _float64_copy(model)
        self.parameters = {name: p for name, p in self.copy.named_parameters() if p.requires_grad}
        self.positive = {name for name, p in self.parameters.items() if bool((p > 0).all())}
        with _random_state_kept():
            self.inputs, self.kwargs = tree_map(self._soften, (inputs, kwargs))
        self.leaves: dict[str, Tensor] = {}
        for leaf in tree_leaves((self.inputs, self.kwargs)):
            if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.layout == torch.strided:
                self.leaves[INPUT.format(len(self.leaves))] = leaf.requires_grad_()
        self.boundary = {OUTPUT, *self.leaves}
        self.gates: dict[int, list[Tensor]] | None = None
        for number, module in enumerate(self.copy.modules()):
            if module is not self.copy:
                module.register_forward_hook(self._gate(number))
        self._calls: dict[int, int] = {}
        self._original = (inputs, kwargs)

    def randomize(self) -> None:
        """Draw all parameters anew; one that the user has positive throughout (a scale) stays positive."""
        for name, parameter in self.parameters.items():
            rows = parameter.shape[0] if parameter.ndim else 1
            values = self._normal(parameter.shape) * (2.0 / (rows + parameter.numel() / rows)) ** 0.5
            parameter.data.copy_(values.abs() + 0.5 if name in self.positive else values)
        self.gates = {}

    def forward(self, gated: bool = True) -> Tensor:
        """The output at the present parameters; the same gates and random numbers until ``randomize`` is called."""
        self._calls = {}
        gates, self.gates = self.gates, self.gates if gated else None
        inputs, kwargs = tree_map(
            lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, (self.inputs, self.kwargs)
        )
        try:
            with _random_state_kept(), Without(self.without):
                picked = pick(self.copy(*inputs, **kwargs), self.output)
        except EquipoiseError:
            raise
        except Exception as error:  # whatever a user's forward raises, it is theirs: say where it came from
            raise self._forward_error(error) from error
        finally:
            self.gates = gates
        return picked

    def gradient_products(self) -> dict[str, Tensor]:
        """θ·∇θ entry by entry, at new random parameters, for a random gradient at the output."""
        self.randomize()
        output = self.forward()
        cotangent = self._normal(output.shape).to(output.device)
        leaves = self.parameters | self.leaves
        gradients = torch.autograd.grad(output, list(leaves.values()), cotangent, allow_unused=True)
        products = {OUTPUT: (output * cotangent).detach()}
        for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
            if gradient is not None:
                products[name] = leaf.detach() * gradient
        return products

    def trace(self) -> Trace:
        """The functions that the network calls, in order, with the parameters they read."""
        trace = Trace(self.parameters)
        with trace:
            self.forward(gated=False)
        return trace

    def examine(self) -> Trace:
        """A trace that also says what each call, of a function or of a submodule, does to its features."""
        trace = Trace(dict(self.copy.named_parameters()), examine=True)
        submodules = [module for module in self.copy.modules() if module is not self.copy]
        handles = [module.register_forward_pre_hook(trace.before_module) for module in submodules]
        handles += [module.register_forward_hook(trace.after_module) for module in submodules]
        try:
            with trace:
                trace.returned = trace.makers(self.forward(gated=False))
        finally:
            for handle in handles:
                handle.remove()
        return trace

    def _normal(self, shape: torch.Size) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def _soften(self, leaf: Any) -> Any:
        """Floating inputs in float64, each entry times a positive number of its own: signs and zeros stay."""
        if hasattr(leaf, "clone") and hasattr(leaf, "apply") and not isinstance(leaf, Tensor):
            return leaf.clone().apply(self._soften)  # PyG's Data, Batch, HeteroData
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
            return leaf
        leaf = leaf.detach().double()
        if leaf.layout != torch.strided:
            return leaf
        jitter = (GATE_SPREAD * self._normal(leaf.shape)).exp().to(leaf.device)
        return jitter if not leaf.any() else leaf * jitter  # all zeros: a placeholder

    def _gate(self, number: int) -> Callable[[nn.Module, Any, Any], Any]:
        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            if type(module).__name__ in self.without and args and getattr(args[0], "shape", None) == output.shape:
                return args[0]
            return output if self.gates is None else tree_map(lambda leaf: self._gated(leaf, number), output)

        return hook

    def _gated(self, leaf: Any, number: int) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point() or leaf.layout != torch.strided:
            return leaf
        assert self.gates is not None
        gates = self.gates.setdefault(number, [])
        call = self._calls.get(number, 0)
        self._calls[number] = call + 1
        if call == len(gates):
            size = leaf.detach().square().mean(dim=-1 if leaf.ndim > 1 else None, keepdim=True).sqrt()
            spread = (GATE_SPREAD * self._normal(leaf.shape)).exp().to(leaf)
            gates.append(torch.where((size > 0) & size.isfinite(), spread / size, spread))
        return leaf * gates[call]

    def _forward_error(self, error: Exception) -> EquipoiseError:
        where = ", ".join(describe(leaf) for leaf in (*self._original[0], *self._original[1].values()))
        try:
            with torch.no_grad(), _random_state_kept():
                inputs, kwargs = copy.deepcopy(self._original)
                copy.deepcopy(self.model)(*inputs, **kwargs)
        except Exception:
            return ForwardError(
                f"{type(self.model).__name__}.forward does not run on these inputs: {first_line(error)}",
                where=where,
                remedy="pass the inputs as you would call the model: discover(model, *inputs)",
            )
        return ForwardError(
            f"{type(self.model).__name__}.forward runs as it is, but not as a float64 copy: {first_line(error)}",
            where=where,
            remedy="take dtypes from the data (x.new_zeros, torch.zeros(..., dtype=x.dtype)), not fixed ones, "
            "and keep tensors as buffers (register_buffer)",
        )


def _float64_copy(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model).double()
    except Exception as error:
        raise ModelError(
            f"{type(model).__name__} cannot be copied: {first_line(error)}",
            remedy="make copy.deepcopy(model) work: keep no computed (non-leaf) tensors or open handles in modules",
        ) from error


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """Fixed random numbers inside, the caller's random state afterwards: torch, numpy and Python."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (the legacy state is the global one)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            random.seed(0)
            np.random.seed(0)  # noqa: NPY002
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002

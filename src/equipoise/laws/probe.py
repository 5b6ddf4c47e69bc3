"""Probes: float64 copies of a network with random parameters, on which laws are searched and verified.

The copy differs from the user's network in two ways, neither of which changes its laws:

* Parameters are random, so that zeros of the initialisation (attention = 0) hide no term.
* A fixed positive *gate* multiplies every entry of every submodule's output. It normalises the output and perturbs it
  differently at every node. Gates commute with a rescaling, which also multiplies entries by positive numbers. Without
  gates the activations of a deep network explode, vanish or become equal at all nodes (oversmoothing), and terms that
  matter are lost to rounding.
"""

from __future__ import annotations

import copy
import logging
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves, tree_map

from equipoise.errors import EquipoiseError, ForwardError, ModelError
from equipoise.laws.binding import bind_data, parameter_names
from equipoise.laws.slot import inner_products
from equipoise.laws.subgraph import Inputs, Subgraph, is_data, sample_subgraph
from equipoise.laws.trace import AblateFunctions, Trace
from equipoise.laws.validation import (
    OutputSelector,
    check_module,
    check_trainable,
    check_values,
    describe_value,
    select_output,
    summarize_error,
)

log = logging.getLogger("equipoise")

INPUT, OUTPUT = "(input {})", "(output)"
SUBGRAPH_SIZES = (32, 512)  # number of nodes of a sample; the larger one if the smaller one leaves parameters unused
GATE_STD = 0.25  # gates are exp(0.25 · normal); with a larger deviation the gradients of deep networks explode


class Probe:
    """A float64 copy of a model that runs on fixed inputs with random parameters.

    Args:
        model: Network to copy. Lazy parameters of the copy are initialised by a first call.
        inputs: Positional arguments of the model, or a PyG data object with their values.
        kwargs: Keyword arguments of the model.
        output: Function that selects the tensor to differentiate from the model's return value.
        sample: Whether to replace a large graph among the inputs by a small induced subgraph.

    Attributes:
        parameters: Trainable parameters of the copy, by name.
        own: Values of these parameters in the user's model.
        buffers: Values of the copy's buffers before every forward pass.
        subgraph: The sample, if there is one.
        input_leaves: Dense floating-point inputs, by name ``(input 0)``, ``(input 1)``, …
        ablated: Names of functions and module classes to replace by the identity.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: OutputSelector | None,
        sample: bool = True,
    ) -> None:
        check_module(model, allow_lazy=True)
        check_values(model, (inputs, kwargs))
        self.model = model
        self.output = output
        self.ablated: frozenset[str] = frozenset()
        self.generator = torch.Generator().manual_seed(0)
        self._original = bind_data(model, (inputs, kwargs))
        self.copy = _float64_copy(_initialized(model, self._original))
        check_trainable(self.copy)
        self.parameters = {name: p for name, p in self.copy.named_parameters() if p.requires_grad}
        self.own = {name: p.detach().clone() for name, p in self.parameters.items()}
        self.buffers = {name: buffer.detach().clone() for name, buffer in self.copy.named_buffers()}
        self._positive = {name for name, p in self.parameters.items() if not p.is_complex() and bool((p > 0).all())}
        self._gates: dict[int, list[Tensor]] | None = None  # by number of the module, one entry per call
        self._call_counts: dict[int, int] = {}
        self._vectorizes = True  # until a backward pass for several output gradients at once fails
        for number, module in enumerate(self.copy.modules()):
            if module is not self.copy:
                module.register_forward_hook(self._make_gate_hook(number))
        self.subgraph: Subgraph | None = None
        if sample and self._use_subgraph():
            log.info("%s: %s", type(model).__name__, self.subgraph)
        else:
            self._set_inputs(self._original)

    def _use_subgraph(self) -> bool:
        """Use the smallest sample that the model runs on and that reaches as many parameters as a larger one."""
        reached = -1
        for size in SUBGRAPH_SIZES:
            try:
                subgraph = sample_subgraph(self._original, parameter_names(self.model), size)
                if subgraph is None:
                    break
                self._set_inputs(subgraph.inputs)
                products = self.gradient_products(1, mean=0.5)[0]
            except Exception:  # the model needs its whole graph, or the inputs are no graph
                break
            count = sum(name in products and bool(products[name].any()) for name in self.parameters)
            if count <= reached:
                break
            self.subgraph, reached = subgraph, count
            if count == len(self.parameters):
                return True
        if self.subgraph is not None:
            self._set_inputs(self.subgraph.inputs)
        return self.subgraph is not None

    def _set_inputs(self, inputs: Inputs) -> None:
        """Copy the inputs to float64: once as they are, once perturbed."""
        with _fixed_random_state():
            self.own_inputs = tree_map(_to_float64, inputs)
            self.inputs, self.kwargs = tree_map(self._perturb_input, inputs)
        self.input_leaves: dict[str, Tensor] = {}
        for leaf in tree_leaves((self.inputs, self.kwargs)):
            if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.layout == torch.strided:
                self.input_leaves[INPUT.format(len(self.input_leaves))] = leaf.requires_grad_()

    def randomize(self, mean: float = 0.0) -> None:
        """Draw new parameters and gates; parameters that are positive in the user's model (scales) stay positive.

        Args:
            mean: Mean of the parameters, in standard deviations. With a positive mean fewer ReLUs are dead.
        """
        for name, parameter in self.parameters.items():
            rows = max(1, parameter.shape[0]) if parameter.ndim else 1
            values = (self._normal(parameter.shape, parameter.dtype) + mean) * (
                2.0 / (rows + parameter.numel() / rows)
            ) ** 0.5
            parameter.data.copy_(values.abs() + 0.5 if name in self._positive else values)
        self._gates = {}

    @contextmanager
    def at_own_parameters(self) -> Iterator[None]:
        """Use the user's own parameters, and inputs that are not perturbed, within the context."""
        saved = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
        inputs = self.inputs, self.kwargs
        self.inputs, self.kwargs = self.own_inputs
        try:
            self.load(self.own)
            yield
        finally:
            self.inputs, self.kwargs = inputs
            self.load(saved)

    @contextmanager
    def scaled_inputs(self, scale: float) -> Iterator[None]:
        """Multiply the floating-point inputs by a constant within the context."""
        inputs = self.inputs, self.kwargs
        self.inputs, self.kwargs = tree_map(
            lambda leaf: scale * leaf if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf, inputs
        )
        try:
            yield
        finally:
            self.inputs, self.kwargs = inputs

    def load(self, values: Mapping[str, Tensor]) -> None:
        """Set the parameters of the copy."""
        for name, parameter in self.parameters.items():
            parameter.data.copy_(values[name])

    def forward(self, gated: bool = True) -> Tensor:
        """Run the copy; gates and random numbers stay the same until :meth:`randomize` is called.

        Args:
            gated: Whether to multiply the outputs of submodules by their gates.

        Returns:
            The selected output.

        Raises:
            EquipoiseError: :class:`ForwardError` if the model fails on the inputs, :class:`OutputError` if its output
                is not a finite, differentiable tensor.
        """
        self._call_counts = {}
        for name, buffer in self.copy.named_buffers():
            buffer.copy_(self.buffers[name])  # a forward pass may update them, e.g. a running mean
        gates, self._gates = self._gates, self._gates if gated else None
        inputs, kwargs = tree_map(
            lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, (self.inputs, self.kwargs)
        )
        try:
            ablation = AblateFunctions(self.ablated) if self.ablated else nullcontext()
            with _fixed_random_state(), ablation:
                return select_output(self.copy(*inputs, **kwargs), self.output)
        except EquipoiseError:
            raise
        except Exception as error:  # user code may raise anything
            raise self._forward_error(error) from error
        finally:
            self._gates = gates

    def gradient_products(self, count: int = 1, mean: float = 0.0) -> list[dict[str, Tensor]]:
        """Compute θ·∇θ elementwise at new random parameters, for random gradients of the output.

        Args:
            count: Number of output gradients, all for the same parameters.
            mean: Mean of the parameters, in standard deviations.

        Returns:
            For every output gradient one tensor per parameter, input and output that has a gradient, by name.
        """
        self.randomize(mean)
        output = self.forward()
        leaves = self.parameters | self.input_leaves
        cotangents = self._normal(torch.Size((count, *output.shape))).to(output.device)
        samples: list[dict[str, Tensor]] = [{OUTPUT: products} for products in output.detach() * cotangents]
        for (name, leaf), gradients in zip(
            leaves.items(), self._gradients(output, list(leaves.values()), cotangents), strict=True
        ):
            for sample, gradient in zip(samples, () if gradients is None else gradients, strict=False):
                sample[name] = inner_products(leaf.detach(), gradient)
        return samples

    def _gradients(self, output: Tensor, leaves: list[Tensor], cotangents: Tensor) -> Sequence[Tensor | None]:
        """Gradients of every leaf for all cotangents, stacked; None if the output does not depend on the leaf."""
        if self._vectorizes:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # functions without a batching rule are slow, not wrong
                    return torch.autograd.grad(
                        output, leaves, cotangents, allow_unused=True, is_grads_batched=True, retain_graph=True
                    )
            except Exception:  # some functions have no vectorised backward pass
                self._vectorizes = False
        rows = [
            torch.autograd.grad(output, leaves, cotangent, allow_unused=True, retain_graph=True)
            for cotangent in cotangents
        ]
        return [None if column[0] is None else torch.stack(column) for column in zip(*rows, strict=True)]

    def trace(self) -> Trace:
        """Trace the functions that the forward pass calls and the parameters they read."""
        trace = Trace(self.parameters)
        with trace:
            self.forward(gated=False)
        return trace

    def trace_homogeneity(self) -> Trace:
        """Trace the forward pass, including submodules, and determine the degree of homogeneity of every call."""
        trace = Trace(dict(self.copy.named_parameters()), test_homogeneity=True)
        submodules = [module for module in self.copy.modules() if module is not self.copy]
        handles = [module.register_forward_pre_hook(trace.forward_pre_hook) for module in submodules]
        handles += [module.register_forward_hook(trace.forward_hook) for module in submodules]
        try:
            with trace:
                trace.output_weights = trace.producers(self.forward(gated=False))
        finally:
            for handle in handles:
                handle.remove()
        return trace

    def _normal(self, shape: torch.Size, dtype: torch.dtype = torch.float64) -> Tensor:
        single = torch.complex64 if dtype.is_complex else torch.float32  # drawn several times as fast as float64
        return torch.randn(shape, generator=self.generator, dtype=single).to(dtype)

    def _perturb_input(self, leaf: Any) -> Any:
        """Convert a floating-point input to float64 and multiply its entries by random positive factors.

        Signs and zeros stay, except that an input of zeros only is taken for a placeholder and replaced.

        Args:
            leaf: A tensor, a PyG data object, or anything else.

        Returns:
            The perturbed copy; other types and sparse tensors are not perturbed.
        """
        if is_data(leaf):
            return leaf.clone().apply(self._perturb_input)
        leaf = _to_float64(leaf)
        if not isinstance(leaf, Tensor) or leaf.layout != torch.strided or leaf.is_nested:
            return leaf
        if not leaf.is_floating_point() and not leaf.is_complex():
            return leaf
        factors = (GATE_STD * self._normal(leaf.shape)).exp().to(leaf.device)
        return factors.to(leaf.dtype) if not leaf.any() else leaf * factors

    def _make_gate_hook(self, number: int) -> Callable[[nn.Module, Any, Any], Any]:
        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            if type(module).__name__ in self.ablated and args and getattr(args[0], "shape", None) == output.shape:
                return args[0]
            return output if self._gates is None else tree_map(lambda leaf: self._apply_gate(leaf, number), output)

        return hook

    def _apply_gate(self, leaf: Any, number: int) -> Any:
        if not isinstance(leaf, Tensor) or leaf.layout != torch.strided or leaf.is_nested:
            return leaf
        if not leaf.is_floating_point() and not leaf.is_complex():
            return leaf
        assert self._gates is not None
        gates = self._gates.setdefault(number, [])
        call = self._call_counts.get(number, 0)
        self._call_counts[number] = call + 1
        if call == len(gates):
            rms = leaf.detach().abs().square().mean(dim=-1 if leaf.ndim > 1 else None, keepdim=True).sqrt()
            factors = (GATE_STD * self._normal(leaf.shape)).exp().to(leaf.device)
            gates.append(torch.where((rms > 0) & rms.isfinite(), factors / rms, factors))
        return leaf * gates[call]

    def _forward_error(self, error: Exception) -> EquipoiseError:
        """Build the error for a failed forward pass: wrong inputs, or a model that does not support float64."""
        where = ", ".join(describe_value(leaf) for leaf in (*self._original[0], *self._original[1].values()))
        try:
            with torch.no_grad(), _fixed_random_state():
                inputs, kwargs = copy.deepcopy(self._original)
                copy.deepcopy(self.model)(*inputs, **kwargs)
        except Exception:
            return ForwardError(
                f"{type(self.model).__name__}.forward does not run on these inputs: {summarize_error(error)}",
                where=where,
                remedy="pass the inputs as you would call the model: discover(model, *inputs)",
            )
        return ForwardError(
            f"{type(self.model).__name__}.forward runs, but not as a float64 copy: {summarize_error(error)}",
            where=where,
            remedy="derive dtypes from the data (x.new_zeros, torch.zeros(..., dtype=x.dtype)) "
            "and register tensors as buffers (register_buffer)",
        )


def _initialized(model: nn.Module, inputs: Inputs) -> nn.Module:
    """The model, or a copy of it whose lazy parameters were initialised by a call on the inputs."""
    if not any(is_lazy(parameter) for parameter in model.parameters()):
        return model
    model = _copied(model)
    try:
        with torch.no_grad(), _fixed_random_state():
            model(*inputs[0], **inputs[1])
    except Exception as error:  # user code may raise anything
        raise ForwardError(
            f"{type(model).__name__}.forward does not run on these inputs: {summarize_error(error)}",
            where=", ".join(describe_value(leaf) for leaf in (*inputs[0], *inputs[1].values())),
            remedy="pass the inputs as you would call the model: discover(model, *inputs)",
        ) from error
    return model


def _float64_copy(model: nn.Module) -> nn.Module:
    copied = _copied(model)
    copied._apply(_to_float64)  # type: ignore[no-untyped-call]
    return copied


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise ModelError(
            f"{type(model).__name__} cannot be copied: {summarize_error(error)}",
            remedy="make copy.deepcopy(model) work: store no non-leaf tensors or open handles in modules",
        ) from error


def _to_float64(leaf: Any) -> Any:
    """A copy in float64 or complex128; integers and other types as they are, PyG's data objects by attribute."""
    if is_data(leaf):
        return leaf.clone().apply(_to_float64)
    if not isinstance(leaf, Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
        return leaf
    return leaf.detach().clone().to(torch.complex128 if leaf.is_complex() else torch.float64)


@contextmanager
def _fixed_random_state() -> Iterator[None]:
    """Seed torch, NumPy and Python with 0 inside the context and restore the caller's random state afterwards."""
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

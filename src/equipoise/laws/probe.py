"""Probes: float64 copies of a network with random parameters, on which laws are searched and verified.

The copy differs from the user's network in two ways, neither of which changes its laws: parameters are random, so that
zeros of the initialisation (attention = 0) hide no term, and gates (:mod:`equipoise.laws.gates`) keep activations in
range.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from equipoise.errors import EquipoiseError, ModelError, OutputError
from equipoise.laws.ablation import ablated
from equipoise.laws.binding import bind_data, parameter_names
from equipoise.laws.float64 import fixed_random_state, float64_copy, float64_default, forward_error, to_float64
from equipoise.laws.gates import Gates, normal, random_factors
from equipoise.laws.parameter_values import NO_EFFECT, ParameterValues
from equipoise.laws.slot import inner_products
from equipoise.laws.subgraph import Inputs, Subgraph, is_data, sample_subgraph
from equipoise.laws.trace import Trace
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
MAX_VECTORIZED_ENTRIES = 2_000_000  # gradients to compute at once; a loop is faster for large parameters
SUBGRAPH_SIZES = (32, 512)  # number of nodes of a sample; the larger one if the smaller one leaves parameters unused


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
        values: Values that these parameters take: random ones, and those of the user's model.
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
        if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
            raise ModelError(
                "the model contains TorchScript, whose calls cannot be observed",
                where=type(model).__name__,
                remedy="pass the model from which it was scripted",
            )
        self.model = model
        self.output = output
        self.ablated: frozenset[str] = frozenset()
        self.generator = torch.Generator().manual_seed(0)
        self._original = bind_data(model, (inputs, kwargs))
        self.copy = float64_copy(model, self._original)
        check_trainable(self.copy)
        self.parameters = {name: p for name, p in self.copy.named_parameters() if p.requires_grad}
        self.values = ParameterValues(self.parameters, self.generator)
        self.buffers = {name: buffer.detach().clone() for name, buffer in self.copy.named_buffers()}
        self._gates = Gates(self.copy, self.generator)
        self._vectorizes = True  # until a backward pass for several output gradients at once fails
        self.subgraph: Subgraph | None = None
        if sample and self._use_subgraph():
            log.info("%s: %s", type(model).__name__, self.subgraph)
        else:
            self._set_inputs(self._original)
        self._keep_scales_positive()

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
        with fixed_random_state():
            self.own_inputs = tree_map(to_float64, inputs)
            self.inputs, self.kwargs = tree_map(self._perturb_input, inputs)
        self.input_leaves: dict[str, Tensor] = {}
        for leaf in tree_leaves((self.inputs, self.kwargs)):
            if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.layout == torch.strided:
                self.input_leaves[INPUT.format(len(self.input_leaves))] = leaf.requires_grad_()

    def _keep_scales_positive(self) -> None:
        """Keep every positive parameter positive if the output is not finite otherwise (a logarithm, a root)."""
        if self.values.maybe_scales:
            self.randomize()
            try:
                self.forward(gated=False)
            except OutputError:
                self.values.scales |= self.values.maybe_scales

    def randomize(self, mean: float = 0.0) -> None:
        """Draw new parameters and gates.

        Args:
            mean: Mean of the parameters, in standard deviations. With a positive mean fewer ReLUs are dead.
        """
        self.values.draw(mean)
        self._gates.reset()

    @contextmanager
    def at_own_parameters(self) -> Iterator[None]:
        """Use the user's own parameters, and inputs that are not perturbed, within the context."""
        inputs = self.inputs, self.kwargs
        self.inputs, self.kwargs = self.own_inputs
        try:
            with self.values.at_own():
                yield
        finally:
            self.inputs, self.kwargs = inputs

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

    def forward(self, gated: bool = True) -> Tensor:
        """Run the copy; gates and random numbers stay the same until :meth:`randomize` is called.

        Args:
            gated: Whether to multiply the outputs of submodules by their gates.

        Returns:
            The selected output.

        Raises:
            EquipoiseError: :class:`ForwardError` if the model fails on the inputs.
            OutputError: The output is not a finite, differentiable tensor, or ``output=`` fails.
        """
        for name, buffer in self.copy.named_buffers():
            buffer.copy_(self.buffers[name])  # a forward pass may update them, e.g. a running mean
        inputs, kwargs = tree_map(
            lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, (self.inputs, self.kwargs)
        )
        try:
            with fixed_random_state(), float64_default(), self._gates.active(gated), ablated(self.copy, self.ablated):
                result = self.copy(*inputs, **kwargs)
        except EquipoiseError:
            raise
        except Exception as error:  # user code may raise anything
            failure: EquipoiseError = forward_error(self.model, self._original, error)
            raise failure from error
        try:
            return select_output(result, self.output)
        except EquipoiseError:
            raise
        except Exception as error:
            raise OutputError(
                f"output= failed on {describe_value(result)}: {summarize_error(error)}",
                remedy="pass a function of the model's result that returns a tensor: output=lambda out: out[0]",
            ) from error

    def gradient_products(self, count: int = 1, mean: float = 0.0) -> list[dict[str, Tensor]]:
        """Compute θ·∇θ elementwise at new random parameters, for random gradients of the output.

        Args:
            count: Number of output gradients, all for the same parameters. There are at most as many as the output
                has entries, since further ones would be linear combinations of them.
            mean: Mean of the parameters, in standard deviations.

        Returns:
            For every output gradient one tensor per parameter, input and output that has a gradient, by name.
        """
        self.randomize(mean)
        return self._products(count)

    def depends_on(self, names: Sequence[str]) -> bool:
        """Whether the output of the network, without gates, has more than rounding as a gradient for a parameter."""
        if not names:
            return False
        self.randomize(mean=0.5)
        sample = self._products(1, gated=False)[0]
        sizes = {name: float(sample[name].abs().max()) for name in sample.keys() & self.parameters.keys()}
        return any(sizes.get(name, 0.0) > NO_EFFECT * max(sizes.values()) for name in names)

    def _products(self, count: int, gated: bool = True) -> list[dict[str, Tensor]]:
        """Compute θ·∇θ elementwise at the current parameters, for random gradients of the output."""
        output = self.forward(gated)
        leaves = self.parameters | self.input_leaves
        cotangents = self._cotangents(output, count)
        samples: list[dict[str, Tensor]] = [{OUTPUT: products} for products in output.detach() * cotangents]
        for (name, leaf), gradients in zip(
            leaves.items(), self._gradients(output, list(leaves.values()), cotangents), strict=True
        ):
            for sample, gradient in zip(samples, () if gradients is None else gradients, strict=False):
                sample[name] = inner_products(leaf.detach(), gradient)
        return samples

    def whole_products(self, names: Sequence[str], count: int, mean: float = 0.0) -> tuple[Tensor, Tensor]:
        """Compute ⟨θ, ∇θ⟩ of whole parameters at new random parameters, for random gradients of the output.

        Args:
            names: Names of the parameters.
            count: Number of output gradients, as for :meth:`gradient_products`.
            mean: Mean of the parameters, in standard deviations.

        Returns:
            ⟨θ, ∇θ⟩ and the bound ‖θ‖ ‖∇θ‖, with one row per output gradient and one column per parameter.
        """
        self.randomize(mean)
        output = self.forward()
        leaves = [self.parameters[name] for name in names]
        cotangents = self._cotangents(output, count)
        products = torch.zeros(len(cotangents), len(names), dtype=torch.float64)
        bounds = torch.zeros_like(products)
        for column, (leaf, gradients) in enumerate(
            zip(leaves, self._gradients(output, leaves, cotangents), strict=True)
        ):
            if gradients is not None:
                values = _real_vector(leaf.detach())
                rows = [_real_vector(gradient) for gradient in gradients]
                products[:, column] = torch.stack([row @ values for row in rows])
                bounds[:, column] = torch.stack([row.norm() for row in rows]) * values.norm()
        return products, bounds

    def _cotangents(self, output: Tensor, count: int) -> Tensor:
        """Random gradients of the output; as many as are linearly independent, at most ``count``."""
        independent = max(1, min(count, output.numel()))
        return normal(torch.Size((independent, *output.shape)), self.generator).to(output.device)

    def _gradients(
        self, output: Tensor, leaves: Sequence[Tensor], cotangents: Tensor
    ) -> Sequence[Tensor | Sequence[Tensor] | None]:
        """Gradients of every leaf, one per cotangent; None if the output does not depend on the leaf."""
        entries = len(cotangents) * sum(leaf.numel() for leaf in leaves)
        if self._vectorizes and entries <= MAX_VECTORIZED_ENTRIES:
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
        return [None if column[0] is None else column for column in zip(*rows, strict=True)]

    def trace(self) -> Trace:
        """Trace the functions that the forward pass calls and the parameters they read."""
        trace = Trace(self.parameters)
        with trace:
            self.forward(gated=False)
        return trace

    def trace_homogeneity(self) -> Trace:
        """Trace the forward pass, including submodules, and determine the degree of homogeneity of every call."""
        trace = Trace(dict(self.copy.named_parameters()), test_homogeneity=True, pause=self._gates.paused)
        submodules = [module for module in self.copy.modules() if module is not self.copy]
        handles = [module.register_forward_pre_hook(trace.forward_pre_hook) for module in submodules]
        handles += [module.register_forward_hook(trace.forward_hook, prepend=True) for module in submodules]
        try:
            with trace:  # with gates: where activations explode, no ε is visible
                trace.output_weights = trace.producers(self.forward())
        finally:
            for handle in handles:
                handle.remove()
        return trace

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
        leaf = to_float64(leaf)
        if not isinstance(leaf, Tensor) or leaf.layout != torch.strided or leaf.is_nested:
            return leaf
        if not leaf.is_floating_point() and not leaf.is_complex():
            return leaf
        factors = random_factors(leaf.shape, self.generator).to(leaf.device)
        return factors.to(leaf.dtype) if not leaf.any() else leaf * factors


def _real_vector(values: Tensor) -> Tensor:
    """Flatten a tensor on the CPU, with a complex entry as two real ones."""
    return (torch.view_as_real(values) if values.is_complex() else values).cpu().reshape(-1)

"""Confirmation that a change of the parameters leaves the outputs of a model as they were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from equipoise.errors import ForwardError, LawError
from equipoise.laws.binding import bind_data, split_inputs
from equipoise.laws.law import Law
from equipoise.laws.validation import summarize_error

# Largest change of an output that counts as rounding, relative to the largest output. Rounding errors of a deep network
# accumulate; a law that does not hold changes the outputs by more than a percent.
OUTPUT_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}
LOW_PRECISION_TOLERANCE = 5e-2  # for all other dtypes


class OutputGuard:
    """Compare the outputs of the laws' model before and after a change.

    The model is called in its current mode with the same random numbers each time, and its buffers are restored.

    Args:
        laws: Laws of one model.
        inputs: A tuple of arguments, a dictionary of keyword arguments, a single argument, or a PyG data object.

    Raises:
        LawError: The laws belong to several models.
        ForwardError: The model fails on the inputs, or returns no finite number.
    """

    def __init__(self, laws: Sequence[Law], inputs: Any) -> None:
        models = {id(slot.model): slot.model for law in laws for slot in law.slots}
        if len(models) != 1:
            raise LawError(
                f"the laws belong to {len(models)} models, and inputs can be confirmed for one",
                remedy="call rebalance_ for each model",
            )
        self._model: nn.Module = next(iter(models.values()))
        self._arguments, self._keywords = bind_data(self._model, split_inputs(inputs))
        self._before = self._outputs()
        if not any(bool(torch.isfinite(output).any()) for output in self._before):
            raise ForwardError(
                "the model returns no finite number on inputs=, so they confirm nothing",
                where=type(self._model).__name__,
                remedy="pass inputs that are neither empty nor NaN",
            )
        dtypes = {tensor.dtype for tensor in self._before}
        self.tolerance = max((OUTPUT_TOLERANCE.get(dtype, LOW_PRECISION_TOLERANCE) for dtype in dtypes), default=0.0)

    def relative_change(self) -> float:
        """The largest change of an output since the guard was made, relative to the largest output."""
        changes = [0.0]
        for before, after in zip(self._before, self._outputs(), strict=True):
            if before.numel():
                finite = torch.isfinite(before)
                if not torch.equal(finite, torch.isfinite(after)):
                    return float("inf")
                size = float(torch.where(finite, before, 0.0).abs().max())
                difference = float(torch.where(finite, after - before, 0.0).abs().max())
                changes.append(difference / size if size else difference)
        return max(changes)

    @torch.no_grad()
    def _outputs(self) -> list[Tensor]:
        buffers = [(buffer, buffer.clone()) for buffer in self._model.buffers()]
        try:
            with torch.random.fork_rng(range(torch.cuda.device_count())):
                torch.manual_seed(0)
                outputs = self._model(*self._arguments, **self._keywords)
        except Exception as error:
            raise ForwardError(
                f"the model fails on inputs=: {summarize_error(error)}",
                where=type(self._model).__name__,
                remedy="pass what the model is called with: a tuple of arguments or a dictionary of keyword arguments",
            ) from error
        finally:
            for buffer, copy in buffers:
                buffer.copy_(copy)
        return [
            leaf
            for leaf in tree_leaves(outputs)
            if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())
        ]

"""Rebalancing during training, every few steps."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch.optim import Optimizer

from equipoise.errors import ChoiceError, TrainingError, TrainingWarning
from equipoise.laws.law import Law, check_laws
from equipoise.laws.optimizer_state import collect_state
from equipoise.laws.rebalance import CRITERIA, Criterion, apply_rebalancing, target_scales
from equipoise.laws.rescaling import Rescaling
from equipoise.laws.validation import is_integer


class Rebalancer:
    """Rebalance a network every few steps of training, without changing its function.

    A step of finite size moves a network out of balance. Call :meth:`step` after each backward pass; every tenth call
    rescales the network as :func:`~equipoise.rebalance_` does, together with its gradients and the optimizer's moments.

    Args:
        laws: Laws as returned by :func:`~equipoise.discover`.
        every: Number of steps between two rescalings.
        criterion: ``"weights"``, ``"gradients"`` or ``"relative-gradients"``; see :func:`~equipoise.rebalance_`.
        optimizer: The optimizer of the model. :func:`~equipoise.train` and the Lightning callback attach their own.
        targets: Relative size by name of a module or parameter, to let layers learn earlier or later; see
            :func:`~equipoise.rebalance_`.
        inputs: Inputs of the model to confirm each rescaling with; None does not confirm.
        moments: Whether the optimizer's moments are rescaled. Without, they belong to the network before the rescaling.

    Attributes:
        steps: Number of calls of :meth:`step`.
        imbalance: Largest relative imbalance that the last rescaling left; None before the first.

    Raises:
        ChoiceError: If the criterion, or a name in ``targets``, is unknown.
        LawError: If ``laws`` are not laws, or the optimizer does not train their parameters.
        OptimizerError: If the optimizer's state has no known rescaling.
        TrainingError: If ``every`` is below 1.

    Example:
        >>> import torch
        >>> import equipoise as eq
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> x, y = torch.randn(20, 3), torch.arange(20) % 2
        >>> optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        >>> rebalancer = eq.Rebalancer(eq.discover(model, x), every=2, optimizer=optimizer)
        >>> for _ in range(4):
        ...     optimizer.zero_grad()
        ...     torch.nn.functional.cross_entropy(model(x), y).backward()
        ...     rebalancer.step()
        ...     optimizer.step()
        >>> rebalancer.imbalance < 1e-6
        True
    """

    def __init__(
        self,
        laws: Sequence[Law],
        every: int = 10,
        criterion: Criterion = "weights",
        *,
        optimizer: Optimizer | None = None,
        targets: Mapping[str, float] | None = None,
        inputs: Any = None,
        moments: bool = True,
    ) -> None:
        if not is_integer(every) or every < 1:
            raise TrainingError(f"every must be an integer of at least 1 step, got {every!r}")
        if criterion not in CRITERIA:
            raise ChoiceError("criterion", criterion, CRITERIA)
        self.every, self.criterion, self.targets, self.inputs, self.moments = every, criterion, targets, inputs, moments
        self.steps = 0
        self.imbalance: float | None = None
        self._rescaling = Rescaling([law for law in check_laws(laws) if law.outgoing])
        if not self._rescaling.laws:
            warnings.warn("there is no law to balance: the rebalancer does nothing", TrainingWarning, stacklevel=2)
        target_scales(self._rescaling, targets)
        self._optimizer: Optimizer | None = None
        if optimizer is not None:
            self.attach(optimizer)

    def attach(self, optimizer: Optimizer) -> None:
        """Rescale the moments of this optimizer.

        Raises:
            LawError: If it does not train a parameter of the laws.
            OptimizerError: If its moments have no known rescaling.
        """
        if self.moments and optimizer is not self._optimizer:
            collect_state(optimizer, self._rescaling.parameters(), self._rescaling.laws)
            self._optimizer = optimizer

    def step(self) -> None:
        """Count a step, and rebalance if it is due.

        Call it after ``loss.backward()`` and before gradients are clipped and ``optimizer.step()``.
        """
        self.steps += 1
        if self.steps % self.every == 0:
            self.imbalance = apply_rebalancing(
                self._rescaling, self._optimizer, self.criterion, self.inputs, self.targets
            )

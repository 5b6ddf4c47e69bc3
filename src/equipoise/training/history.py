"""The result of a training run, and the state from which a run can be resumed."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Outcome = Literal["finished", "converged", "stopped", "diverged", "interrupted"]


@dataclass
class History:
    """Loss and accuracies per epoch, and the result of a training run.

    The result is the test accuracy at the first epoch with the highest validation accuracy; where a run has another
    metric, ``val_accuracy`` and ``test_accuracy`` hold that metric. Epochs count from 1. Entry
    ``[t - 1]`` of a curve belongs to epoch t: the loss before the step of that epoch, the accuracies after it.

    Attributes:
        outcome: ``"finished"`` (all epochs), ``"converged"`` (training loss at most ``stop_loss``), ``"stopped"``
            (validation accuracy no better for ``patience`` epochs), ``"diverged"`` (loss NaN or infinite), or
            ``"interrupted"`` (Ctrl-C).
        loss: training loss per epoch.
        val_accuracy: validation accuracy per epoch, in [0, 1].
        test_accuracy: test accuracy per epoch, in [0, 1].
        seconds: duration of the run.
        reason: details of the outcome, or an empty string.
        best_state: the model's ``state_dict`` after the best epoch.
        metric: name of the metric.

    Example:
        >>> history = History(loss=[2.0, 1.0, 0.5], val_accuracy=[0.5, 0.7, 0.7], test_accuracy=[0.4, 0.6, 0.8])
        >>> history.best_epoch, history.best_test_accuracy
        (2, 0.6)
    """

    outcome: Outcome = "finished"
    loss: list[float] = field(default_factory=list)
    val_accuracy: list[float] = field(default_factory=list)
    test_accuracy: list[float] = field(default_factory=list)
    seconds: float = 0.0
    reason: str = ""
    best_state: dict[str, Tensor] = field(default_factory=dict, repr=False)
    metric: str = "accuracy"

    @property
    def epochs(self) -> int:
        """Number of completed epochs."""
        return len(self.val_accuracy)

    @property
    def best_epoch(self) -> int:
        """The first epoch with the highest validation accuracy; 0 before the first epoch."""
        return self.val_accuracy.index(max(self.val_accuracy)) + 1 if self.val_accuracy else 0

    @property
    def best_val_accuracy(self) -> float:
        """The highest validation accuracy; NaN before the first epoch."""
        return max(self.val_accuracy) if self.val_accuracy else float("nan")

    @property
    def best_test_accuracy(self) -> float:
        """The result of the run: test accuracy at the best epoch; NaN before the first epoch."""
        return self.test_accuracy[self.best_epoch - 1] if self.val_accuracy else float("nan")

    def to_dict(self, curves: bool = True) -> dict[str, Any]:
        """Return everything but the weights as plain data, for JSON.

        Args:
            curves: whether to include the values of every epoch.

        Returns:
            Outcome, reason, seconds, curves and the best epoch with its accuracies (None before the first epoch).
        """
        data: dict[str, Any] = {"outcome": self.outcome, "reason": self.reason, "seconds": self.seconds}
        if self.metric != "accuracy":
            data["metric"] = self.metric
        if curves:
            data |= {name: list(getattr(self, name)) for name in ("loss", "val_accuracy", "test_accuracy")}
        return data | {
            "epochs": self.epochs,
            "best_epoch": self.best_epoch,
            "best_val_accuracy": self.best_val_accuracy if self.epochs else None,
            "best_test_accuracy": self.best_test_accuracy if self.epochs else None,
        }


@dataclass(frozen=True)
class TrainingState:
    """The complete state of a run between two epochs; a restored run gives the same numbers to the bit.

    Attributes:
        model: the model's ``state_dict``.
        optimizer: the optimizer's ``state_dict``.
        history: curves and the best model so far.
        random: state of torch's global generator, which dropout uses.

    Example:
        >>> from equipoise import Stack, initialize_, load_dataset
        >>> from equipoise.training.loop import train
        >>> data = load_dataset("synthetic-citation")
        >>> model = initialize_(Stack("gatv2", [data.num_features, 16, data.classes]), "bal-o")
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> state = TrainingState.snapshot(model, optimizer, train(model, data, optimizer=optimizer, epochs=2))
        >>> train(model, data, optimizer=optimizer, epochs=5, history=state.restore(model, optimizer)).epochs
        5
    """

    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    history: dict[str, Any]
    random: Tensor

    @classmethod
    def snapshot(cls, model: nn.Module, optimizer: Optimizer, history: History) -> TrainingState:
        """Copy the current state; call it between epochs.

        Args:
            model: the model.
            optimizer: its optimizer.
            history: the history so far.

        Returns:
            The state, independent of later steps.
        """
        model_state, optimizer_state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        return cls(model_state, optimizer_state, asdict(history), torch.get_rng_state())

    def restore(self, model: nn.Module, optimizer: Optimizer) -> History:
        """Load the state into a model, its optimizer and torch's global generator.

        Args:
            model: a model of the same architecture.
            optimizer: its optimizer, of the same class.

        Returns:
            The history to pass to :func:`~equipoise.train`.
        """
        model.load_state_dict(self.model)
        optimizer.load_state_dict(copy.deepcopy(self.optimizer))
        torch.set_rng_state(self.random)
        return History(**copy.deepcopy(self.history))

"""The result of a training run, and the state from which a run can be resumed."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

RENAMED = {"val_accuracy": "val_metric", "test_accuracy": "test_metric"}  # fields of states that were saved earlier

Outcome = Literal["finished", "converged", "stopped", "diverged", "interrupted"]


@dataclass
class History:
    """Loss and metrics per epoch, and the result of a training run.

    The result is the test metric at the first epoch with the highest validation metric. Epochs count from 1. Entry
    ``[t - 1]`` of a curve belongs to epoch t: the loss before the step of that epoch, the metrics after it.

    Attributes:
        outcome: ``"finished"`` (all epochs), ``"converged"`` (training loss at most ``stop_loss``), ``"stopped"``
            (validation metric no better for ``patience`` epochs), ``"diverged"`` (loss NaN or infinite), or
            ``"interrupted"`` (Ctrl-C).
        loss: training loss per epoch.
        val_metric: validation metric per epoch; accuracy is in [0, 1].
        test_metric: test metric per epoch.
        seconds: duration of the run.
        reason: details of the outcome, or an empty string.
        best_state: the model's ``state_dict`` after the best epoch.
        metric: name of the metric.

    Example:
        >>> history = History(loss=[2.0, 1.0, 0.5], val_metric=[0.5, 0.7, 0.7], test_metric=[0.4, 0.6, 0.8])
        >>> history.best_epoch, history.best_test_metric
        (2, 0.6)
    """

    outcome: Outcome = "finished"
    loss: list[float] = field(default_factory=list)
    val_metric: list[float] = field(default_factory=list)
    test_metric: list[float] = field(default_factory=list)
    seconds: float = 0.0
    reason: str = ""
    best_state: dict[str, Tensor] = field(default_factory=dict, repr=False)
    metric: str = "accuracy"

    @property
    def epochs(self) -> int:
        """Number of completed epochs."""
        return len(self.val_metric)

    @property
    def best_epoch(self) -> int:
        """The first epoch with the highest validation metric; 0 before the first epoch."""
        return self.val_metric.index(max(self.val_metric)) + 1 if self.val_metric else 0

    @property
    def best_val_metric(self) -> float:
        """The highest validation metric; NaN before the first epoch."""
        return max(self.val_metric) if self.val_metric else float("nan")

    @property
    def best_test_metric(self) -> float:
        """The result of the run: test metric at the best epoch; NaN before the first epoch."""
        return self.test_metric[self.best_epoch - 1] if self.val_metric else float("nan")

    # The names under which results, stores and CSV files keep the metric, whichever it is.
    @property
    def val_accuracy(self) -> list[float]:
        """The same as ``val_metric``."""
        return self.val_metric

    @property
    def test_accuracy(self) -> list[float]:
        """The same as ``test_metric``."""
        return self.test_metric

    @property
    def best_val_accuracy(self) -> float:
        """The same as ``best_val_metric``."""
        return self.best_val_metric

    @property
    def best_test_accuracy(self) -> float:
        """The same as ``best_test_metric``."""
        return self.best_test_metric

    def to_dict(self, curves: bool = True) -> dict[str, Any]:
        """Return everything but the weights as plain data, for JSON.

        Args:
            curves: whether to include the values of every epoch.

        Returns:
            Outcome, reason, seconds, name of the metric, curves and the best epoch with its metrics (None before the
            first epoch).
        """
        data: dict[str, Any] = {"outcome": self.outcome, "reason": self.reason, "seconds": self.seconds}
        data["metric"] = self.metric
        if curves:
            data |= {name: list(getattr(self, name)) for name in ("loss", "val_metric", "test_metric")}
        return data | {
            "epochs": self.epochs,
            "best_epoch": self.best_epoch,
            "best_val_metric": self.best_val_metric if self.epochs else None,
            "best_test_metric": self.best_test_metric if self.epochs else None,
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
        fields = {RENAMED.get(name, name): value for name, value in copy.deepcopy(self.history).items()}
        return History(**fields)

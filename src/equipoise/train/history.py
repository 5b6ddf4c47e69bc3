"""What a training run leaves behind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

Outcome = Literal["finished", "converged", "stopped", "diverged", "interrupted"]


@dataclass
class History:
    """Loss and accuracies epoch by epoch, and the result of the run.

    The result is the test accuracy at the first epoch with the highest validation accuracy. Epochs count from 1: entry
    ``[t - 1]`` of a curve belongs to epoch t, its loss before the step of that epoch, its accuracies after it.

    Attributes:
        outcome: ``"finished"`` all epochs, ``"converged"`` to the loss at which training stops, ``"stopped"``
            because validation accuracy got no better, ``"diverged"`` to a loss that is not finite, or ``"interrupted"``
            by the user.
        loss: training loss of every epoch.
        val_accuracy: validation accuracy of every epoch, in [0, 1].
        test_accuracy: test accuracy of every epoch, in [0, 1].
        seconds: how long it took.
        reason: where there is more to say about the outcome.
        best_state: the model's state_dict after the best epoch.

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

    @property
    def epochs(self) -> int:
        """How many epochs were run to their end."""
        return len(self.val_accuracy)

    @property
    def best_epoch(self) -> int:
        """The first epoch with the highest validation accuracy; 0 if there is none."""
        return self.val_accuracy.index(max(self.val_accuracy)) + 1 if self.val_accuracy else 0

    @property
    def best_val_accuracy(self) -> float:
        """The highest validation accuracy."""
        return max(self.val_accuracy) if self.val_accuracy else float("nan")

    @property
    def best_test_accuracy(self) -> float:
        """The result of the run: test accuracy at the best epoch."""
        return self.test_accuracy[self.best_epoch - 1] if self.val_accuracy else float("nan")

    def to_dict(self, curves: bool = True) -> dict[str, Any]:
        """Everything as plain data, for JSON."""
        data: dict[str, Any] = {"outcome": self.outcome, "reason": self.reason, "seconds": self.seconds}
        if curves:
            data |= {name: list(getattr(self, name)) for name in ("loss", "val_accuracy", "test_accuracy")}
        return data | {
            "epochs": self.epochs,
            "best_epoch": self.best_epoch,
            "best_val_accuracy": self.best_val_accuracy if self.epochs else None,
            "best_test_accuracy": self.best_test_accuracy if self.epochs else None,
        }

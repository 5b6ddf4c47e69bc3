"""Metrics of predictions: accuracy, area under the ROC curve, average precision, or a function of the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from equipoise.errors import ChoiceError, EquipoiseError, TrainingError, is_out_of_memory
from equipoise.laws.validation import describe_value, summarize_error

Metric = Callable[[Tensor, Tensor], float]


def accuracy(scores: Tensor, targets: Tensor) -> float:
    """Fraction of correct predictions.

    Args:
        scores: (N, classes); or (N,) and (N, 1) for binary targets, positive for class 1; or (N, labels) for targets of
            the same shape.
        targets: classes of shape (N,) or (N, 1), or zeros and ones of the shape of the scores.

    Returns:
        A number in [0, 1].

    Example:
        >>> import torch
        >>> accuracy(torch.tensor([[2.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 0]))
        0.5
        >>> accuracy(torch.tensor([-1.0, 3.0]), torch.tensor([0, 1]))
        1.0
    """
    return float(correct_predictions(scores, targets).double().mean())


def correct_predictions(scores: Tensor, targets: Tensor) -> Tensor:
    """Which predictions are correct; arguments are those of :func:`accuracy`."""
    if has_one_score_per_target(scores, targets):
        return (scores > 0) == (targets.view_as(scores) > 0.5)
    return scores.argmax(dim=-1) == targets.view(-1)


def roc_auc(scores: Tensor, targets: Tensor) -> float:
    """Area under the ROC curve, by torchmetrics; the mean over classes or labels if there are several."""
    return _torchmetrics("auroc", scores, targets)


def average_precision(scores: Tensor, targets: Tensor) -> float:
    """Average precision, by torchmetrics; the mean over classes or labels if there are several."""
    return _torchmetrics("average_precision", scores, targets)


METRICS: dict[str, Metric] = {"accuracy": accuracy, "roc_auc": roc_auc, "average_precision": average_precision}


def get_metric(metric: str | Metric) -> Metric:
    """Return the metric of this name, or the function itself.

    Args:
        metric: a key of ``METRICS``, or a function of scores and targets.

    Returns:
        A function of scores and targets that returns a float.

    Raises:
        ChoiceError: if the name is unknown.
        TrainingError: if the argument is neither a name nor a function.
    """
    if isinstance(metric, str):
        if metric not in METRICS:
            raise ChoiceError("metric", metric, METRICS)
        return METRICS[metric]
    if not callable(metric):
        raise TrainingError(
            f"expected a metric, got {type(metric).__name__}", remedy=f"pass a function or one of {', '.join(METRICS)}"
        )
    return lambda scores, targets: _call_metric(metric, scores, targets)


def _call_metric(metric: Callable[[Tensor, Tensor], Any], scores: Tensor, targets: Tensor) -> float:
    try:
        return float(metric(scores, targets))
    except Exception as error:
        if isinstance(error, EquipoiseError) or is_out_of_memory(error):
            raise
        raise TrainingError(
            f"metric(scores, targets) failed: {summarize_error(error)}",
            where=f"{metric_name(metric)}; scores {describe_value(scores)}, targets {describe_value(targets)}",
            remedy="metric= takes scores and targets and returns a number; functions of scikit-learn take targets and "
            "predicted classes: lambda scores, targets: f1_score(targets, scores.argmax(-1), average='macro')",
        ) from error


def metric_name(metric: str | Metric) -> str:
    """The name of a metric, for tables."""
    return metric if isinstance(metric, str) else str(getattr(metric, "__name__", type(metric).__name__))


def has_one_score_per_target(scores: Tensor, targets: Tensor) -> bool:
    """Whether scores are logits of zeros and ones: one per binary target, or one per label of a multi-label target."""
    return scores.numel() == targets.numel()


def _torchmetrics(name: str, scores: Tensor, targets: Tensor) -> float:
    try:
        from torchmetrics import functional  # noqa: PLC0415 - optional dependency
    except ImportError:
        raise EquipoiseError(
            f"the metric {name!r} needs torchmetrics", remedy="pip install 'equipoise[metrics]', or pass a function"
        ) from None
    settings: dict[str, Any]
    if not has_one_score_per_target(scores, targets):
        binary = scores.shape[-1] == 2
        scores = scores[:, 1] - scores[:, 0] if binary else scores
        settings = {"task": "binary"} if binary else {"task": "multiclass", "num_classes": scores.shape[-1]}
        targets = targets.view(-1)
    elif scores.dim() == 2 and scores.shape[1] > 1:
        settings = {"task": "multilabel", "num_labels": scores.shape[1]}
    else:
        settings = {"task": "binary"}
        scores, targets = scores.reshape(-1), targets.reshape(-1)
    # As numbers in [0, 1]: torchmetrics applies a sigmoid to anything else, which ties large logits.
    in_unit_range = scores.double().softmax(dim=-1) if settings["task"] == "multiclass" else _ranks(scores)
    return float(getattr(functional, name)(in_unit_range, targets.long(), **settings))


def _ranks(scores: Tensor) -> Tensor:
    """Ranks of the scores, from 0 to 1 with equal ranks for equal scores: both metrics depend on nothing else."""
    values, ranks = torch.unique(scores.detach(), return_inverse=True)
    unit: Tensor = ranks.double() / max(len(values) - 1, 1)
    return unit

"""What a model is trained on: how it is called, which rows of its output count, and their loss.

=============================  ==================================================  ===================================
data                           how the model is called                             rows
=============================  ==================================================  ===================================
one graph with masks           ``model(x, edge_index)``, or ``model(data)``        nodes of the mask
batch of a neighbour loader    the same                                            the first ``batch_size`` nodes
batch of graphs                the same, with ``batch=`` if ``forward`` has it     all: one per graph
graph with ``edge_label``      the same                                            all: one per labelled edge
=============================  ==================================================  ===================================

``model(data)`` is used if ``forward`` has a single required argument. Targets are ``y``, or ``edge_label`` if there is
one.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.errors import EquipoiseError, ForwardError, TrainingError, TrainingWarning, is_out_of_memory
from equipoise.laws.validation import describe_value, summarize_error
from equipoise.training.metrics import has_one_score_per_target

Loss = Callable[[nn.Module, Any], Tensor]
SPLITS = ("train", "val", "test")
LOSS_REMEDY = (
    "loss= is a function of the model and of the data or batch: "
    "lambda model, data: F.cross_entropy(model(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask])"
)


def takes_data(model: nn.Module) -> bool:
    """Whether the model is called as ``model(data)``: its ``forward`` has a single required argument."""
    required = [
        parameter
        for parameter in inspect.signature(model.forward).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(model.forward).parameters.values())
    return len(required) == 1 and not variadic


def model_caller(model: nn.Module) -> Callable[[Any, Tensor | None], Tensor]:
    """Return a function of a graph or batch, and of features to use instead of its own, that returns the scores.

    Args:
        model: the model; its signature decides how it is called.

    Returns:
        The function. It raises :class:`ForwardError` if the model fails or does not return a tensor.
    """
    whole, accepts_batch = takes_data(model), "batch" in inspect.signature(model.forward).parameters

    def call(data: Any, x: Tensor | None = None) -> Tensor:
        graphs = getattr(data, "batch", None) if accepts_batch else None
        options = {} if graphs is None else {"batch": graphs}
        try:
            scores = model(data) if whole else model(data.x if x is None else x, data.edge_index, **options)
        except Exception as error:
            if isinstance(error, EquipoiseError) or is_out_of_memory(error):
                raise
            raise ForwardError(
                f"{'model(data)' if whole else 'model(x, edge_index)'} failed: {summarize_error(error)}",
                where=type(model).__name__,
                remedy="it must take this graph and return one row of scores per target; a forward with a single "
                "required argument gets the whole graph",
            ) from error
        if not isinstance(scores, Tensor):
            raise ForwardError(
                f"the model returns {type(scores).__name__}, not a tensor of scores",
                where=type(model).__name__,
                remedy="return one tensor of scores",
            )
        return scores

    return call


def get_targets(data: Any) -> Tensor:
    """Return ``edge_label`` or ``y`` of a graph or batch, classes of shape (N, 1) as (N,)."""
    targets = getattr(data, "edge_label", None)
    targets = getattr(data, "y", None) if targets is None else targets
    if not isinstance(targets, Tensor):
        raise TrainingError("the data have no y", where=repr(data), remedy="set data.y, or pass loss=")
    if targets.is_meta:
        raise TrainingError("the targets are on the device meta", where=repr(data), remedy="pass a tensor with values")
    if targets.dim() == 2 and targets.shape[1] == 1:
        return targets.view(-1)
    return targets


def select_rows(data: Any, split: str, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Select the rows that belong to a split; see the table in this module's docstring.

    Args:
        data: a graph or batch.
        split: name of the split.
        tensors: scores or targets of the graph or batch.

    Returns:
        The rows of each tensor.

    Raises:
        TrainingError: if the split's mask is malformed, or does not have one entry per row.
    """
    if isinstance(size := getattr(data, "batch_size", None), int) and hasattr(data, "n_id"):
        return tuple(rows[:size] for rows in tensors)
    name = f"{split}_mask"
    mask = getattr(data, name, None)
    if mask is None or getattr(data, "edge_label", None) is not None:
        return tensors
    if not isinstance(mask, Tensor) or mask.dtype not in (torch.bool, torch.uint8) or mask.dim() != 1:
        raise TrainingError(
            f"{name} is {describe_value(mask)}, expected one boolean per node",
            where=name,
            remedy="pass a boolean tensor; torch_geometric.utils.index_to_mask converts indices",
        )
    if misfit := [tuple(rows.shape) for rows in tensors if rows.dim() == 0 or len(rows) != len(mask)]:
        raise TrainingError(
            f"{name} has {len(mask)} entries and does not fit a tensor of shape {misfit[0]}",
            where=name,
            remedy="mask, targets and scores need one row per node; without a mask, all rows count",
        )
    indices = mask.nonzero().view(-1)
    return tuple(rows[indices] for rows in tensors)


def default_loss(scores: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy of classes; binary cross-entropy where there is one score per target.

    Args:
        scores: (N, classes), or (N,), (N, 1) or (N, labels) logits.
        targets: (N,) classes, or zeros and ones, one per logit.
        reduction: ``"mean"`` or ``"sum"``.

    Returns:
        The mean or sum over the targets.

    Example:
        >>> default_loss(torch.zeros(2, 3), torch.tensor([0, 2]))
        tensor(1.0986)
        >>> default_loss(torch.zeros(2, 1), torch.tensor([0, 1]))
        tensor(0.6931)
    """
    if has_one_score_per_target(scores, targets):
        logits = targets.view_as(scores).to(scores.dtype)
        return F.binary_cross_entropy_with_logits(scores, logits, reduction=reduction)
    classes = targets if targets.is_floating_point() else targets.long()  # booleans and small integers are classes too
    return F.cross_entropy(scores, classes, reduction=reduction)


def check_targets(targets: Tensor, split: str, scores: Tensor | None = None) -> None:
    """Raise :class:`TrainingError` for targets that the default loss cannot use.

    Args:
        targets: targets of the split, as :func:`get_targets` returns them.
        split: name of the split, for the message.
        scores: the scores of these targets; without them only what does not depend on the model is checked.

    Raises:
        TrainingError: if targets are missing, of the wrong shape or type, or out of range.
    """
    where = f"{split}: targets of shape {tuple(targets.shape)}, {targets.dtype}"
    if not targets.numel():
        raise TrainingError(f"there is no target in the {split} set", where=where, remedy=f"check {split}_mask")
    if targets.is_complex():
        raise TrainingError("the targets are complex", where=where, remedy="pass classes, or numbers and loss=")
    integral = not targets.is_floating_point()
    if targets.is_floating_point() and not bool(torch.isfinite(targets).all()):
        raise TrainingError("some targets are NaN or infinite", where=where, remedy="mask them, or pass loss=")
    if integral and int(targets.min()) < 0:
        raise TrainingError(
            f"the label {int(targets.min())} is negative",
            where=where,
            remedy=f"exclude such nodes from the {split} set, or count labels from 0",
        )
    if scores is None:
        return
    check_rows(scores, targets, where)
    check_classes(targets, split, scores, has_one_score_per_target(scores, targets))


def check_rows(scores: Tensor, targets: Tensor, where: str) -> None:
    """Raise :class:`TrainingError` unless there is one row of scores per target."""
    if scores.dim() == 0 or len(scores) != len(targets):
        raise TrainingError(
            f"{len(targets)} targets need as many rows of scores",
            where=f"{where}; scores of shape {tuple(scores.shape)}",
            remedy="check the model's output and y",
        )


def check_classes(targets: Tensor, split: str, scores: Tensor, one_score: bool) -> None:
    """Raise :class:`TrainingError` for targets that do not fit the number of scores.

    Args:
        targets: targets of the split.
        split: name of the split, for the message.
        scores: scores of these or of other targets.
        one_score: whether there is one score per target: a logit of zeros and ones.

    Raises:
        TrainingError: if targets are of the wrong shape or type, or out of range.
    """
    where = f"{split}: targets of shape {tuple(targets.shape)}, {targets.dtype}; scores of shape {tuple(scores.shape)}"
    if one_score:
        if not bool(((targets == 0) | (targets == 1)).all()):
            raise TrainingError(
                "one score per target is a logit, and its target 0 or 1",
                where=f"{where}; targets from {targets.min().item():g} to {targets.max().item():g}",
                remedy="return one score per class, or pass loss= for regression",
            )
    elif targets.dim() != 1 or targets.is_floating_point():
        raise TrainingError(
            "cross-entropy needs one class per row, as integers of shape (N,) or (N, 1)",
            where=where,
            remedy="convert y (data.y = data.y.argmax(-1), data.y = data.y.long()), or pass loss=",
        )
    elif int(targets.max()) >= scores.shape[-1]:
        raise TrainingError(
            f"the label {int(targets.max())} is out of range for {scores.shape[-1]} classes",
            where=where,
            remedy="labels count from 0: use as many outputs as classes, or relabel y",
        )


def warn_of_one_hot(targets: Tensor) -> None:
    """Warn if targets of several labels per row have exactly one label in every row: classes, one-hot encoded."""
    if targets.dim() == 2 and len(targets) and targets.shape[1] > 1 and bool((targets.sum(dim=1) == 1).all()):
        warnings.warn(
            f"every row of y, of shape {tuple(targets.shape)}, has exactly one 1. Each column is trained and measured "
            "as a label of its own; for one class per row, set data.y = data.y.argmax(-1)",
            TrainingWarning,
            stacklevel=2,
        )


def check_loss(loss: Any) -> None:
    """Raise :class:`TrainingError` unless the argument is a function or None."""
    if loss is not None and not callable(loss):
        raise TrainingError(f"expected a loss function, got {describe_value(loss)}", remedy=LOSS_REMEDY)


def custom_loss(loss: Loss, model: nn.Module, data: Any) -> Tensor:
    """Return ``loss(model, data)``, or raise :class:`TrainingError` if it is not a scalar tensor."""
    try:
        value = loss(model, data)
    except TypeError as error:
        raise TrainingError(f"loss(model, data) failed: {summarize_error(error)}", remedy=LOSS_REMEDY) from error
    if not isinstance(value, Tensor) or value.numel() != 1:
        described = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise TrainingError(f"loss= returned {described}, not a scalar tensor", remedy="reduce it: loss.mean()")
    if torch.is_grad_enabled() and not value.requires_grad:
        raise TrainingError(
            "loss= returned a tensor without a gradient",
            remedy="compute it from the outputs of the model, without .detach(), .item() or torch.no_grad()",
        )
    return value

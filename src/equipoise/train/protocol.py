"""One run of the paper's protocol, from top to bottom.

Full batch; cross-entropy on the training nodes; after each step validation and test accuracy in evaluation mode; until
the epochs are over or the training loss is at most 1e-4. The result is the test accuracy at the first epoch with the
highest validation accuracy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch_geometric.data import Data

from equipoise.errors import ChoiceError, TrainingError
from equipoise.train.history import History
from equipoise.train.recorder import Recorder

OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": SGD, "adam": Adam}
STOP_LOSS = 1e-4  # the paper's text; the authors' script has 1e-5

OnEpoch = Callable[[int, History], None]


def train(
    model: nn.Module,
    data: Data,
    *,
    optimizer: str | Optimizer = "sgd",
    lr: float | None = None,
    epochs: int = 5000,
    weight_decay: float = 0.0,
    stop_loss: float = STOP_LOSS,
    on_gradients: OnEpoch | None = None,
    on_epoch: OnEpoch | None = None,
    record: Recorder | None = None,
) -> History:
    """Train a node classifier on one graph and return what happened.

    Same start and same random state give the same numbers to the bit. A loss that is not finite ends the run as
    *diverged*; Ctrl-C ends it as *interrupted* with what is there.

    Args:
        model: called as ``model(data.x, data.edge_index)``; returns a score for every node and class.
        data: a graph with ``x``, ``edge_index``, ``y``, ``train_mask``, ``val_mask`` and ``test_mask``.
        optimizer: ``"sgd"`` (plain gradient descent), ``"adam"``, or a torch optimizer of the model's parameters.
        lr: the rate, where the optimizer is given by name.
        epochs: how many at most.
        weight_decay: L2 penalty, added to the gradient, where the optimizer is given by name.
        stop_loss: training loss at which the run is over.
        on_gradients: called as ``on_gradients(epoch, history)`` after each backward pass, before the step.
        on_epoch: called as ``on_epoch(epoch, history)`` at the end of each epoch.
        record: watches gradients, balance and representations as they go on.

    Example:
        >>> from equipoise import Stack, initialize_, load_dataset
        >>> data = load_dataset("synthetic-citation")
        >>> model = initialize_(Stack("gatv2", [data.num_features, 16, data.classes]), "bal-o")
        >>> train(model, data, lr=0.1, epochs=3).epochs
        3
    """
    _check(model, data, epochs)
    stepper = _optimizer(optimizer, model, lr, weight_decay)
    if record is not None:
        record.watch(stepper)
    history, start = History(), time.perf_counter()
    try:
        once = _same_in_both_modes(model, data)
        scores = None
        for epoch in range(1, epochs + 1):
            if scores is None:
                scores = _scores(model, data, training=True)
            loss = F.cross_entropy(scores[data.train_mask], data.y[data.train_mask])
            if not math.isfinite(loss.item()):
                history.outcome, history.reason = "diverged", f"the loss is {loss.item()} at epoch {epoch}"
                break
            stepper.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            if on_gradients is not None:
                on_gradients(epoch, history)
            if record is not None:
                record.step(epoch, loss=loss.item())
            stepper.step()
            # Without dropout and the like, the evaluation after this step is the forward pass of the next one.
            scores = _scores(model, data, training=True) if once else None
            evaluated = _scores(model, data, training=False) if scores is None else scores.detach()
            history.loss.append(loss.item())
            history.val_accuracy.append(_accuracy(evaluated, data.y, data.val_mask))
            history.test_accuracy.append(_accuracy(evaluated, data.y, data.test_mask))
            if history.best_epoch == epoch:
                history.best_state = {name: value.detach().clone() for name, value in model.state_dict().items()}
            if on_epoch is not None:
                on_epoch(epoch, history)
            if loss.item() <= stop_loss:
                history.outcome, history.reason = "converged", f"the training loss is {loss.item():.1e}"
                break
    except KeyboardInterrupt:
        history.outcome = "interrupted"
    history.seconds = time.perf_counter() - start
    if record is not None:
        record.finish(history)
    return history


def _scores(model: nn.Module, data: Data, *, training: bool) -> Tensor:
    model.train(training)
    with torch.set_grad_enabled(training):
        scores: Tensor = model(data.x, data.edge_index)
    return scores


def _accuracy(scores: Tensor, y: Tensor, mask: Tensor) -> float:
    return float((scores[mask].argmax(dim=-1) == y[mask]).double().mean())


def _same_in_both_modes(model: nn.Module, data: Data) -> bool:
    """Whether training mode computes what evaluation mode does, to the bit: no dropout, no batch statistics."""
    state = torch.get_rng_state()
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    same = torch.equal(_scores(model, data, training=True).detach(), _scores(model, data, training=False))
    for name, buffer in model.named_buffers():
        buffer.copy_(kept[name])
    torch.set_rng_state(state)
    return same


def _optimizer(optimizer: str | Optimizer, model: nn.Module, lr: float | None, weight_decay: float) -> Optimizer:
    if isinstance(optimizer, Optimizer):
        if lr is not None or weight_decay:
            raise TrainingError(
                "an optimizer that is given has its own rate and weight decay", remedy="leave out lr= and weight_decay="
            )
        return optimizer
    if optimizer not in OPTIMIZERS:
        raise ChoiceError("optimizer", optimizer, OPTIMIZERS)
    if lr is None or not lr > 0:
        raise TrainingError(f"{optimizer} needs a rate above 0, got lr={lr}", remedy="train(model, data, lr=0.05, …)")
    return OPTIMIZERS[optimizer](model.parameters(), lr=lr, weight_decay=weight_decay)  # type: ignore[call-arg]


def _check(model: nn.Module, data: Data, epochs: int) -> None:
    if not isinstance(model, nn.Module):
        raise TrainingError(f"expected a torch.nn.Module, got {type(model).__name__}")
    missing = [
        n for n in ("x", "edge_index", "y", "train_mask", "val_mask", "test_mask") if getattr(data, n, None) is None
    ]
    if missing:
        raise TrainingError(
            f"the data have no {', '.join(missing)}",
            where=repr(data),
            remedy="a node classification graph needs them; load_dataset returns one",
        )
    for name in ("train_mask", "val_mask", "test_mask"):
        if getattr(data, name).dim() != 1:
            raise TrainingError(
                f"{name} has {getattr(data, name).dim()} dimensions",
                remedy=f"choose one split: data.{name} = data.{name}[:, 1]",
            )
    if epochs < 1:
        raise TrainingError(f"epochs must be at least 1, got {epochs}")

"""One run of the paper's protocol, from top to bottom.

Full batch; cross-entropy on the training nodes; after each step validation and test accuracy in evaluation mode; until
the epochs are over or the training loss is at most 1e-4. The result is the test accuracy at the first epoch with the
highest validation accuracy. A run may also stop where validation accuracy gets no better, and be taken up again later.
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
from equipoise.kernels.denormals import denormals_as_zero
from equipoise.train.features import features_for, trial
from equipoise.train.history import History
from equipoise.train.recorder import Recorder

OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": SGD, "adam": Adam}
STOP_LOSS = 1e-4  # the paper's text; the authors' script has 1e-5

OnEpoch = Callable[[int, History], None]


@denormals_as_zero()
def train(
    model: nn.Module,
    data: Data,
    *,
    optimizer: str | Optimizer = "sgd",
    lr: float | None = None,
    epochs: int = 5000,
    weight_decay: float = 0.0,
    stop_loss: float = STOP_LOSS,
    patience: int | None = None,
    history: History | None = None,
    on_gradients: OnEpoch | None = None,
    on_epoch: OnEpoch | None = None,
    record: Recorder | None = None,
) -> History:
    """Train a node classifier on one graph and return what happened.

    Same start and same random state give the same numbers to the bit. A loss that is not finite ends the run as
    *diverged*; Ctrl-C ends it as *interrupted* with what is there. Meanwhile numbers below 1e-38 count as zero: deep
    networks are full of them, and they cost ten times the time of all others.

    Args:
        model: called as ``model(data.x, data.edge_index)``; returns a score for every node and class.
        data: a graph with ``x``, ``edge_index``, ``y``, ``train_mask``, ``val_mask`` and ``test_mask``.
        optimizer: ``"sgd"`` (plain gradient descent), ``"adam"``, or a torch optimizer of the model's parameters.
        lr: the rate, where the optimizer is given by name.
        epochs: how many at most.
        weight_decay: L2 penalty, added to the gradient, where the optimizer is given by name.
        stop_loss: training loss at which the run is over.
        patience: epochs without a better validation accuracy after which it is over, too; None for no such limit.
        history: of a run to go on with, whose model, optimizer and random state are as they were after its last epoch
            (:class:`~equipoise.train.state.TrainingState`); the numbers are those of a run without a pause.
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
    _check(model, data, epochs, patience)
    stepper = _optimizer(optimizer, model, lr, weight_decay)
    if record is not None:
        record.watch(stepper)
    history = History() if history is None else history
    history.outcome, history.reason = "finished", ""
    start = time.perf_counter() - history.seconds
    try:
        nodes = {split: data[f"{split}_mask"].nonzero().view(-1) for split in ("train", "val", "test")}
        labels = {split: data.y[chosen] for split, chosen in nodes.items()}
        x = features_for(model, data)
        once = _same_in_both_modes(model, x, data)
        scores = None
        while not _is_over(history, epochs, stop_loss, patience):
            epoch = history.epochs + 1
            if scores is None:
                scores = _scores(model, x, data, training=True)
            loss = F.cross_entropy(scores.index_select(0, nodes["train"]), labels["train"])
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
            scores = _scores(model, x, data, training=True) if once else None
            evaluated = _scores(model, x, data, training=False) if scores is None else scores.detach()
            history.loss.append(loss.item())
            history.val_accuracy.append(_accuracy(evaluated, nodes["val"], labels["val"]))
            history.test_accuracy.append(_accuracy(evaluated, nodes["test"], labels["test"]))
            if history.best_epoch == epoch:
                history.best_state = {name: value.detach().clone() for name, value in model.state_dict().items()}
            history.seconds = time.perf_counter() - start
            if on_epoch is not None:
                on_epoch(epoch, history)
    except KeyboardInterrupt:
        history.outcome = "interrupted"
    history.seconds = time.perf_counter() - start
    if record is not None:
        record.finish(history)
    return history


def _is_over(history: History, epochs: int, stop_loss: float, patience: int | None) -> bool:
    """Whether the epochs so far are all, asked before each epoch; says why in the history."""
    if history.loss and history.loss[-1] <= stop_loss:
        history.outcome, history.reason = "converged", f"the training loss is {history.loss[-1]:.1e}"
    elif patience is not None and history.epochs - history.best_epoch >= patience:
        history.outcome, history.reason = "stopped", f"no better validation accuracy for {patience} epochs"
    else:
        return history.epochs >= epochs
    return True


def _scores(model: nn.Module, x: Tensor, data: Data, *, training: bool) -> Tensor:
    if model.training != training:
        model.train(training)
    with torch.set_grad_enabled(training):
        scores: Tensor = model(x, data.edge_index)
    return scores


def _accuracy(scores: Tensor, nodes: Tensor, labels: Tensor) -> float:
    return float((scores.index_select(0, nodes).argmax(dim=-1) == labels).double().mean())


def _same_in_both_modes(model: nn.Module, x: Tensor, data: Data) -> bool:
    """Whether training mode computes what evaluation mode does, to the bit: no dropout, no batch statistics.

    Scores that are equal now may differ later, a dead network's for one; so a forward pass must draw no random numbers
    and change no buffer, either. A run that is taken up again then gets the same answer as at its start.
    """
    with trial(model) as untouched:
        scores = _scores(model, x, data, training=True).detach()
        return untouched() and torch.equal(scores, _scores(model, x, data, training=False))


def _optimizer(optimizer: str | Optimizer, model: nn.Module, lr: float | None, weight_decay: float) -> Optimizer:
    if isinstance(optimizer, Optimizer):
        if lr is not None or weight_decay:
            raise TrainingError(
                "an optimizer that is given has its own rate and weight decay", remedy="leave out lr= and weight_decay="
            )
        return optimizer
    return named_optimizer(optimizer, model, lr, weight_decay)


def named_optimizer(name: str, model: nn.Module, lr: float | None, weight_decay: float = 0.0) -> Optimizer:
    """The optimizer of this name for a model's parameters."""
    if name not in OPTIMIZERS:
        raise ChoiceError("optimizer", name, OPTIMIZERS)
    if lr is None or not lr > 0:
        raise TrainingError(f"{name} needs a rate above 0, got lr={lr}", remedy="train(model, data, lr=0.05, …)")
    return OPTIMIZERS[name](model.parameters(), lr=lr, weight_decay=weight_decay, foreach=True)  # type: ignore[call-arg]


def _check(model: nn.Module, data: Data, epochs: int, patience: int | None) -> None:
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
    if patience is not None and patience < 1:
        raise TrainingError(f"patience must be at least 1 epoch, got {patience}")

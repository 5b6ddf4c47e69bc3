"""Training: the paper's protocol by default, and any other loss, metric, optimizer or loader.

The protocol is full batch; cross-entropy on the training nodes; validation and test accuracy in evaluation mode after
each step; until the last epoch or a training loss of at most 1e-4. The result is the test accuracy at the first epoch
with the highest validation accuracy. A run can also stop early on validation accuracy, and be resumed later.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch_geometric.data import Data

from equipoise.distributed.parts.part import Part
from equipoise.distributed.process_group import TIMEOUT
from equipoise.errors import TrainingError
from equipoise.kernels.denormals import flush_denormals
from equipoise.laws.validation import is_integer, is_number
from equipoise.training.history import History
from equipoise.training.metrics import Metric, get_metric, metric_name
from equipoise.training.optimizers import OptimizerFactory, ScheduleFactory, advance, get_optimizer, get_schedule
from equipoise.training.part_source import PartSource
from equipoise.training.rebalancer import Rebalancer
from equipoise.training.recorder import Recorder
from equipoise.training.sources import FullBatch, Loaders
from equipoise.training.task import Loss, check_loss

STOP_LOSS = 1e-4  # from the paper's text; the authors' script uses 1e-5

EpochCallback = Callable[[int, History], None]
Source = FullBatch | Loaders | PartSource


@flush_denormals()
def train(
    model: nn.Module,
    data: Data | Part | Mapping[str, Iterable[Any]],
    *,
    loss: Loss | None = None,
    metric: str | Metric = "accuracy",
    optimizer: str | Optimizer | OptimizerFactory = "sgd",
    lr: float | None = None,
    epochs: int = 5000,
    weight_decay: float = 0.0,
    schedule: LRScheduler | ScheduleFactory | None = None,
    clip: float | None = None,
    rebalance: Rebalancer | None = None,
    stop_loss: float = STOP_LOSS,
    patience: int | None = None,
    history: History | None = None,
    on_gradients: EpochCallback | None = None,
    on_epoch: EpochCallback | None = None,
    record: Recorder | None = None,
    sparse_features: bool | None = None,
    timeout: float = TIMEOUT,
) -> History:
    r"""Train a model on one graph, full batch, or on loaders of batches.

    Each step minimises the cross-entropy of the training nodes,

    .. math::
        \mathcal{L} = -\frac{1}{|V_\mathrm{train}|} \sum_{v \in V_\mathrm{train}} \log \mathrm{softmax}(f(x)_v)_{y_v},

    the binary cross-entropy if the model returns one score per target, or any ``loss``. After each epoch, validation
    and test metric are computed in evaluation mode. The same initial weights and random state give the same numbers to
    the bit. Labels that are out of range or of the wrong shape raise an error before the first step; those of a loader
    too, for up to 10,000 graphs in memory. A loss that is NaN or infinite ends the run as ``"diverged"``; Ctrl-C ends
    it as ``"interrupted"`` and keeps the history.

    On one graph with the default loss, the model is called twice per epoch: in training mode for the step and in
    evaluation mode for the metrics. If the training pass of the second epoch equals the preceding evaluation to the
    bit, draws no random numbers and changes no buffer (no dropout, no batch norm), then later epochs call the model
    once: the evaluation is also the forward pass of the next step. Results do not depend on this. Such a model is left
    in training mode, any other in evaluation mode.

    On a part of a graph (:func:`~equipoise.load_part`), all ranks train one network on the whole graph. Each calls
    ``train`` with its own part and the same model, weights and settings, and gets the same history, apart from
    ``seconds``. The loss curve is that of one process up to rounding. A ``loss`` then returns the rank's share: the
    loss is the sum over ranks. Gradients are summed before ``on_gradients``.

    Denormal numbers are flushed to zero during training: gradients of deep networks contain many, and they slow down
    matrix products by a factor of ten.

    Args:
        model: called as ``model(x, edge_index)``, with ``batch=`` for batches of graphs if ``forward`` has it, or as
            ``model(data)`` if ``forward`` has a single required argument. Returns scores of shape (N, classes), or (N,)
            or (N, 1) for binary targets.
        data: a graph with ``x``, ``edge_index``, ``y``, ``train_mask``, ``val_mask`` and ``test_mask``; or loaders of
            batches ``{"train": …, "val": …, "test": …}``; or this rank's part of a graph. Of a batch from a neighbour
            loader the first ``batch_size`` nodes count, of any other the nodes of the split's mask, or all rows without
            a mask. Targets are ``edge_label`` where a batch has it, else ``y``, of shape (N,) or (N, 1).
        loss: function of the model and of the graph or batch that returns a scalar tensor; by default as above.
        metric: ``"accuracy"``, ``"roc_auc"``, ``"average_precision"`` (the last two need torchmetrics), or a function
            of scores and targets. Higher is better.
        optimizer: ``"sgd"`` (plain gradient descent), ``"adam"`` or another name of ``OPTIMIZERS``; a torch optimizer
            of the model's parameters; or a function of the parameters that returns one.
        lr: learning rate; required if the optimizer is given by name.
        epochs: maximum number of epochs.
        weight_decay: L2 penalty, added to the gradient; only if the optimizer is given by name.
        schedule: learning-rate schedule of the optimizer, or a function of the optimizer that returns one. It advances
            once per epoch; ``ReduceLROnPlateau`` follows the training loss. A resumed run starts a new one.
        clip: maximum norm of the gradient of all parameters together; None does not clip.
        rebalance: rebalancer of the model's laws; it acts between backward pass and clipping.
        stop_loss: training loss at which the run ends as ``"converged"``.
        patience: number of epochs without a better validation metric after which the run ends as ``"stopped"``; None
            for no limit.
        history: history of the run to resume. Model, optimizer and random state must be as they were after its last
            epoch (see :class:`~equipoise.training.history.TrainingState`); the numbers then equal those of an
            uninterrupted run.
        on_gradients: called as ``on_gradients(epoch, history)`` after each backward pass, before the step.
        on_epoch: called as ``on_epoch(epoch, history)`` at the end of each epoch. It must not change the weights.
        record: a recorder of this model; it measures gradients, balance and representations. Its epochs are steps.
        sparse_features: whether the model gets ``data.x`` as a sparse CSR tensor. None: if the model is a
            :class:`~equipoise.Stack`, which supports sparse input, and at most 20 % of ``data.x`` is non-zero. True:
            always, for any model that supports sparse input. False: never. Loaders: batches as they are.
        timeout: seconds that a rank waits for the others in one exchange before it raises an error; parts only.

    Returns:
        The history of the run: loss and metrics per epoch, outcome, and the best model's ``state_dict``.

    Raises:
        TrainingError: if the model, the data, a label or a setting is invalid; the message names it.
        ChoiceError: if the optimizer's or the metric's name is unknown.
        DistributedError: if ranks, parts or weights do not match, or another rank fails.

    Example:
        >>> from equipoise import Stack, initialize_, load_dataset
        >>> data = load_dataset("synthetic-citation")
        >>> model = initialize_(Stack("gatv2", [data.num_features, 16, data.classes]), "bal-o")
        >>> history = train(model, data, lr=0.1, epochs=3)
        >>> history.epochs, history.outcome
        (3, 'finished')
    """
    _check_arguments(model, epochs, patience, clip, stop_loss)
    check_loss(loss)
    _check_attachments(model, rebalance, record, history, {"on_gradients": on_gradients, "on_epoch": on_epoch})
    source: Source
    if isinstance(data, Mapping):
        source = Loaders(model, data, get_metric(metric), loss)
    elif isinstance(data, Part):
        _refuse_recorder(record)
        source = PartSource(model, data, get_metric(metric), loss, sparse_features, timeout=timeout)
    else:
        source = FullBatch(model, data, get_metric(metric), loss, sparse_features)
    torch_optimizer = get_optimizer(optimizer, model, lr, weight_decay)
    scheduler = get_schedule(schedule, torch_optimizer)
    if record is not None:
        record.attach(torch_optimizer)
    if rebalance is not None:
        rebalance.attach(torch_optimizer)
    history = History(metric=metric_name(metric)) if history is None else history
    if history.metric != metric_name(metric):
        raise TrainingError(
            f"the history has the metric {history.metric!r}, and the run {metric_name(metric)!r}",
            remedy="continue with the same metric, or start without history=",
        )
    history.outcome, history.reason = "finished", ""
    callback = None if on_gradients is None else lambda: on_gradients(history.epochs + 1, history)
    sum_gradients = source.sum_gradients if isinstance(source, PartSource) else None
    stepper = Stepper(
        model, torch_optimizer, scheduler, rebalance, clip, record, callback, sum_gradients, steps=history.epochs
    )
    start, best = time.perf_counter() - history.seconds, history.best_val_metric
    try:
        while not _should_stop(history, epochs, stop_loss, patience):
            epoch = history.epochs + 1
            losses = list(stepper.run_epoch(source))
            if not math.isfinite(losses[-1]):
                history.outcome, history.reason = "diverged", f"the loss is {losses[-1]} at epoch {epoch}"
                break
            val, test = source.evaluate()
            history.loss.append(stepper.mean_loss)
            history.val_metric.append(val)
            history.test_metric.append(test)
            if epoch == 1 or val > best:  # as `history.best_epoch`, which searches all epochs
                best = val
                history.best_state = {name: value.detach().clone() for name, value in model.state_dict().items()}
            history.seconds = time.perf_counter() - start
            if on_epoch is not None:
                on_epoch(epoch, history)
    except KeyboardInterrupt:
        history.outcome = "interrupted"
    history.seconds = time.perf_counter() - start
    if record is not None:
        record.finish(history, model)
    return history


@dataclass
class Stepper:
    """The steps of a run: what happens between backward pass and optimizer step, and the schedule after an epoch.

    Attributes:
        model: the model.
        optimizer: its optimizer.
        schedule: learning-rate schedule; advances after each epoch.
        rebalance: rebalancer, before clipping.
        clip: maximum norm of the gradient.
        record: recorder, of the clipped gradient.
        on_gradients: called after each backward pass.
        sum_gradients: sums gradients over ranks after each backward pass; None on one process.
        steps: number of steps taken.
        mean_loss: mean loss of the last complete epoch over its targets.
    """

    model: nn.Module
    optimizer: Optimizer
    schedule: LRScheduler | None = None
    rebalance: Rebalancer | None = None
    clip: float | None = None
    record: Recorder | None = None
    on_gradients: Callable[[], None] | None = None
    sum_gradients: Callable[[], None] | None = None
    steps: int = 0
    mean_loss: float = math.nan

    def run_epoch(self, source: Source) -> Iterator[float]:
        """Take the steps of one epoch.

        Args:
            source: the losses of the epoch.

        Yields:
            The loss of each step; one that is not finite, instead of a step, is the last.

        Raises:
            TrainingError: if there is no step.
        """
        total, count = 0.0, 0
        for loss, targets in source.losses():
            value = loss.item()
            if not math.isfinite(value):
                yield value
                return
            self.step(loss, value)
            total, count = total + targets * value, count + targets
            yield value
        if not count:
            raise TrainingError("the loader train has no batch", remedy="use a list or a loader, not an iterator")
        self.mean_loss = total / count
        if self.schedule is not None:
            advance(self.schedule, self.mean_loss)

    def step(self, loss: Tensor, value: float) -> None:
        """Take one step: backward pass, rebalancing, clipping, record, optimizer step.

        Args:
            loss: the loss.
            value: its value, for the record.

        Raises:
            TrainingError: if the loss does not depend on trainable parameters.
        """
        if not loss.requires_grad:
            raise TrainingError(
                "the loss does not depend on trainable parameters",
                where=type(self.model).__name__,
                remedy="remove no_grad() and detach() from forward, and call requires_grad_() on parameters to train",
            )
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self.sum_gradients is not None:
            self.sum_gradients()
        self.steps += 1
        if self.on_gradients is not None:
            self.on_gradients()
        if self.rebalance is not None:
            self.rebalance.step()
        if self.clip is not None:
            clip_grad_norm_(self.model.parameters(), self.clip)
        if self.record is not None:
            self.record.step(self.steps, loss=value)
        self.optimizer.step()


def _should_stop(history: History, epochs: int, stop_loss: float, patience: int | None) -> bool:
    """Check the stopping criteria before an epoch, and write the outcome to the history."""
    if history.loss and history.loss[-1] <= stop_loss:
        history.outcome, history.reason = "converged", f"the training loss is {history.loss[-1]:.1e}"
    elif patience is not None and history.epochs - history.best_epoch >= patience:
        history.outcome, history.reason = "stopped", f"no better validation {history.metric} for {patience} epochs"
    else:
        return history.epochs >= epochs
    return True


def _check_arguments(model: nn.Module, epochs: int, patience: int | None, clip: float | None, stop_loss: float) -> None:
    if not isinstance(model, nn.Module):
        raise TrainingError(f"expected a torch.nn.Module, got {type(model).__name__}")
    if not is_integer(epochs) or epochs < 1:
        raise TrainingError(f"epochs must be an integer of at least 1, got {epochs!r}")
    if patience is not None and (not is_integer(patience) or patience < 1):
        raise TrainingError(f"patience must be an integer of at least 1 epoch, got {patience!r}")
    if not is_number(stop_loss):
        raise TrainingError(f"stop_loss must be a number, got {stop_loss!r}", remedy="0 trains for all epochs")
    check_clip(clip)


def _check_attachments(
    model: nn.Module,
    rebalance: Rebalancer | None,
    record: Recorder | None,
    history: History | None,
    callbacks: Mapping[str, EpochCallback | None],
) -> None:
    for name, callback in callbacks.items():
        if callback is not None and not callable(callback):
            raise TrainingError(
                f"expected a function for {name}, got {type(callback).__name__}",
                remedy=f"pass {name}=lambda epoch, history: …",
            )
    if history is not None and not isinstance(history, History):
        raise TrainingError(
            f"expected a history, got {type(history).__name__}", remedy="pass the result of an earlier train(…)"
        )
    if rebalance is not None and not isinstance(rebalance, Rebalancer):
        raise TrainingError(
            f"expected a rebalancer, got {type(rebalance).__name__}",
            remedy="pass rebalance=Rebalancer(discover(model, *inputs), every=10)",
        )
    if record is not None and not isinstance(record, Recorder):
        raise TrainingError(
            f"expected a recorder, got {type(record).__name__}", remedy="pass record=Recorder(model, laws, every=25)"
        )
    if record is not None and not set(record.model.parameters()) <= set(model.parameters()):
        raise TrainingError(
            "the recorder belongs to another model",
            where=type(record.model).__name__,
            remedy="build it from the model that is trained, or from a module of it",
        )


def check_clip(clip: float | None) -> None:
    """Raise :class:`TrainingError` unless the norm is positive or None."""
    if clip is not None and (not is_number(clip) or not clip > 0):
        raise TrainingError(f"clip must be a positive norm, got {clip!r}")


def _refuse_recorder(record: Recorder | None) -> None:
    if record is not None:
        raise TrainingError(
            "a recorder measures representations of all nodes, and a rank has only its own",
            remedy="measure in on_gradients, where gradients are summed: residual(laws), imbalance(laws)",
        )

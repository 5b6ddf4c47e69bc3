"""The paper's training protocol.

Full batch; cross-entropy on the training nodes; validation and test accuracy in evaluation mode after each step; until
the last epoch or a training loss of at most 1e-4. The result is the test accuracy at the first epoch with the highest
validation accuracy. A run can also stop early on validation accuracy, and be resumed later.
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
from equipoise.kernels.denormals import flush_denormals
from equipoise.nn.sparse_linear import to_csr_tensor
from equipoise.nn.stack import Stack
from equipoise.training.history import History
from equipoise.training.recorder import Recorder

OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": SGD, "adam": Adam}
STOP_LOSS = 1e-4  # from the paper's text; the authors' script uses 1e-5
MAX_SPARSE_DENSITY = 0.1  # fraction of non-zero entries above which a dense product is faster

EpochCallback = Callable[[int, History], None]


@flush_denormals()
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
    on_gradients: EpochCallback | None = None,
    on_epoch: EpochCallback | None = None,
    record: Recorder | None = None,
    sparse_features: bool | None = None,
) -> History:
    r"""Train a node classifier on one graph, full batch.

    Each epoch takes one step on the cross-entropy of the training nodes,

    .. math::
        \mathcal{L} = -\frac{1}{|V_\mathrm{train}|} \sum_{v \in V_\mathrm{train}} \log \mathrm{softmax}(f(x)_v)_{y_v},

    then computes validation and test accuracy in evaluation mode. The same initial weights and random state give the
    same numbers to the bit. A loss that is NaN or infinite ends the run as ``"diverged"``; Ctrl-C ends it as
    ``"interrupted"`` and keeps the history.

    The model is called twice per epoch: in training mode for the step and in evaluation mode for the accuracies. If the
    training pass of the second epoch equals the preceding evaluation to the bit, draws no random numbers and changes no
    buffer (no dropout, no batch norm), then later epochs call the model once: the evaluation is also the forward pass
    of the next step. Results do not depend on this. Such a model is left in training mode, any other in evaluation
    mode.

    Denormal numbers are flushed to zero during training: gradients of deep networks contain many, and they slow down
    matrix products by a factor of ten.

    Args:
        model: called as ``model(x, data.edge_index)``; returns scores of shape (nodes, classes).
        data: a graph with ``x``, ``edge_index``, ``y``, ``train_mask``, ``val_mask`` and ``test_mask``.
        optimizer: ``"sgd"`` (plain gradient descent), ``"adam"``, or a torch optimizer of the model's parameters.
        lr: learning rate; required if the optimizer is given by name.
        epochs: maximum number of epochs.
        weight_decay: L2 penalty, added to the gradient; only if the optimizer is given by name.
        stop_loss: training loss at which the run ends as ``"converged"``.
        patience: number of epochs without a better validation accuracy after which the run ends as ``"stopped"``; None
            for no limit.
        history: history of the run to resume. Model, optimizer and random state must be as they were after its last
            epoch (see :class:`~equipoise.training.history.TrainingState`); the numbers then equal those of an
            uninterrupted run.
        on_gradients: called as ``on_gradients(epoch, history)`` after each backward pass, before the step.
        on_epoch: called as ``on_epoch(epoch, history)`` at the end of each epoch. It must not change the weights.
        record: a recorder of this model; it measures gradients, balance and representations.
        sparse_features: whether the model gets ``data.x`` as a sparse CSR tensor. None: if the model is a
            :class:`~equipoise.Stack`, which supports sparse input, and at most 10 % of ``data.x`` is non-zero. True:
            always, for any model that supports sparse input. False: never.

    Returns:
        The history of the run: loss and accuracies per epoch, outcome, and the best model's ``state_dict``.

    Raises:
        TrainingError: if the model, the data or a setting is invalid; the message names it.
        ChoiceError: if the optimizer's name is unknown.

    Example:
        >>> from equipoise import Stack, initialize_, load_dataset
        >>> data = load_dataset("synthetic-citation")
        >>> model = initialize_(Stack("gatv2", [data.num_features, 16, data.classes]), "bal-o")
        >>> history = train(model, data, lr=0.1, epochs=3)
        >>> history.epochs, history.outcome
        (3, 'finished')
    """
    _check_arguments(model, data, epochs, patience)
    torch_optimizer = _get_optimizer(optimizer, model, lr, weight_decay)
    if record is not None:
        record.attach(torch_optimizer)
    history = History() if history is None else history
    history.outcome, history.reason = "finished", ""
    start = time.perf_counter() - history.seconds
    try:
        nodes = {split: data[f"{split}_mask"].nonzero().view(-1) for split in ("train", "val", "test")}
        labels = {split: data.y[indices] for split, indices in nodes.items()}
        forward = _ForwardPasses(model, select_features(model, data.x, sparse_features), data.edge_index)
        while not _should_stop(history, epochs, stop_loss, patience):
            epoch = history.epochs + 1
            scores = forward.train()
            loss = F.cross_entropy(scores.index_select(0, nodes["train"]), labels["train"])
            if not math.isfinite(loss.item()):
                history.outcome, history.reason = "diverged", f"the loss is {loss.item()} at epoch {epoch}"
                break
            torch_optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            if on_gradients is not None:
                on_gradients(epoch, history)
            if record is not None:
                record.step(epoch, loss=loss.item())
            torch_optimizer.step()
            scores = forward.evaluate()
            history.loss.append(loss.item())
            history.val_accuracy.append(_accuracy(scores, nodes["val"], labels["val"]))
            history.test_accuracy.append(_accuracy(scores, nodes["test"], labels["test"]))
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


class _ForwardPasses:
    """Forward passes of a training run, with one pass for evaluation and next step where both modes agree.

    The training pass of an epoch has the weights of the preceding evaluation. The first such pair decides whether the
    modes agree. Equal scores alone do not suffice: those of a network with dead neurons may differ later. So the pass
    must also draw no random numbers and change no buffer. A resumed run comes to the same decision.

    Attributes:
        modes_agree: whether one pass serves both purposes; None before the first pair of passes.
    """

    def __init__(self, model: nn.Module, x: Tensor, edge_index: Tensor) -> None:
        self.model, self.x, self.edge_index = model, x, edge_index
        self.modes_agree: bool | None = None
        self._evaluation: Tensor | None = None  # scores of the first evaluation, until they are compared
        self._next: Tensor | None = None  # scores for the next step, with their autograd graph

    def train(self) -> Tensor:
        """Return scores in training mode, with gradients enabled."""
        if self._next is not None:
            scores, self._next = self._next, None
            return scores
        if self._evaluation is None:
            return self._call(training=True)
        rng_state = torch.get_rng_state()
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        scores = self._call(training=True)
        self.modes_agree = (
            torch.equal(scores.detach(), self._evaluation)
            and torch.equal(torch.get_rng_state(), rng_state)
            and all(torch.equal(buffer, buffers[name]) for name, buffer in self.model.named_buffers())
        )
        self._evaluation = None
        return scores

    def evaluate(self) -> Tensor:
        """Return scores of evaluation mode, without gradients."""
        if self.modes_agree:
            self._next = self._call(training=True)
            return self._next.detach()
        scores = self._call(training=False)
        if self.modes_agree is None:
            self._evaluation = scores
        return scores

    def _call(self, training: bool) -> Tensor:
        if self.model.training != training:
            self.model.train(training)
        with torch.set_grad_enabled(training):
            scores: Tensor = self.model(self.x, self.edge_index)
        return scores


def select_features(model: nn.Module, x: Tensor, sparse: bool | None = None) -> Tensor:
    """Return the features as a sparse CSR tensor or unchanged; see ``sparse_features`` of :func:`train`."""
    if x.layout != torch.strided:
        return x
    if sparse is None:
        sparse = (
            isinstance(model, Stack)
            and x.is_floating_point()
            and int(x.count_nonzero()) <= MAX_SPARSE_DENSITY * x.numel()
        )
    return to_csr_tensor(x) if sparse else x


def build_optimizer(name: str, model: nn.Module, lr: float | None, weight_decay: float = 0.0) -> Optimizer:
    """Build the optimizer with this name for a model's parameters.

    Args:
        name: a key of ``OPTIMIZERS``.
        model: the model.
        lr: learning rate, above 0.
        weight_decay: L2 penalty, added to the gradient.

    Returns:
        The optimizer.

    Raises:
        ChoiceError: if the name is unknown.
        TrainingError: if the learning rate is missing or not positive.
    """
    if name not in OPTIMIZERS:
        raise ChoiceError("optimizer", name, OPTIMIZERS)
    if lr is None or not lr > 0:
        raise TrainingError(
            f"{name} needs a learning rate above 0, got lr={lr}", remedy="pass one: train(model, data, lr=0.05, …)"
        )
    return OPTIMIZERS[name](model.parameters(), lr=lr, weight_decay=weight_decay, foreach=True)  # type: ignore[call-arg]


def _get_optimizer(optimizer: str | Optimizer, model: nn.Module, lr: float | None, weight_decay: float) -> Optimizer:
    if isinstance(optimizer, Optimizer):
        if lr is not None or weight_decay:
            raise TrainingError(
                "lr and weight_decay apply only to an optimizer given by name",
                where=type(optimizer).__name__,
                remedy="set them in the optimizer, and leave out lr= and weight_decay=",
            )
        return optimizer
    return build_optimizer(optimizer, model, lr, weight_decay)


def _should_stop(history: History, epochs: int, stop_loss: float, patience: int | None) -> bool:
    """Check the stopping criteria before an epoch, and write the outcome to the history."""
    if history.loss and history.loss[-1] <= stop_loss:
        history.outcome, history.reason = "converged", f"the training loss is {history.loss[-1]:.1e}"
    elif patience is not None and history.epochs - history.best_epoch >= patience:
        history.outcome, history.reason = "stopped", f"no better validation accuracy for {patience} epochs"
    else:
        return history.epochs >= epochs
    return True


def _accuracy(scores: Tensor, nodes: Tensor, labels: Tensor) -> float:
    return float((scores.index_select(0, nodes).argmax(dim=-1) == labels).double().mean())


def _check_arguments(model: nn.Module, data: Data, epochs: int, patience: int | None) -> None:
    if not isinstance(model, nn.Module):
        raise TrainingError(f"expected a torch.nn.Module, got {type(model).__name__}")
    required = ("x", "edge_index", "y", "train_mask", "val_mask", "test_mask")
    missing = [name for name in required if getattr(data, name, None) is None]
    if missing:
        raise TrainingError(
            f"the data have no {', '.join(missing)}",
            where=repr(data),
            remedy="set these attributes, as in a graph from load_dataset",
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

"""The recorder: decides when to measure a network during training. ``quantities`` defines what it measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.utils.hooks import RemovableHandle

from equipoise.errors import ChoiceError, TrainingError
from equipoise.kernels.graph_cache import GraphCache
from equipoise.laws.law import Law, check_laws_of
from equipoise.laws.validation import is_integer
from equipoise.training.alerts import Alerts
from equipoise.training.batched_laws import BatchedLaws
from equipoise.training.capture import Capture, layers_to_record
from equipoise.training.history import History
from equipoise.training.optimizers import check_trains
from equipoise.training.quantities import (
    attention_records,
    balance_records,
    best_model_records,
    change_records,
    gradient_records,
    representation_records,
    update_records,
)
from equipoise.training.recording import Record, Recording, scalar_record

if TYPE_CHECKING:
    import pandas as pd

GROUPS = ("gradient", "balance", "change", "update", "representation", "attention")
MAX_BYTES = 64 * 2**20
THINNING_FACTOR = 5  # intervals of 1, 5 and 25 epochs; the paper's figures use 25

Listener = Callable[[int, Sequence[Record]], None]


class Recorder:
    r"""Record gradients, balance and representations of a network during training.

    ==================  ==============================  ==========================================================
    group               quantities (after ``group/``)   of every layer, at a recorded epoch
    ==================  ==============================  ==========================================================
    ``gradient``        features, attention             ‖∇W‖/‖W‖ and ‖∇a‖/‖a‖
    ``balance``         c, delta                        of every neuron
    \                   drift, predicted_drift          of every neuron: c(t+1) − c(t), and its exact prediction
                                                        (plain gradient descent with a known optimizer)
    \                   terms                           mean over neurons of Σ\|⟨θ,∇θ⟩\|: the scale of errors in δ
    ``change``          features                        mean \|(w−w₀)/w\| of the weights with \|w\| ≥ 1e-4
    \                   moved, moved_half               fraction of them that changed by more than 5 %, 50 %
    \                   attention                       mean \|a−a₀\|
    \                   unchanged_features              fraction of weights that did not change at all
    \                   unchanged_attention             fraction of attention weights that did not change at all
    ``update``          size                            ‖θ(t+1)−θ(t)‖/‖θ(t)‖
    ``representation``  dirichlet, mad                  Dirichlet energy and mean average distance of the output
    ``attention``       entropy                         relative entropy of attention, 1 if uniform
    ==================  ==============================  ==========================================================

    The last two groups need forward hooks, which are registered only for recorded epochs, and sample the neighbourhoods
    of at most 48 nodes. A layer's output is taken after its activation, if the activation is a module. Fused stacks
    provide their attention coefficients; for other layers they are recomputed.

    *Memory*: two copies of the weights, references to the inputs and outputs of layers at a recorded epoch, and the
    recorded numbers of 8 bytes each: 4 per neuron and 13 per layer and recorded epoch. Above 64 MiB of recorded
    numbers, ``every`` grows fivefold and the epochs in between are dropped. ``rec.nbytes`` is the current total.

    Args:
        model: any network.
        laws: the laws that :func:`~equipoise.discover` returned for this model; without laws, ``balance`` is empty.
        every: interval between recorded epochs; the first epoch is always recorded.
        quantities: the groups to record; all by default.
        most: maximum number of records after the first. Beyond it, ``every`` grows fivefold and the epochs in between
            are dropped: ``every=1`` then covers a run of any length evenly.
        optimizer: the optimizer of the model, for the quantities that depend on the step and for ``predicted_drift``.
            :func:`~equipoise.train` attaches its own. Without one, quantities of the step are measured at the next call
            of :meth:`step` or at the end.
        alerts: warn (:class:`~equipoise.errors.TrainingWarning`) of a layer that has not moved for three records and of
            representations that are equal to 1e-7, and record both as ``alert/not_moved`` (the epoch since which the
            layer stands still) and ``alert/equal_representations`` (of the first such layer).

    Raises:
        ModelError: if ``model`` is not a module, or has no trainable parameters.
        TrainingError: if ``every`` or ``most`` is below 1, or ``optimizer`` is not an optimizer.
        ChoiceError: if a group is unknown.
        LawError: if ``laws`` are not laws of this model.

    Example:
        >>> from equipoise import Stack, discover, load_dataset, train
        >>> data = load_dataset("synthetic-citation")
        >>> model = Stack("gatv2", [data.num_features, 8, 8, data.classes])
        >>> laws = discover(model, torch.rand(20, data.num_features), torch.randint(0, 20, (2, 60)))
        >>> rec = Recorder(model, laws, every=5)
        >>> history = train(model, data, lr=0.1, epochs=10, record=rec)
        >>> frame = rec.frame()
        >>> frame[frame.quantity == "train/loss"].epoch.tolist(), rec.recording.layers
        ([1, 5, 10], ('convs.0', 'convs.1', 'convs.2'))

    In your own training loop::

        with Recorder(model, laws, optimizer=optimizer) as rec:
            for epoch in range(1, epochs + 1):
                ...
                loss.backward()
                rec.step(epoch, loss=loss.item())
                optimizer.step()
        rec.save("run.npz")  # Recording.load("run.npz").frame()
    """

    def __init__(
        self,
        model: nn.Module,
        laws: Sequence[Law] = (),
        every: int = 25,
        quantities: Sequence[str] = GROUPS,
        *,
        most: int | None = None,
        optimizer: Optimizer | None = None,
        alerts: bool = True,
    ) -> None:
        if not is_integer(every) or every < 1:
            raise TrainingError(f"every must be an integer of at least 1 epoch, got {every!r}")
        if most is not None and (not is_integer(most) or most < 1):
            raise TrainingError(f"most must be an integer of at least 1 record, got {most!r}")
        quantities = (quantities,) if isinstance(quantities, str) else tuple(quantities)
        for name in quantities:
            if name not in GROUPS:
                raise ChoiceError("quantity", name, GROUPS)
        self.model, self.every, self.most, self.quantities = model, every, most, quantities
        self.layers = layers_to_record(model)
        self.laws = check_laws_of(model, laws)
        self.recording = Recording(tuple(layer.name for layer in self.layers))
        self.listeners: list[Listener] = []  # called with the epoch and its records, once these are complete
        self.alerts = Alerts() if alerts else None
        self._batched_laws = BatchedLaws(self.laws, self._layer_numbers())
        self._initial = {p: p.detach().clone() for layer in self.layers for p in layer.parameters}
        self._before_step = {p: torch.empty_like(value) for p, value in self._initial.items() if "update" in quantities}
        self._capture = Capture(model, self.layers)
        self._graph_cache = GraphCache()
        self._pending: tuple[int, list[Record]] | None = None  # recorded epoch whose step is not taken yet, and its c
        self._optimizer: Optimizer | None = None
        self._handle: RemovableHandle | None = None
        if optimizer is not None:
            self.attach(optimizer)
        self._set_capture(enabled=True)  # the first epoch is always recorded

    def attach(self, optimizer: Optimizer) -> None:
        """Measure the quantities of a step right after this optimizer takes it.

        Args:
            optimizer: an optimizer of the model; it replaces the one attached before.

        Raises:
            TrainingError: if the argument is not an optimizer, or one of another model.
        """
        if not isinstance(optimizer, Optimizer):
            raise TrainingError(
                f"expected a torch.optim.Optimizer, got {type(optimizer).__name__}",
                remedy="pass the optimizer that trains the model",
            )
        check_trains(optimizer, self.model)
        if optimizer is self._optimizer and self._handle is not None:
            return
        if self._handle is not None:
            self._handle.remove()
        self._optimizer = optimizer
        self._handle = optimizer.register_step_post_hook(lambda *_: self._complete_record())

    def step(self, epoch: int, **scalars: float) -> None:
        """Record an epoch if it is due; call it every epoch, after ``loss.backward()`` and before the optimizer step.

        Args:
            epoch: number of the epoch, from 1.
            **scalars: further numbers to record (``loss=…`` becomes ``train/loss``).

        Raises:
            TrainingError: if ``epoch`` is not an integer.
        """
        if not is_integer(epoch):
            raise TrainingError(f"epoch must be an integer, got {epoch!r}", remedy="call rec.step(epoch, loss=…)")
        self._complete_record()
        if not self.recording.epochs or epoch % self.every == 0:
            with torch.no_grad():
                self.recording.add(epoch, (scalar_record(f"train/{name}", 0, value) for name, value in scalars.items()))
                self.recording.add(epoch, self._measure())
                self._prepare_step(epoch)
        self._set_capture(enabled=(epoch + 1) % self.every == 0)

    def finish(self, history: History, model: nn.Module | None = None) -> None:
        """Record the weight changes between initialisation and the best model, then close.

        Args:
            history: the history of the run.
            model: the model of the history, if the recorder's is a module inside it.
        """
        self.close()
        if not history.best_state:
            return
        names = {parameter: name for name, parameter in (model or self.model).named_parameters()}
        best = {p: history.best_state[names[p]] for p in self._initial}
        with torch.no_grad():
            self.recording.add(history.best_epoch, best_model_records(self.layers, self._initial, best))
        accuracy = scalar_record("best/test_accuracy", 0, history.best_test_metric)
        self.recording.add(history.best_epoch, [accuracy])

    def close(self) -> None:
        """Complete the last record, and remove all hooks from model and optimizer."""
        self._complete_record()
        self._capture.disable()
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def frame(self) -> pd.DataFrame:
        """Return the recorded values as a tidy data frame; see :meth:`Recording.frame`."""
        return self.recording.frame()

    def save(self, path: str | Path) -> Path:
        """Write the recording to one file, for ``Recording.load(path)``; see :meth:`Recording.save`."""
        return self.recording.save(path)

    @property
    def nbytes(self) -> int:
        """Memory held by recorded values and copies of the weights, in bytes."""
        copies = (*self._initial.values(), *self._before_step.values())
        return self.recording.nbytes + sum(values.numel() * values.element_size() for values in copies)

    def _layer_numbers(self) -> list[int]:
        """Return the layer of every law's incoming weights; 0 if they belong to no recorded layer."""
        owner = {p: number for number, layer in enumerate(self.layers, start=1) for p in layer.parameters}
        return [next((owner[slot.parameter] for slot in law.slots if slot.parameter in owner), 0) for law in self.laws]

    def _set_capture(self, enabled: bool) -> None:
        """Register forward hooks only if the next forward pass may belong to a recorded epoch."""
        if enabled and ("representation" in self.quantities or "attention" in self.quantities):
            self._capture.enable()
        else:
            self._capture.disable()

    def _measure(self) -> Iterator[Record]:
        """Yield the quantities that are known after the backward pass."""
        calls = dict(self._capture.calls)  # a copy: recomputing attention may call the layer, which triggers its hook
        if "gradient" in self.quantities:
            yield from gradient_records(self.layers)
        if "balance" in self.quantities and self.laws:
            yield from balance_records(self._batched_laws, _descent_settings(self._optimizer))
        if "change" in self.quantities:
            yield from change_records(self.layers, self._initial)
        if "representation" in self.quantities:
            yield from representation_records(calls, self._graph_cache)
        if "attention" in self.quantities:
            yield from attention_records(self.layers, calls, self._graph_cache)

    def _prepare_step(self, epoch: int) -> None:
        """Keep weights and c of before the step, to measure how the step changes them."""
        for parameter, before in self._before_step.items():
            before.copy_(parameter)
        self._pending = epoch, [record for record in self.recording.epochs[epoch] if record.quantity == "balance/c"]

    def _complete_record(self) -> None:
        """Add the quantities of the step to the pending record, and call the listeners."""
        if self._pending is None:
            return
        epoch, c = self._pending
        self._pending = None
        with torch.no_grad():
            if self._before_step:
                self.recording.add(epoch, update_records(self.layers, self._before_step))
            if c:
                after = self._batched_laws.split_by_layer(self._batched_laws.imbalance())
                pairs = zip(after, c, strict=True)
                self.recording.add(
                    epoch, (Record("balance/drift", number, new - old.values) for (number, new), old in pairs)
                )
        if self.alerts is not None:
            self.recording.add(epoch, self.alerts.check(epoch, self.recording.epochs[epoch]))
        for listener in self.listeners:
            listener(epoch, self.recording.epochs[epoch])
        too_many = self.most is not None and len(self.recording.epochs) - 1 > self.most  # the first does not count
        if too_many or self.recording.nbytes > MAX_BYTES:
            self.every *= THINNING_FACTOR
            self.recording.thin(self.every)


def _descent_settings(optimizer: Any) -> tuple[float, float] | None:
    """Return learning rate and weight decay if this is plain gradient descent with one setting for all parameters."""
    if not isinstance(optimizer, SGD) or any(group["momentum"] for group in optimizer.param_groups):
        return None
    settings = {(float(group["lr"]), float(group["weight_decay"])) for group in optimizer.param_groups}
    return settings.pop() if len(settings) == 1 else None

"""Watch a network while it trains: what to measure is in ``quantities``, when is here, how to draw it is elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pandas as pd
import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.utils.hooks import RemovableHandle

from equipoise.errors import ChoiceError, LawError, TrainingError
from equipoise.kernels.csr import Graphs
from equipoise.laws.law import Law, check_laws
from equipoise.train import measures
from equipoise.train.history import History
from equipoise.train.ledger import Ledger
from equipoise.train.measures import number_of
from equipoise.train.passes import Capture
from equipoise.train.recording import Entry, Recording
from equipoise.train.watched import watched_layers

GROUPS = ("gradient", "balance", "change", "update", "representation", "attention")
MOST_BYTES = 64 * 2**20
THINNED = 5  # of so many records one is kept: 1, 5 and the paper's 25 epochs

Listener = Callable[[int, Sequence[Entry]], None]


class Recorder:
    r"""Record why a network does or does not train, every few epochs.

    ==================  ==============================  ==========================================================
    group               quantities (after ``group/``)   of every layer, at a recorded epoch
    ==================  ==============================  ==========================================================
    ``gradient``        features, attention             ‖∇W‖/‖W‖ and ‖∇a‖/‖a‖
    ``balance``         c, delta                        of every neuron
    \                   drift, predicted_drift          of every neuron: c(t+1) − c(t), and what it should be exactly
                                                        (plain gradient descent, where the optimizer is known)
    \                   terms                           mean Σ|⟨θ,∇θ⟩| of a neuron: what δ is small against
    ``change``          features                        mean \|(w−w₀)/w\| of the weights with \|w\| ≥ 1e-4
    \                   moved, moved_half               share of them that changed by more than 5 %, 50 %
    \                   attention                       mean \|a−a₀\|
    \                   unchanged_features, …_attention share that did not change at all
    ``update``          size                            ‖θ(t+1)−θ(t)‖/‖θ(t)‖
    ``representation``  dirichlet, mad                  Dirichlet energy and mean average distance of what it writes
    ``attention``       entropy                         of its attention, 1 for uniform
    ==================  ==============================  ==========================================================

    The last two groups look at the forward pass of a recorded epoch, at the neighbourhoods of at most 48 nodes. What a
    layer writes is taken after its activation, where that is a module. A fused stack shows its attention as it runs;
    of other layers it is computed again.

    *Memory*: two copies of the weights, references to what layers read and wrote in a pass that is looked at, and the
    numbers: 8 bytes each, 4 for a neuron and 13 for a layer at a recorded epoch. Beyond 64 MiB of numbers ``every``
    grows fivefold and what lies between is forgotten. ``rec.nbytes`` is what is held now.

    Args:
        model: any network.
        laws: what :func:`~equipoise.discover` returns; without any, there is no ``balance``.
        every: epochs between two records; the first epoch is always recorded.
        quantities: the groups to record; all.
        most: records that are kept, beside the first. When there are more, ``every`` grows fivefold and what lies
            between is forgotten: with ``every=1`` a run is seen evenly, however long it turns out to be.
        optimizer: tells when a step has been taken, and, if it is plain gradient descent, what c should do. ``train``
            passes its own. Without one, what needs the step is measured at the next ``step`` or at the end.

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

    In a loop of one's own::

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
    ) -> None:
        if every < 1:
            raise TrainingError(f"every must be at least 1 epoch, got {every}")
        if most is not None and most < 1:
            raise TrainingError(f"most must be at least 1 record, got {most}")
        for name in quantities:
            if name not in GROUPS:
                raise ChoiceError("quantity", name, GROUPS)
        self.model, self.every, self.most, self.quantities = model, every, most, tuple(quantities)
        self.layers = watched_layers(model)
        self.laws = check_laws(laws)
        self.recording = Recording(tuple(layer.name for layer in self.layers))
        self.listeners: list[Listener] = []
        self._ledger = Ledger(self.laws, self._layers_of_laws())
        self._start = {p: p.detach().clone() for layer in self.layers for p in layer.parameters}
        self._before = {p: torch.empty_like(start) for p, start in self._start.items() if "update" in quantities}
        self._capture = Capture(model, self.layers)
        self._graphs = Graphs()
        self._pending: tuple[int, list[Entry]] | None = None
        self._optimizer: Optimizer | None = None
        self._handle: RemovableHandle | None = None
        if optimizer is not None:
            self.watch(optimizer)
        self._expect(first=True)

    def watch(self, optimizer: Optimizer) -> None:
        """Measure what a step changes right after this optimizer takes it."""
        if optimizer is self._optimizer and self._handle is not None:
            return
        if self._handle is not None:
            self._handle.remove()
        self._optimizer = optimizer
        self._handle = optimizer.register_step_post_hook(lambda *_: self._complete())

    def step(self, epoch: int, **scalars: float) -> None:
        """Call it once an epoch, after ``loss.backward()`` and before the step; most epochs it does nothing.

        Args:
            epoch: its number, from 1.
            scalars: numbers of the run to write down beside (``loss=…`` becomes ``train/loss``).
        """
        self._complete()
        if not self.recording.epochs or epoch % self.every == 0:
            with torch.no_grad():
                self.recording.add(epoch, (number_of(f"train/{name}", 0, value) for name, value in scalars.items()))
                self.recording.add(epoch, self._look())
                self._wait_for_the_step(epoch)
        self._expect(next_epoch=epoch + 1)

    def finish(self, history: History) -> None:
        """Write down how the weights differ from the start in the best model of a run, and close."""
        self.close()
        if not history.best_state:
            return
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        best = {p: history.best_state[names[p]] for p in self._start}
        with torch.no_grad():
            self.recording.add(history.best_epoch, measures.best(self.layers, self._start, best))
        accuracy = number_of("best/test_accuracy", 0, history.best_test_accuracy)
        self.recording.add(history.best_epoch, [accuracy])

    def close(self) -> None:
        """Measure what waits for a step, and leave model and optimizer as they were."""
        self._complete()
        self._capture.off()
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
        """A tidy frame: epoch, quantity, layer (from 1), neuron, value."""
        return self.recording.frame()

    def save(self, path: str | Path) -> Path:
        """Write everything to one file, for ``Recording.load(path)``."""
        return self.recording.save(path)

    @property
    def nbytes(self) -> int:
        """Bytes held now, but for references to what the network holds anyway."""
        copies = (*self._start.values(), *self._before.values())
        return self.recording.nbytes + sum(values.numel() * values.element_size() for values in copies)

    def _layers_of_laws(self) -> list[int]:
        """The layer of every law: the one that its incoming weights belong to; 0 where that is no layer."""
        known = set(self.model.parameters())
        owner = {p: number for number, layer in enumerate(self.layers, start=1) for p in layer.parameters}
        for law in self.laws:
            if any(slot.parameter not in known for slot in law.slots):
                raise LawError(
                    "the law belongs to another model",
                    where=str(law),
                    remedy="discover the laws of this one, or bind them to it: [law.bind(model) for law in laws]",
                )
        return [next((owner[slot.parameter] for slot in law.slots if slot.parameter in owner), 0) for law in self.laws]

    def _expect(self, next_epoch: int = 0, first: bool = False) -> None:
        """Hooks are on only while the forward pass of an epoch to be recorded may come."""
        wanted = "representation" in self.quantities or "attention" in self.quantities
        if wanted and (first or next_epoch % self.every == 0):
            self._capture.on()
        else:
            self._capture.off()

    def _look(self) -> Iterator[Entry]:
        """What there is to see after a backward pass."""
        passes = dict(self._capture.passes)  # a layer that is asked for its attention runs once more, and is seen
        if "gradient" in self.quantities:
            yield from measures.gradient(self.layers)
        if "balance" in self.quantities and self.laws:
            yield from measures.balance(self._ledger, _plain_descent(self._optimizer))
        if "change" in self.quantities:
            yield from measures.change(self.layers, self._start)
        if "representation" in self.quantities:
            yield from measures.representation(passes, self._graphs)
        if "attention" in self.quantities:
            yield from measures.attention_of(self.layers, passes, self._graphs)

    def _wait_for_the_step(self, epoch: int) -> None:
        for parameter, before in self._before.items():
            before.copy_(parameter)
        self._pending = epoch, [entry for entry in self.recording.epochs[epoch] if entry.quantity == "balance/c"]

    def _complete(self) -> None:
        """Measure what the step after the last record has changed, and tell who listens."""
        if self._pending is None:
            return
        epoch, c = self._pending
        self._pending = None
        with torch.no_grad():
            if self._before:
                self.recording.add(epoch, measures.update(self.layers, self._before))
            if c:
                after = self._ledger.by_layer(self._ledger.imbalance())
                pairs = zip(after, c, strict=True)
                self.recording.add(
                    epoch, (Entry("balance/drift", number, new - old.values) for (number, new), old in pairs)
                )
        for listener in self.listeners:
            listener(epoch, self.recording.epochs[epoch])
        many = self.most is not None and len(self.recording.epochs) - 1 > self.most  # the first is there in any case
        if many or self.recording.nbytes > MOST_BYTES:
            self.every *= THINNED
            self.recording.thin(self.every)


def _plain_descent(optimizer: Any) -> tuple[float, float] | None:
    """Rate and weight decay, if this is gradient descent and nothing else, at one rate for all parameters."""
    if not isinstance(optimizer, SGD) or any(group["momentum"] for group in optimizer.param_groups):
        return None
    rates = {(float(group["lr"]), float(group["weight_decay"])) for group in optimizer.param_groups}
    return rates.pop() if len(rates) == 1 else None

"""Alerts of a recorder: layers that do not move, and representations that have become equal."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

from equipoise.errors import TrainingWarning
from equipoise.training.recording import Record, scalar_record

STILL = 1e-8  # relative updates below this do not change a float32 weight
STILL_RECORDS = 3  # consecutive records without a change, before a layer counts as not moving
EQUAL = 1e-7  # mean average distance of neighbours below which representations count as equal


class Alerts:
    """Find layers that do not move and representations that are equal, and warn of each once.

    One message names all layers that have not moved since the same epoch.

    Attributes:
        messages: all alerts so far.
    """

    def __init__(self) -> None:
        self.messages: list[str] = []
        self._still: dict[int, list[int]] = {}  # epochs of consecutive records without a change, by layer
        self._equal_from: int | None = None

    def check(self, epoch: int, records: Sequence[Record]) -> list[Record]:
        """Check the records of an epoch.

        Args:
            epoch: the epoch.
            records: its records, with ``update/size`` and ``representation/mad`` as far as they are recorded.

        Returns:
            The alerts as records: ``alert/not_moved`` with the epoch since which a layer has not moved, and
            ``alert/equal_representations`` with the distance.
        """
        alerts = [*self._layers_that_do_not_move(epoch, records), *self._equal_representations(records)]
        for message, _ in alerts:
            self.messages.append(message)
            warnings.warn(f"epoch {epoch}: {message}", TrainingWarning, stacklevel=3)
        return [record for _, found in alerts for record in found]

    def _layers_that_do_not_move(self, epoch: int, records: Sequence[Record]) -> Iterator[tuple[str, list[Record]]]:
        found: dict[int, list[int]] = {}  # layers, by the epoch since which they have not moved
        for record in records:
            if record.quantity != "update/size":
                continue
            epochs = self._still.setdefault(record.layer, [])
            if float(record.values) >= STILL:
                epochs.clear()
                continue
            epochs.append(epoch)
            if len(epochs) == STILL_RECORDS:
                found.setdefault(epochs[0], []).append(record.layer)
        for since, layers in found.items():
            message = f"{_list_layers(layers)} not moved since epoch {since}"
            yield message, [scalar_record("alert/not_moved", layer, since) for layer in layers]

    def _equal_representations(self, records: Sequence[Record]) -> Iterator[tuple[str, list[Record]]]:
        distances = {r.layer: float(r.values) for r in records if r.quantity == "representation/mad"}
        first = None
        for layer in sorted(distances, reverse=True):
            if distances[layer] >= EQUAL:
                break
            first = layer
        if first is not None and (self._equal_from is None or first < self._equal_from):
            largest = max(distance for layer, distance in distances.items() if layer >= first)
            message = f"representations of layer {first} onwards are equal to {EQUAL:.0e}"
            yield message, [scalar_record("alert/equal_representations", first, largest)]
            self._equal_from = first


def _list_layers(layers: Sequence[int]) -> str:
    """The start of a sentence: ``layer 3 has`` or ``layers 2–5, 7 have``."""
    if len(layers) == 1:
        return f"layer {layers[0]} has"
    ranges: list[list[int]] = []
    for layer in sorted(layers):
        if ranges and layer == ranges[-1][-1] + 1:
            ranges[-1].append(layer)
        else:
            ranges.append([layer])
    listed = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in ranges)
    return f"layers {listed} have"

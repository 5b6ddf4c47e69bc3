"""Products of parameters and gradients at random parameters, summed slot by slot: the columns of the search."""

from __future__ import annotations

from math import ceil, prod

import torch
from torch import Tensor

from equipoise.laws.candidates import blocks, full_slots, windows
from equipoise.laws.probe import Probe
from equipoise.laws.slot import Slot

MOST_ROWS = 256  # neurons looked at per sample; a law is confirmed on all of them afterwards


class Samples:
    """Ever more samples of θ·∇θ from one probe, drawn as they are needed."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.products = [probe.gradient_products()]
        self.shapes = {n: tuple(product.shape) for n, product in self.products[0].items() if bool(product.any())}
        self.numbers = {name: number for number, name in enumerate(self.shapes)}
        self.places = probe.trace().places()

    def place(self, slot: Slot) -> tuple[bool, int, int]:
        """Input and output first, then parameters in the order in which they are read, then as they are named."""
        inside = slot.name in self.probe.parameters
        return inside, self.places.get(slot.name, len(self.places)), self.numbers[slot.name]

    def slots(self, neurons: int) -> list[Slot]:
        """All slots of ``neurons`` neurons that use every entry of a parameter, of the input or of the output.

        An axis that is a few times as long comes as its windows, of which the fold over them is the sum.
        """
        whole = [s for n, shape in self.shapes.items() for s in full_slots(self.probe.model, n, shape, neurons)]
        return list(dict.fromkeys(part for slot in whole for part in blocks(slot)))

    def windows(self, neurons: int) -> list[Slot]:
        """All slots of ``neurons`` neurons that use a part of a parameter's axis."""
        sizes = {size for shape in self.shapes.values() for size in shape}
        parameters = [name for name in self.shapes if name in self.probe.parameters]
        return [s for n in parameters for s in windows(self.probe.model, n, self.shapes[n], neurons, sizes)]

    def whole(self) -> list[Slot]:
        """Every parameter as one neuron."""
        names = [name for name in self.shapes if name in self.probe.parameters]
        return [Slot(self.probe.model, n, self.shapes[n], 1, prod(self.shapes[n])) for n in names]

    def grow(self, slots: list[Slot]) -> None:
        """Draw enough samples for a matrix with a column for each of ``slots``."""
        count = ceil(1.25 * len(slots) / min(slots[0].neurons, MOST_ROWS)) + 2
        while len(self.products) < count:
            self.products.append(self.probe.gradient_products())

    def column(self, slot: Slot) -> Tensor:
        """⟨θ_i, ∇θ_i⟩: a row a sample and neuron."""
        return torch.cat([self._rows(slot, sample[slot.name]) for sample in self.products])

    def magnitude(self, slot: Slot) -> Tensor:
        """Σ |θ·∇θ| over the same entries: what the column would be if nothing cancelled."""
        return torch.cat([self._rows(slot, sample[slot.name].abs()) for sample in self.products])

    def _rows(self, slot: Slot, product: Tensor) -> Tensor:
        total = slot.total(product)
        if slot.neurons <= MOST_ROWS:
            return total
        return total[torch.linspace(0, slot.neurons - 1, MOST_ROWS).long()]

"""Gradient products: the columns of the search.

Samples of θ·∇θ at random parameters, summed over the entries of each neuron of a slot. The input and the output of the
network count as parameters here, so that the search recognises the weights connected to them.
"""

from __future__ import annotations

from math import ceil, prod

import torch
from torch import Tensor

from equipoise.laws.candidates import full_slots, split_blocks, window_slots
from equipoise.laws.probe import OUTPUT, Probe
from equipoise.laws.slot import Slot

SPARE_SAMPLES = 2  # more samples than whole parameters
MAX_NEURONS_PER_SAMPLE = 256  # neurons per sample in the matrix; a law is verified on all of them afterwards
FORWARDS = 3  # forward passes per round of samples, each at other parameters
SAMPLES = 2 * FORWARDS  # samples of the first round
MAX_SAMPLES_PER_FORWARD = 32  # output gradients at the same parameters and inputs
MAX_ENTRIES = 50_000_000  # of all samples together: 400 MB
MAX_STACKED_ENTRIES = 100_000  # samples of a larger parameter are summed one by one: copying them takes longer
MAX_DEAD_SAMPLES = 6  # attempts to find parameters at which no layer is dead
SCALE_FREE_TOLERANCE = 1e-11  # a slot is scale-free if ⟨θ,∇θ⟩ is below this fraction of Σ|θ·∇θ|

Sums = tuple[Tensor, Tensor]  # ⟨θ, ∇θ⟩ of a whole parameter and Σ|θ·∇θ| or a bound of it, one row per sample


class GradientProducts:
    """Samples of θ·∇θ, drawn on demand, and the candidate slots over which they are summed.

    All ReLUs of a narrow layer may be dead at random parameters, and then every gradient is zero. Such samples are
    drawn again, with weights of increasing positive mean.

    Args:
        probe: Probe that computes the samples.

    Attributes:
        shapes: Shapes of all parameters, inputs and outputs with a nonzero product, by name.
        blocks: Blocks of concatenations and slices in the forward pass.
    """

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self._samples: list[dict[str, Tensor]] = []
        self._batches: dict[str, list[Tensor]] = {}
        self._columns: dict[Slot, Tensor] = {}
        self._magnitudes: dict[str, float] = {}
        self._whole: dict[str, Sums] = {}
        self._mean = 0.0
        self._reachable: set[str] = set()  # parameters on which the output depends; others never have a gradient
        self._draw(SAMPLES)
        if not all(self._reachable <= sample.keys() for sample in self._samples):
            self._find_live_samples()
        order = [OUTPUT, *probe.parameters, *probe.input_leaves]
        union = {name: product for sample in self._samples for name, product in sample.items()}
        self.shapes = {name: tuple(union[name].shape) for name in order if name in union}
        self._registration_order = {name: number for number, name in enumerate(self.shapes)}
        probe.values.samples = self._samples
        trace = probe.trace()
        self._first_reads = trace.first_reads()
        self.blocks = frozenset(trace.blocks)

    def sort_key(self, slot: Slot) -> tuple[bool, int, int]:
        """Order of slots: input and output, then parameters by first use in the forward pass, then by registration."""
        is_parameter = slot.name in self.probe.parameters
        first_read = self._first_reads.get(slot.name, len(self._first_reads))
        return is_parameter, first_read, self._registration_order[slot.name]

    def full_slots(self, neurons: int) -> list[Slot]:
        """Slots of ``neurons`` neurons that use every entry of a parameter, input or output; folds as their blocks."""
        folds = [s for n, shape in self.shapes.items() for s in full_slots(self.probe.model, n, shape, neurons)]
        return list(dict.fromkeys(block for slot in folds for block in split_blocks(slot, self.blocks)))

    def window_slots(self, neurons: int) -> list[Slot]:
        """Slots of ``neurons`` neurons that use a window of one axis of a parameter."""
        sizes = {size for shape in self.shapes.values() for size in shape if size > 1}
        return [
            slot
            for name in self._parameter_names()
            for slot in window_slots(self.probe.model, name, self.shapes[name], neurons, sizes, blocks=self.blocks)
        ]

    def whole_parameters(self) -> list[Slot]:
        """Every parameter as a slot of one neuron."""
        names = self._parameter_names()
        return [Slot(self.probe.model, n, self.shapes[n], 1, prod(self.shapes[n])) for n in names]

    def draw_samples_for(self, slots: list[Slot]) -> None:
        """Draw samples until a matrix with one column per slot has more nonzero rows than columns."""
        if slots[0].neurons == 1:
            self._draw_whole([slot.name for slot in slots])
            return
        needed = ceil(1.25 * len(slots)) + 8
        max_samples = MAX_ENTRIES // sum(map(prod, self.shapes.values()))
        while (rows := self._live_rows(slots)) < needed and len(self._samples) < max_samples:
            missing = (needed - rows) / max(rows / len(self._samples), 1.0)
            self._draw(min(ceil(missing), FORWARDS * MAX_SAMPLES_PER_FORWARD))

    def column(self, slot: Slot) -> Tensor:
        """⟨θ_i, ∇θ_i⟩, one row per sample and neuron."""
        if slot.neurons == 1:
            return self._whole[slot.name][0]
        if slot not in self._columns:
            self._columns[slot] = self._sum(slot, self._products(slot.name))
        return self._columns[slot]

    def absolute_sum(self, slot: Slot) -> float:
        """Norm of Σ |θ·∇θ| over the same entries, or a bound: the scale of cancellation in the column."""
        if slot.neurons == 1:
            return float(self._whole[slot.name][1].norm())
        return float(self._sum(slot, [batch.abs() for batch in self._products(slot.name)]).norm())

    def is_scale_free(self, slot: Slot, column: Tensor) -> bool:
        """Whether ⟨θ_i, ∇θ_i⟩ vanishes up to rounding, although θ·∇θ does not."""
        size = float(column.norm())
        if slot.neurons > 1 and slot.name not in self._magnitudes:
            self._magnitudes[slot.name] = sum(float(batch.norm(p=1)) for batch in self._products(slot.name))
        if slot.neurons > 1 and size > SCALE_FREE_TOLERANCE * self._magnitudes[slot.name]:
            return False
        return size <= SCALE_FREE_TOLERANCE * self.absolute_sum(slot)

    def _draw(self, count: int) -> None:
        """Draw samples, in as many forward passes as the size of the output requires."""
        wanted = len(self._samples) + count
        while len(self._samples) < wanted:
            for sample in self.probe.gradient_products(ceil(count / FORWARDS), self._mean):
                self._reachable |= sample.keys() & self.probe.parameters.keys()
                self._samples.append({name: product for name, product in sample.items() if bool(product.any())})
        self._batches.clear()
        self._columns.clear()
        self._magnitudes.clear()

    def _draw_whole(self, names: list[str]) -> None:
        """Sum the samples over whole parameters, and draw further ones of which only the sums are kept.

        A sample gives one row, so there have to be more samples than parameters.
        """
        drawn = [_whole_sums(self._products(name)) for name in names]
        batches = [tuple(torch.stack(columns, dim=1) for columns in zip(*drawn, strict=True))]
        missing = len(names) + SPARE_SAMPLES - len(self._samples)
        per_forward = ceil(missing / FORWARDS)
        while missing > 0:
            batches.append(self.probe.whole_products(names, per_forward, self._mean))
            missing -= len(batches[-1][0])
        products, bounds = (torch.cat(parts) for parts in zip(*batches, strict=True))
        self._whole = {name: (products[:, k], bounds[:, k]) for k, name in enumerate(names)}

    def _find_live_samples(self) -> None:
        """Draw samples at weights of increasing mean, and keep those in which the most parameters have a gradient."""
        for attempt in range(1, MAX_DEAD_SAMPLES + 1):
            self._mean = 0.25 * attempt
            self._draw(1)
            if self._reachable <= self._samples[-1].keys():
                break
        most = max(len(sample) for sample in self._samples)
        self._samples = [sample for sample in self._samples if len(sample) == most]
        self._draw(max(0, SAMPLES - len(self._samples)))

    def _live_rows(self, slots: list[Slot]) -> int:
        """Median number of nonzero rows in a column."""
        by_name = {slot.name: slot for slot in slots}
        counts = sorted(int((self.column(slot) != 0).sum()) for slot in by_name.values())
        return counts[len(counts) // 2]

    def _parameter_names(self) -> list[str]:
        return [name for name in self.shapes if name in self.probe.parameters]

    def _products(self, name: str) -> list[Tensor]:
        """Products of all samples, stacked along the first axis: in one batch, or one per sample if they are large."""
        if name not in self._batches:
            zero = torch.zeros(self.shapes[name], dtype=torch.float64)
            samples = [sample.get(name, zero) for sample in self._samples]
            if zero.numel() > MAX_STACKED_ENTRIES:
                self._batches[name] = [sample.unsqueeze(0) for sample in samples]
            else:
                stacked = torch.stack(samples)
                for sample, product in zip(self._samples, stacked, strict=True):
                    if name in sample:
                        sample[name] = product  # a view: no second copy
                self._batches[name] = [stacked]
        return self._batches[name]

    def _sum(self, slot: Slot, batches: list[Tensor]) -> Tensor:
        """Sum stacked products over the entries of each neuron."""
        sums = torch.cat([_sum_batch(slot, batch) for batch in batches])
        if slot.neurons > MAX_NEURONS_PER_SAMPLE:
            sums = sums[:, torch.linspace(0, slot.neurons - 1, MAX_NEURONS_PER_SAMPLE).long()]
        return sums.flatten()


def _sum_batch(slot: Slot, products: Tensor) -> Tensor:
    """Sum the products of several samples over the entries of each neuron: one row per sample."""
    count, width = len(products), slot.neurons // slot.groups
    if slot.groups == 1:  # sums over one axis at a time are faster
        block = products.reshape(count, -1, slot.length, slot.inner)[:, :, slot.start : slot.start + width]
        return (block[..., 0] if slot.inner == 1 else block.sum(dim=3)).sum(dim=1)
    block = products.reshape(count, -1, slot.groups, slot.middle, slot.length, slot.inner)
    return block[..., slot.start : slot.start + width, :].sum(dim=(1, 3, 5)).reshape(count, slot.neurons)


def _whole_sums(batches: list[Tensor]) -> Sums:
    """Sum the products of several samples over a whole parameter."""
    rows = [batch.reshape(len(batch), -1) for batch in batches]
    sizes = [torch.linalg.vector_norm(row, ord=1, dim=1) for row in rows]  # without a copy, unlike abs().sum()
    return torch.cat([row.sum(dim=1) for row in rows]), torch.cat(sizes)

"""What numbers below 1e-38 cost: an epoch of deep networks with them, and with zero in their place.

Run it as ``python benchmarks/denormals.py``. One thread; Cora, GATv2 of width 64; the two ways take turns.
"""

import statistics
import time
from contextlib import nullcontext

import torch
import torch.nn.functional as F

import equipoise as eq
from equipoise.kernels.denormals import denormals_as_zero

CASES = {
    "10 layers, bal-o": (10, "bal-o", {}),
    "10 layers, bal-o, separate weights": (10, "bal-o", {"share_weights": False}),
    "40 layers, bal-o, separate weights": (40, "bal-o", {"share_weights": False}),
    "40 layers, xav-z": (40, "xav-z", {}),
    "80 layers, xav": (80, "xav", {}),
}


def main() -> None:
    """Print milliseconds of an epoch a layer, both ways, and whether the losses are the same."""
    torch.set_num_threads(1)
    data = eq.load_dataset("cora")
    for name, (layers, scheme, options) in CASES.items():
        found = {}
        for _ in range(3):
            for way, context in (("kept", nullcontext), ("zero", denormals_as_zero)):
                model = eq.Stack("gatv2", [data.num_features, *[64] * (layers - 1), data.classes], **options)
                eq.initialize_(model, scheme, generator=torch.Generator().manual_seed(0))
                with context():
                    found.setdefault(way, []).append(epochs(model, data))
        kept, zero = (1000 / layers * statistics.median(t for _, t in found[way]) for way in ("kept", "zero"))
        same = len({loss for runs in found.values() for loss, _ in runs}) == 1
        print(
            f"{name:<36} {kept:6.2f} ms a layer, {zero:6.2f} as zero: {kept / zero:4.1f} ×",
            "" if same else "losses differ",
        )


def epochs(model: torch.nn.Module, data, count: int = 4) -> tuple[float, float]:
    """The loss after a few epochs, and the median of their seconds."""
    optimizer, spent = torch.optim.SGD(model.parameters(), lr=0.005), []
    for _ in range(count):
        start = time.perf_counter()
        loss = F.cross_entropy(model(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        spent.append(time.perf_counter() - start)
    return loss.item(), statistics.median(spent)


if __name__ == "__main__":
    main()

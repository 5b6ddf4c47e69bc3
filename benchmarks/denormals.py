"""Cost of denormals (float32 below 1.2e-38): epochs of deep networks with denormals kept and flushed to zero.

Run it as ``python benchmarks/denormals.py``. One thread; Cora, GATv2 of width 64; both modes alternate.
"""

import statistics
import time
from contextlib import nullcontext

import torch
import torch.nn.functional as F

import equipoise as eq
from equipoise.kernels.denormals import flush_denormals

NETWORKS = {
    "10 layers, bal-o": (10, "bal-o", {}),
    "10 layers, bal-o, separate weights": (10, "bal-o", {"share_weights": False}),
    "40 layers, bal-o, separate weights": (40, "bal-o", {"share_weights": False}),
    "40 layers, xav-z": (40, "xav-z", {}),
    "80 layers, xav": (80, "xav", {}),
}
ROUNDS = 3


def main() -> None:
    """Print milliseconds per epoch and layer in both modes, and whether the losses agree."""
    torch.set_num_threads(1)
    data = eq.load_dataset("cora")
    for name, (layers, scheme, options) in NETWORKS.items():
        runs = {"kept": [], "flushed": []}
        for _ in range(ROUNDS):
            for mode, context in (("kept", nullcontext), ("flushed", flush_denormals)):
                model = eq.Stack("gatv2", [data.num_features, *[64] * (layers - 1), data.classes], **options)
                eq.initialize_(model, scheme, generator=torch.Generator().manual_seed(0))
                with context():
                    runs[mode].append(time_epochs(model, data))
        kept, flushed = (1000 / layers * statistics.median(seconds for _, seconds in runs[mode]) for mode in runs)
        same = len({loss for mode in runs.values() for loss, _ in mode}) == 1
        print(
            f"{name:<36} {kept:6.2f} ms per layer, {flushed:6.2f} flushed: {kept / flushed:4.1f} ×",
            "" if same else "losses differ",
        )


def time_epochs(model: torch.nn.Module, data, count: int = 4) -> tuple[float, float]:
    """Train for a few epochs; return the last loss and the median seconds per epoch."""
    optimizer, times = torch.optim.SGD(model.parameters(), lr=0.005), []
    for _ in range(count):
        start = time.perf_counter()
        loss = F.cross_entropy(model(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    return loss.item(), statistics.median(times)


if __name__ == "__main__":
    main()

"""Measure the fused layers on your graph
======================================

``eq.fuse_`` replaces PyG's GAT, GATv2 and GCN layers by fused CPU kernels that keep parameters and results. This
example checks the results and measures the speed-up on random graphs of three sizes; put your own model and graph in
their place.
"""

import copy
import statistics
import time

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch_geometric.nn import GAT

import equipoise as eq

torch.set_num_threads(1)

# %%
# A stock model and its fused twin. ``fuse_`` works in place, so make a copy to compare with. All tensors of the
# ``state_dict`` are the same, and checkpoints can be exchanged in both directions.

torch.manual_seed(0)
stock = GAT(64, 64, num_layers=4, out_channels=10, v2=True, act="relu")
fused = eq.fuse_(copy.deepcopy(stock))
print(fused.convs[0])
print("same parameters:", stock.state_dict().keys() == fused.state_dict().keys())

# %%
# Outputs and gradients agree to float32 rounding:


def random_graph(nodes: int, degree: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(nodes)
    x = torch.randn(nodes, 64, generator=generator)
    return x, torch.randint(0, nodes, (2, nodes * degree), generator=generator)


def train_step(model: nn.Module, x: Tensor, edge_index: Tensor) -> Tensor:
    model.zero_grad()
    out = model(x, edge_index)
    out.square().mean().backward()
    return out.detach()


def relative_error(value: Tensor, expected: Tensor) -> float:
    return float((value - expected).norm() / expected.norm())


x, edge_index = random_graph(500, degree=10)
outputs = [train_step(model, x, edge_index) for model in (stock, fused)]
gradients = [model.convs[0].lin_l.weight.grad for model in (stock, fused)]
print(f"relative error of outputs: {relative_error(*outputs):.0e}, of gradients: {relative_error(*gradients):.0e}")

# %%
# Time forward and backward pass. Both models take turns, so that a change in the machine's load affects both, and the
# median discards outliers. The first call of a fused layer compiles its kernels and caches them on disk; the call above
# has done that.


def median_times(x: Tensor, edge_index: Tensor, repeats: int = 7) -> tuple[float, float]:
    seconds: dict[str, list[float]] = {"stock": [], "fused": []}
    for repeat in range(repeats + 1):
        for name, model in (("stock", stock), ("fused", fused)):
            start = time.perf_counter()
            train_step(model, x, edge_index)
            if repeat > 0:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    return statistics.median(seconds["stock"]), statistics.median(seconds["fused"])


sizes = [500, 1500, 4500]
times = [median_times(*random_graph(nodes, degree=10)) for nodes in sizes]
for nodes, (pyg, ours) in zip(sizes, times, strict=True):
    print(f"{10 * nodes:6} edges: PyG {1e3 * pyg:6.1f} ms, fused {1e3 * ours:6.1f} ms, ratio {pyg / ours:.1f}")

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
edges = [10 * nodes for nodes in sizes]
axes[0].plot(edges, [1e3 * pyg for pyg, _ in times], "o-", color="tab:gray", label="PyG")
axes[0].plot(edges, [1e3 * ours for _, ours in times], "s-", color="tab:blue", label="fused")
axes[0].set(xscale="log", yscale="log", xlabel="edges", ylabel="forward + backward pass (ms)")
axes[0].set_xticks(edges, [f"{count:,}" for count in edges])
axes[0].minorticks_off()
axes[0].legend()
bars = axes[1].bar([f"{count:,}" for count in edges], [pyg / ours for pyg, ours in times], color="tab:blue", width=0.5)
axes[1].bar_label(bars, fmt="%.1f×", padding=2)
axes[1].axhline(1, color="black", linewidth=0.8)
axes[1].set(xlabel="edges", ylabel="speed-up over PyG")
axes[1].margins(y=0.15)
for ax in axes:
    ax.grid(axis="y", alpha=0.3)
plt.show()

# %%
# The times are those of the machine that built this page, on one thread. A fused layer computes scores, softmax and
# weighted sum of a node in one pass and stores nothing of size edges × channels, so it needs less memory as well.
# ``equipoise bench`` measures both systematically.

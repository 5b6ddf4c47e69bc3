"""Find a layer that does not learn
================================

The loss falls, the accuracy is good, and still one layer keeps its initial weights. This example records a training run
layer by layer, finds the layer in a heat map, finds the cause in its imbalance, and removes it.
"""

import copy

import matplotlib.pyplot as plt
import torch
from matplotlib.colors import LogNorm

import equipoise as eq

# %%
# Build the defect first. Multiply the weights of layer 3 by 8 and divide those of layer 4 by 8, as may happen when
# weights are converted or merged. A GATv2 of six layers computes the same function afterwards: this is one
# of its laws. (Here even to the last bit, since 8 is a power of two.)

data = eq.load_dataset("synthetic-citation")
healthy = eq.Stack("gatv2", [data.num_features, *[32] * 5, data.classes])
eq.initialize_(healthy, "bal-o", generator=torch.Generator().manual_seed(0))

# A few dozen nodes are enough to discover the laws: they do not depend on the data.
generator = torch.Generator().manual_seed(0)
small_x = torch.rand(20, data.num_features, generator=generator)
small_edges = torch.randint(0, 20, (2, 60), generator=generator)

defective = copy.deepcopy(healthy)
laws = eq.discover(defective, small_x, small_edges)
laws[2].rescale_(torch.full((32,), 8.0))

with torch.no_grad():
    outputs = [model(data.x, data.edge_index) for model in (healthy, defective)]
print(f"largest difference between the outputs: {(outputs[0] - outputs[1]).abs().max():.1e}")

# %%
# Train it with a recorder. ``eq.train`` calls ``rec.step(epoch)`` after each backward pass; in your own training loop,
# you call it yourself.

rec = eq.Recorder(defective, laws, every=5)
history = eq.train(defective, data, lr=0.2, epochs=150, record=rec)
print(f"{history.best_test_metric:.1%} test accuracy, training loss {history.loss[0]:.2f} → {history.loss[-1]:.2f}")

# %%
# Nothing looks wrong so far. Now draw one row per layer. ``rec.frame()`` returns a tidy pandas frame with the columns
# epoch, quantity, layer, neuron and value, so a heat map is a pivot away.


def heat_map(ax, frame, quantity, title, **options):
    table = frame[frame.quantity == quantity].pivot(index="layer", columns="epoch", values="value")
    mesh = ax.pcolormesh(table.columns, table.index, table.to_numpy(float), shading="nearest", **options)
    ax.set(title=title, xlabel="epoch")
    return mesh


frame = rec.frame()
figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True, layout="constrained")
mesh = heat_map(axes[0], frame, "gradient/features", r"relative gradient $\|\nabla W\|/\|W\|$", norm=LogNorm(1e-5, 1))
figure.colorbar(mesh, ax=axes[0])
mesh = heat_map(axes[1], frame, "change/features", "relative change of the weights", norm=LogNorm(1e-3, 3))
figure.colorbar(mesh, ax=axes[1])
axes[0].set_ylabel("layer")
axes[0].invert_yaxis()
plt.show()

# %%
# Layer 3 stands out: its gradients are two orders of magnitude below those of its neighbours, and after 150 epochs its
# weights have moved by less than one percent. It works as a fixed random projection. The recorded imbalance names the
# cause. The weights of layer 3 are outgoing in the law of layer 2 and incoming in that of layer 3, and they outweigh
# the other side of both.

c = frame[(frame.quantity == "balance/c") & (frame.epoch == 1)].groupby("layer").value.mean()
for layer, value in c.items():
    print(f"layer {layer}: mean imbalance c = {value:7.2f}")

# %%
# ``eq.rebalance_`` removes the imbalance without changing the function. Apply it to the same defective weights and
# train again.

repaired = copy.deepcopy(healthy)
repaired_laws = [law.bind(repaired) for law in laws]
repaired_laws[2].rescale_(torch.full((32,), 8.0))
eq.rebalance_(repaired_laws)
repaired_rec = eq.Recorder(repaired, repaired_laws, every=5)
repaired_history = eq.train(repaired, data, lr=0.2, epochs=150, record=repaired_rec)

figure, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
for name, recorder, offset in (("defective", rec, -0.2), ("after rebalance_", repaired_rec, 0.2)):
    rows = recorder.frame()
    last = rows[(rows.quantity == "change/features") & (rows.epoch == 150)]
    ax.bar(last.layer.astype(int) + offset, 100 * last.value, width=0.4, label=name)
ax.set(xlabel="layer", ylabel="change of the weights (%)", yscale="log", ylim=(0.5, 300))
ax.legend()
ax.grid(axis="y", alpha=0.3)
plt.show()

# %%
# Both networks reach nearly the same accuracy, so the curves alone would never show it:

print(f"defective: {history.best_test_metric:.1%}, after rebalance_: {repaired_history.best_test_metric:.1%}")

# %%
# The defective network has six layers and trains five. After rebalancing, every layer learns.

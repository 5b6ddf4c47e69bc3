"""Check the depth of your model
=============================

How deep can a model be and still train? ``eq.depth_check`` answers this in seconds, before you spend a week of
training: it builds your model at several depths, takes a few steps of plain gradient descent, and measures what
arrives at the first layer.
"""

import matplotlib.pyplot as plt
from torch import nn
from torch_geometric.nn import GAT

import equipoise as eq

# %%
# ``depth_check`` needs a function that builds the model for a given depth. Any model that is called as
# ``model(x, edge_index)`` will do.

data = eq.load_dataset("synthetic-citation")


def build(depth: int) -> nn.Module:
    return GAT(data.num_features, 32, num_layers=depth, out_channels=data.classes, v2=True, act="relu")


# %%
# Compare the model as built (``"default"``) with a balanced initialisation, ten steps each. ``seconds`` limits the time
# of one run; kernels that are compiled for the first time count towards it.

check = eq.depth_check(build, data, depths=(2, 5, 10, 20), schemes=("default", "bal-o"), steps=10, seconds=60)
print(check)

# %%
# The verdict extrapolates to 5000 steps: would the loss fall to 90 % of the entropy of the class frequencies, the least
# loss of a constant prediction?
#
# ``check.figure("depth.png")`` saves a figure with four panels. ``check.summary()`` returns the same numbers as a
# pandas frame, one row per depth and scheme.

summary = check.summary()
panels = {
    "gradient": (r"relative gradient of layer 1, $\|\nabla W\|/\|W\|$", "log"),
    "imbalance": ("relative imbalance of the worst layer", "linear"),
    "distance": ("distance between neighbours, last hidden layer", "log"),
}
figure, axes = plt.subplots(1, 3, figsize=(11.5, 3.6), layout="constrained")
for ax, (quantity, (title, scale)) in zip(axes, panels.items(), strict=True):
    for (scheme, colour), marker in zip({"default": "tab:gray", "bal-o": "tab:blue"}.items(), "os", strict=True):
        rows = summary[summary.scheme == scheme]
        ax.plot(rows.depth, rows[quantity], marker=marker, color=colour, label=scheme)
    ax.set_title(title, fontsize=10)
    ax.set(xlabel="layers", xscale="log", yscale=scale)
    ax.set_xticks([2, 5, 10, 20], ["2", "5", "10", "20"], minor=False)
    ax.minorticks_off()
    ax.grid(alpha=0.3)
axes[0].legend()
plt.show()

# %%
# ``check.frame()`` has every layer at every recorded step. Here is where the gradient of the deepest network gets lost:

frame = check.frame()
figure, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
for (scheme, colour), marker in zip({"default": "tab:gray", "bal-o": "tab:blue"}.items(), "os", strict=True):
    rows = frame[(frame.scheme == scheme) & (frame.depth == 20) & (frame.quantity == "gradient/features")]
    first = rows[rows.epoch == rows.epoch.min()]
    ax.semilogy(first.layer.astype(int), first.value, marker=marker, color=colour, label=scheme)
ax.set(xlabel="layer", ylabel="relative gradient at step 1", xticks=range(1, 21), title="20 layers")
ax.legend()
ax.grid(alpha=0.3)
plt.show()

# %%
# As built, the gradient of the first layer falls by orders of magnitude with depth; balanced, it stays. From a shell,
# the same check is ``equipoise inspect examples/factories/deep_gat.py:build --dataset cora``.

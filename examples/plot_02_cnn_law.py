"""A conservation law of a CNN
============================

The laws are not specific to graph networks. This example discovers those of a small convolutional network, checks one
of them by rescaling a channel, and uses it to see which channels are out of balance.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import equipoise as eq

# %%
# A plain image classifier, as PyTorch initialises it.

torch.manual_seed(0)
cnn = nn.Sequential(
    nn.Conv2d(1, 16, kernel_size=3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, kernel_size=3, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(32, 10),
)
images = torch.randn(8, 1, 16, 16)

# %%
# ``eq.discover`` runs a float64 copy of the network on random inputs and reads the laws off its gradients. It needs no
# list of layer types: pooling and flattening are part of the function that it differentiates.

laws = eq.discover(cnn, images)
for law in laws:
    print(law)

# %%
# The first line says: multiply filter ``i`` of the first convolution and its bias by :math:`\lambda > 0`, divide what
# the second convolution reads from channel ``i`` by :math:`\lambda`, and the network computes the same function. Try it
# with channel 2 and :math:`\lambda = 10`. The logits agree to float32 rounding.

before = cnn(images).detach()
factors = torch.ones(16)
factors[2] = 10.0
laws[0].rescale_(factors)
print(f"largest difference between the logits: {(cnn(images) - before).abs().max():.1e}")

# %%
# The function is the same, the optimisation problem is not. Each channel has an imbalance
#
# .. math:: c_i = \lVert\text{incoming}_i\rVert^2 - \lVert\text{outgoing}_i\rVert^2
#
# which gradient flow conserves. Channel 2 keeps a large incoming filter and nearly frozen outgoing weights for as long
# as gradient descent takes small steps. ``eq.rebalance_`` rescales every channel so that :math:`c_i = 0`, and again
# leaves the logits unchanged.

norms = {"channel 2 rescaled by 10": [law.norms() for law in laws]}
eq.rebalance_(laws)
norms["after rebalance_"] = [law.norms() for law in laws]
print(f"largest difference between the logits: {(cnn(images) - before).abs().max():.1e}")

# %%
# One dot per channel. A balanced channel lies on the diagonal.

figure, axes = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
markers = {"first convolution": ("o", "tab:blue"), "second convolution": ("^", "tab:orange")}
for ax, (title, both) in zip(axes, norms.items(), strict=True):
    for (label, (marker, colour)), (incoming, outgoing) in zip(markers.items(), both, strict=True):
        ax.plot(incoming.detach(), outgoing.detach(), marker, color=colour, label=label, alpha=0.7)
    ax.axline((1, 1), slope=1, color="black", linewidth=0.8, zorder=0)
    ax.set(xscale="log", yscale="log", xlim=(0.05, 500), ylim=(0.002, 20), title=title)
    ax.set_xlabel("incoming squared norm")
    ax.grid(alpha=0.3)
axes[0].set_ylabel("outgoing squared norm")
axes[0].annotate(
    "channel 2", [float(norm[2]) for norm in norms["channel 2 rescaled by 10"][0]], (-70, 8), textcoords="offset points"
)
axes[1].legend(title="channels of the")
plt.show()

# %%
# Not every channel has a law. ``eq.explain`` names the reason: here a batch norm undoes any rescaling in front of it,
# and GELU is not positively homogeneous, so :math:`\mathrm{GELU}(\lambda x) \neq \lambda\,\mathrm{GELU}(x)`.

torch.manual_seed(0)
modern = nn.Sequential(
    nn.Conv2d(1, 16, kernel_size=3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.Conv2d(16, 32, kernel_size=3, padding=1),
    nn.GELU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(32, 10),
)
print(eq.explain(modern, images))

# %%
# The plain network has one law per hidden layer. In the second network a single law is left: the scale and shift of the
# batch norm balance against the convolution that reads them.

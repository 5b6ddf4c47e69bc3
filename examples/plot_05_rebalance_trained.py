"""Rebalance a trained network
===========================

A Xavier initialisation is out of balance, and Adam does not conserve the imbalance :math:`c` but adds to it. This
example rebalances a network halfway through training: the outputs stay the same, the imbalance vanishes, and the
optimizer's state follows, so that training continues where it was.
"""

import copy

import matplotlib.pyplot as plt
import torch
from torch import nn

import equipoise as eq

# %%
# Train a GATv2 of four layers with Adam, from the default initialisation of most libraries (Xavier).

data = eq.load_dataset("synthetic-citation")
model = eq.Stack("gatv2", [data.num_features, 32, 32, 32, data.classes])
eq.initialize_(model, "xav", generator=torch.Generator().manual_seed(0))
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
history = eq.train(model, data, optimizer=optimizer, epochs=25)
print(f"{history.best_test_metric:.1%} test accuracy, training loss {history.loss[-1]:.3f}")

# %%
# Make a copy of the model and of the optimizer first, to compare with later.

unbalanced = copy.deepcopy(model)
unbalanced_optimizer = torch.optim.Adam(unbalanced.parameters(), lr=0.005)
unbalanced_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))

# %%
# Discover the laws and rebalance. ``rebalance_`` finds the one network of smallest norm among all networks that these
# rescalings can reach. Gradients scale by :math:`1/\lambda` where parameters scale by :math:`\lambda`, so with
# ``optimizer=`` Adam's first moment is rescaled by :math:`1/\lambda` and its second moment by :math:`1/\lambda^2`.

generator = torch.Generator().manual_seed(0)
small_x = torch.rand(20, data.num_features, generator=generator)
small_edges = torch.randint(0, 20, (2, 60), generator=generator)
laws = eq.discover(model, small_x, small_edges)


@torch.no_grad()
def scores(network: nn.Module) -> torch.Tensor:
    return network(data.x, data.edge_index)


def squared_norm(network: nn.Module) -> float:
    return sum(float(parameter.detach().square().sum()) for parameter in network.parameters())


before = [c.detach() for c in eq.imbalance(laws)]
worst = eq.rebalance_(laws, optimizer)
after = [c.detach() for c in eq.imbalance(laws)]

difference = (scores(model) - scores(unbalanced)).abs().max() / scores(unbalanced).abs().max()
print(f"largest relative difference of the outputs: {difference:.1e}")
print(f"largest relative imbalance left: {worst:.1e}")
print(f"squared norm of all weights: {squared_norm(unbalanced):.1f} → {squared_norm(model):.1f}")

# %%
# The product of a weight with its first moment does not change when :math:`\lambda` scales one up and the other down.
# Check it for the second layer:

weights = [network.convs[1].lin_l.weight for network in (unbalanced, model)]
moments = [
    adam.state[weight]["exp_avg"] for adam, weight in zip((unbalanced_optimizer, optimizer), weights, strict=True)
]
products = [(weight * moment).detach() for weight, moment in zip(weights, moments, strict=True)]
print("weight × first moment unchanged:", torch.allclose(*products, rtol=1e-4, atol=1e-9))

# %%
# Continue training for some more epochs from both.

continued = {
    "unbalanced": eq.train(unbalanced, data, optimizer=unbalanced_optimizer, epochs=25),
    "rebalanced": eq.train(model, data, optimizer=optimizer, epochs=25),
}

figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
for name, values, colour in (("before", before, "tab:gray"), ("after rebalance_", after, "tab:blue")):
    for layer, c in enumerate(values, start=1):
        positions = layer + torch.linspace(-0.3, 0.3, len(c))
        axes[0].plot(positions, c, ".", color=colour, label=name if layer == 1 else None)
axes[0].axhline(0, color="black", linewidth=0.8)
axes[0].set(title="imbalance, one dot per neuron", xlabel="law", ylabel="$c_i$", xticks=range(1, len(laws) + 1))
axes[0].legend()

epochs = range(1, history.epochs + 1)
axes[1].plot(epochs, history.loss, color="black", label="before the copy")
for (name, run), style, colour in zip(continued.items(), ("-", "--"), ("tab:gray", "tab:blue"), strict=True):
    axes[1].plot(range(26, 26 + run.epochs), run.loss, style, color=colour, label=name)
axes[1].axvline(25.5, color="black", linewidth=0.8, linestyle=":")
axes[1].set(title="training loss", xlabel="epoch", yscale="log")
axes[1].legend()
for ax in axes:
    ax.grid(alpha=0.3)
plt.show()

# %%
for name, run in continued.items():
    print(f"{name}: loss {run.loss[0]:.4f} → {run.loss[-1]:.4f}, {run.best_test_metric:.1%} test accuracy")

# %%
# Both continue from the same loss, because they compute the same function. After that the runs separate: Adam takes
# steps of the same size for every weight, so its path depends on how the weights are scaled. ``rebalance_`` itself
# changes no prediction, and it returns the weights of smallest norm that give these predictions by rescaling.

r"""Read the conservation law off a plot
=====================================

This example records two quantities during training. The residual :math:`\delta` is zero at every step of every
optimizer. The imbalance :math:`c` is conserved by gradient flow; a step of gradient descent moves it by an amount that
is known exactly, and Adam does not conserve it.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import equipoise as eq

# %%
# Multiply the incoming weights of a neuron by :math:`\lambda > 0` and divide its outgoing weights by :math:`\lambda`.
# If the network still computes the same function, then
#
# .. math::
#     \delta = \sum_\text{in} \langle\theta, \nabla\theta\rangle
#     - \sum_\text{out} \langle\theta, \nabla\theta\rangle = 0,
#     \qquad
#     c = \sum_\text{in} \|\theta\|^2 - \sum_\text{out} \|\theta\|^2,
#
# and a step of gradient descent with learning rate :math:`\gamma` changes the imbalance by
#
# .. math::
#     c(t+1) - c(t) = -2\gamma\,\delta(t)
#     + \gamma^2 \Big(\sum_\text{in} \|\nabla\theta\|^2 - \sum_\text{out} \|\nabla\theta\|^2\Big).
#
# Record both for a GATv2 of three layers, in float64 so that rounding does not hide anything.

data = eq.load_dataset("synthetic-citation")
data.x = data.x.double()
generator = torch.Generator().manual_seed(0)
small_x = torch.rand(20, data.num_features, generator=generator, dtype=torch.float64)
small_edges = torch.randint(0, 20, (2, 60), generator=generator)


def record(optimizer: str, lr: float):
    model = eq.Stack("gatv2", [data.num_features, 16, 16, data.classes]).double()
    eq.initialize_(model, "bal-x", generator=torch.Generator().manual_seed(0))
    laws = eq.discover(model, small_x, small_edges)
    rec = eq.Recorder(model, laws, every=1, quantities=["balance"])
    history = eq.train(model, data, optimizer=optimizer, lr=lr, epochs=60, record=rec)
    print(f"{optimizer}: training loss {history.loss[0]:.2f} → {history.loss[-1]:.2f}")
    return rec.frame()


frames = {"SGD": record("sgd", lr=1.0), "Adam": record("adam", lr=0.003)}

# %%
# First the residual. ``balance/terms`` is the size of the terms that cancel in it.

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
for ax, (name, frame) in zip(axes, frames.items(), strict=True):
    residual = frame[frame.quantity == "balance/delta"].groupby("epoch").value.agg(lambda v: v.abs().max())
    terms = frame[frame.quantity == "balance/terms"].groupby("epoch").value.max()
    ax.semilogy(terms.index, terms, color="tab:orange", label=r"terms, $\sum|\langle\theta,\nabla\theta\rangle|$")
    ax.semilogy(residual.index, residual, color="tab:blue", label=r"largest residual, $|\delta|$")
    ax.set(title=name, xlabel="epoch")
    ax.grid(alpha=0.3)
axes[0].legend(loc="center left")
plt.show()

# %%
# The residual is rounding error of its terms, fourteen orders of magnitude below them, with either optimizer: it is a
# property of the network, not of the training.
#
# Now the imbalance of every neuron of the first layer.

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
for ax, (name, frame) in zip(axes, frames.items(), strict=True):
    rows = frame[(frame.quantity == "balance/c") & (frame.layer == 1)]
    c = rows.pivot(index="epoch", columns="neuron", values="value")
    ax.plot(c.index, c, color="tab:blue", linewidth=0.8, alpha=0.7)
    ax.set(title=f"{name}: imbalance of each neuron, layer 1", xlabel="epoch")
    ax.grid(alpha=0.3)
axes[0].set_ylabel("$c_i$")
plt.show()

# %%
# Under gradient descent the imbalance stays close to its initial value of zero; under Adam it does not. The small drift
# under gradient descent is not an error. Compare each measured step with the prediction, neuron by neuron.

sgd = frames["SGD"]
measured = sgd[sgd.quantity == "balance/drift"].value.to_numpy()
predicted = sgd[sgd.quantity == "balance/predicted_drift"].value.to_numpy()

figure, ax = plt.subplots(figsize=(5, 4.6), layout="constrained")
ax.plot(predicted, measured, ".", markersize=4, alpha=0.5, label="one neuron in one step")
limit = 1.1 * np.abs(predicted).max()
ax.plot([-limit, limit], [-limit, limit], color="black", linewidth=0.8, label="measured = predicted")
ax.set(xlabel="predicted drift of $c_i$", ylabel="measured drift of $c_i$")
ax.set_xscale("symlog", linthresh=1e-6)
ax.set_yscale("symlog", linthresh=1e-6)
ax.legend()
ax.grid(alpha=0.3)
plt.show()

# %%
print(f"largest drift in one step: {np.abs(measured).max():.1e}")
print(f"largest deviation from the prediction: {np.abs(measured - predicted).max():.1e}")
for name, frame in frames.items():
    last = frame[(frame.quantity == "balance/c") & (frame.epoch == 60)].value.abs().max()
    print(f"largest |c| after 60 epochs of {name}: {last:.2f}")

# %%
# The prediction is exact to rounding. This tells an implementation error from discretisation in your own code: under
# plain gradient descent, a measured drift that differs from ``law.predicted_drift(lr)`` is a bug.

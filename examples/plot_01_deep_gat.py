"""Train a stock 10-layer GAT
===========================

PyG's ``GAT`` does not train at ten layers. This example initialises it with ``bal-o``, changes nothing else, and
compares the training curves under Adam and under plain gradient descent.
"""

import matplotlib.pyplot as plt
import torch
from torch_geometric.nn import GAT

import equipoise as eq

# %%
# The data set is built in, so nothing is downloaded: 1750 papers in 7 classes, 20 labelled papers per class.

data = eq.load_dataset("synthetic-citation")
print(data)

# %%
# ``eq.initialize_`` works in place on the model you already have. It keeps every ``Parameter`` object, so an
# optimizer that was built earlier stays valid. ``eq.fuse_`` is optional: it swaps PyG's layers for fused CPU kernels
# with the same parameters and the same results, which makes this page build faster.


def build(scheme: str | None, **options: bool) -> GAT:
    torch.manual_seed(0)
    model = GAT(data.num_features, 32, num_layers=10, out_channels=data.classes, v2=True, act="relu", **options)
    if scheme is not None:
        eq.initialize_(model, scheme, generator=torch.Generator().manual_seed(0))
    return eq.fuse_(model)


# %%
# Adam first, on the model exactly as PyG builds it: separate weights for source and target nodes, and biases.

adam = {
    "PyG's default": eq.train(build(None), data, optimizer="adam", lr=0.002, epochs=60),
    "bal-o": eq.train(build("bal-o"), data, optimizer="adam", lr=0.002, epochs=60),
}

# %%
# Then plain gradient descent, on the network of the paper: shared weights and no biases. Gradient descent is the harder
# test, because Adam rescales small gradients and gradient descent does not.

plain = {"bias": False, "share_weights": True}
sgd = {
    "PyG's default": eq.train(build(None, **plain), data, optimizer="sgd", lr=0.1, epochs=160),
    "bal-o": eq.train(build("bal-o", **plain), data, optimizer="sgd", lr=0.1, epochs=160),
}

# %%
# The dot marks the epoch with the highest validation accuracy; its test accuracy is the result of the run.

colours = {"PyG's default": "tab:gray", "bal-o": "tab:blue"}
figure, axes = plt.subplots(2, 2, figsize=(9, 5.6), sharex="col", layout="constrained")
for column, (title, runs) in zip(axes.T, {"Adam, lr 0.002": adam, "SGD, lr 0.1": sgd}.items(), strict=True):
    for name, history in runs.items():
        epochs = range(1, history.epochs + 1)
        column[0].plot(epochs, history.loss, color=colours[name], label=name)
        column[1].plot(epochs, history.test_metric, color=colours[name], label=name)
        column[1].plot(history.best_epoch, history.best_test_metric, "o", color=colours[name])
    column[0].set_title(title)
    column[1].set(xlabel="epoch", ylim=(0, 1))
    for ax in column:
        ax.grid(alpha=0.3)
axes[0, 0].set_ylabel("training loss")
axes[1, 0].set_ylabel("test accuracy")
axes[0, 0].legend()
plt.show()

# %%
# The same numbers as a table:

for title, runs in {"Adam": adam, "SGD": sgd}.items():
    for name, history in runs.items():
        print(f"{title:5} {name:14} {history.best_test_metric:6.1%} test accuracy, epoch {history.best_epoch}")

# %%
# With its default initialisation the network learns slowly under Adam and not at all under gradient descent: 14.2 %
# is one class out of seven. The balanced network reaches more than 85 % with either optimizer. The spikes in its loss
# under gradient descent are steps that overshoot; it recovers within a few epochs.

"""Classify graphs
===============

``eq.train`` takes loaders of batches as well as a single graph. This example classifies random graphs by the way they
were generated, with ten layers of GATv2 and a pooling layer, and compares PyG's initialisation with ``bal-o``.
"""

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GAT, global_mean_pool
from torch_geometric.utils import barabasi_albert_graph, degree, erdos_renyi_graph, stochastic_blockmodel_graph

import equipoise as eq

# %%
# Three kinds of graphs with 30 nodes and a mean degree of about 6. A node's feature is its degree, as a one-hot vector:
# hubs are a sign of a Barabási–Albert graph, while the other two kinds have similar degrees.

NODES, MAX_DEGREE = 30, 15


def generate(kind: int) -> Tensor:
    if kind == 0:
        return erdos_renyi_graph(NODES, 0.2)
    if kind == 1:
        return barabasi_albert_graph(NODES, 3)
    return stochastic_blockmodel_graph([10, 20], [[0.5, 0.02], [0.02, 0.22]])


def random_graph(kind: int) -> Data:
    edge_index = generate(kind)
    degrees = degree(edge_index[0], NODES).long().clamp(max=MAX_DEGREE)
    x = nn.functional.one_hot(degrees, MAX_DEGREE + 1).float()
    return Data(x=x, edge_index=edge_index, y=torch.tensor([kind]))


seed_everything(0)
graphs = [random_graph(number % 3) for number in range(300)]
loaders = {
    "train": DataLoader(graphs[:180], batch_size=60, shuffle=True),
    "val": DataLoader(graphs[180:240], batch_size=60),
    "test": DataLoader(graphs[240:], batch_size=60),
}
batch = next(iter(loaders["val"]))
print(batch)

# %%
# ``eq.train`` passes ``batch`` to a model whose ``forward`` has an argument of this name. It says which graph each node
# belongs to.


class GraphClassifier(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.gnn = GAT(MAX_DEGREE + 1, 32, num_layers=layers, v2=True, act="relu")
        self.readout = nn.Linear(32, 3)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return self.readout(global_mean_pool(self.gnn(x, edge_index).relu(), batch))


seed_everything(0)
laws = eq.discover(GraphClassifier(2), batch.x, batch.edge_index, batch.batch)
for law in laws:
    print(law)

# %%
# The laws run through the pooling layer, since it is linear: the weights of the readout balance those of the last
# convolution. ``initialize_`` balances them as well. It needs to know how to call the model, hence ``inputs=``.

inputs = (batch.x, batch.edge_index, batch.batch)
histories = {}
for name in ("PyG's default", "bal-o"):
    seed_everything(0)
    model = GraphClassifier(10)
    if name == "bal-o":
        eq.initialize_(model, "bal-o", generator=torch.Generator().manual_seed(0), inputs=inputs)
    histories[name] = eq.train(eq.fuse_(model), loaders, optimizer="adam", lr=0.002, epochs=20)

# %%
# An epoch is three steps. The dot marks the epoch with the highest validation accuracy.

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for (name, history), colour in zip(histories.items(), ("tab:gray", "tab:blue"), strict=True):
    epochs = range(1, history.epochs + 1)
    axes[0].plot(epochs, history.loss, color=colour, label=name)
    axes[1].plot(epochs, history.test_metric, color=colour, label=name)
    axes[1].plot(history.best_epoch, history.best_test_metric, "o", color=colour)
axes[0].set(title="training loss", xlabel="epoch", yscale="log")
axes[1].set(title="test accuracy", xlabel="epoch", ylim=(0, 1))
axes[0].legend()
for ax in axes:
    ax.set_xticks(range(0, 21, 5))
    ax.grid(alpha=0.3)
plt.show()

# %%
for name, history in histories.items():
    print(
        f"{name:14} {history.best_test_metric:.1%} test accuracy, epoch {history.best_epoch}, "
        f"training loss {history.loss[-1]:.3f}"
    )

# %%
# ``bal-o`` is close to its final accuracy after two epochs, and its training loss ends an order of magnitude lower.
# Adam trains the network as built, too, but more slowly: it comes within a few graphs of ``bal-o`` after about 18
# epochs. With 60 test graphs, differences of a few per cent mean little.

"""Use your own layer
==================

A new message-passing layer gets its laws for free: ``discover`` reads them off the gradients and knows no layer types.
The laws also show the role of each parameter, so balanced schemes work on the layer as well.
"""

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

import equipoise as eq

# %%
# The layer of this example weights each neighbour by a gate that compares its features with those of the target node:
#
# .. math::
#     h'_v = \frac{1}{|N(v)|} \sum_{u \in N(v)} \sigma\!\left(-a^\top |z_u - z_v|\right) z_u, \qquad z = W h
#
# It is not part of any library.


class SimilarityConv(MessagePassing):
    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(aggr="mean")
        self.lin = nn.Linear(in_channels, out_channels, bias=False)
        self.att = nn.Parameter(torch.empty(out_channels))
        nn.init.normal_(self.att, std=out_channels**-0.5)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, z=self.lin(x))

    def message(self, z_i: Tensor, z_j: Tensor) -> Tensor:
        gate = torch.sigmoid(-((z_i - z_j).abs() @ self.att))
        return gate.unsqueeze(-1) * z_j


class Network(nn.Module):
    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(map(SimilarityConv, widths[:-1], widths[1:]))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv in self.convs[:-1]:
            x = conv(x, edge_index).relu()
        return self.convs[-1](x, edge_index)


# %%
# The laws, of a network with three layers:

data = eq.load_dataset("synthetic-citation")
generator = torch.Generator().manual_seed(0)
small_x = torch.rand(20, data.num_features, generator=generator)
small_edges = torch.randint(0, 20, (2, 60), generator=generator)

torch.manual_seed(0)
for law in eq.discover(Network([data.num_features, 32, 32, data.classes]), small_x, small_edges):
    print(law)

# %%
# Each neuron balances row ``i`` of its matrix against entry ``i`` of the gate's vector and column ``i`` of the next
# matrix: the same law as for a GAT layer.
#
# ``initialize_`` reads the roles of parameters off the laws: the matrix writes neurons, the vector reads them without
# making the output larger, so it is attention. Compare two schemes in a network of eight layers.

histories, imbalances = {}, {}
for scheme in ("xav", "bal-o"):
    torch.manual_seed(0)
    model = Network([data.num_features, *[32] * 7, data.classes])
    eq.initialize_(model, scheme, inputs=(small_x, small_edges), generator=torch.Generator().manual_seed(0))
    laws = eq.discover(model, small_x, small_edges)
    imbalances[scheme] = [law.relative_imbalance().abs().mean().item() for law in laws]
    histories[scheme] = eq.train(model, data, optimizer="adam", lr=0.005, epochs=50)

figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained")
for (scheme, history), colour, marker in zip(histories.items(), ("tab:gray", "tab:blue"), "os", strict=True):
    layers = range(1, len(imbalances[scheme]) + 1)
    axes[0].plot(layers, imbalances[scheme], marker=marker, color=colour, label=scheme)
    axes[1].plot(range(1, history.epochs + 1), history.test_metric, color=colour, label=scheme)
axes[0].set(
    title="mean relative imbalance at initialisation", xlabel="hidden layer", ylabel="|c| / (incoming + outgoing)"
)
axes[1].set(title="test accuracy", xlabel="epoch", ylim=(0, 1))
axes[0].legend()
for ax in axes:
    ax.grid(alpha=0.3)
plt.show()

# %%
for scheme, history in histories.items():
    print(f"{scheme:6} {history.best_test_metric:.1%} test accuracy, training loss {history.loss[-1]:.3f}")

# %%
# ``bal-o`` balances every neuron of the new layer exactly, and the deep network trains.

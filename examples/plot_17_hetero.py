"""Balance a heterogeneous model
=============================

A network with several types of nodes and edges is not a chain of layers, but it has laws, and these are all that
``initialize_`` needs. This example adds authors to the citation graph and trains eight layers of ``HeteroConv``.
"""

import copy

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import GATv2Conv, HeteroConv, SAGEConv

import equipoise as eq

# %%
# 500 authors write four papers each, 80 % of them in the author's field. Authors have no features of their own, so each
# gets a one. Targets and masks belong to the papers and are set on the graph itself, where ``eq.train`` looks for them.

papers = eq.load_dataset("synthetic-citation")
AUTHORS, PAPERS_PER_AUTHOR = 500, 4
CITES, WRITES, WRITTEN_BY = ("paper", "cites", "paper"), ("author", "writes", "paper"), ("paper", "by", "author")

generator = torch.Generator().manual_seed(0)
shape = (AUTHORS, PAPERS_PER_AUTHOR)
papers_by_field = papers.y.argsort(stable=True).view(papers.classes, -1)  # as many papers in each field
fields = torch.randint(papers.classes, (AUTHORS, 1), generator=generator)
in_own_field = torch.rand(shape, generator=generator) < 0.8
fields = torch.where(in_own_field, fields, torch.randint(papers.classes, shape, generator=generator))
written = papers_by_field[fields, torch.randint(papers_by_field.size(1), shape, generator=generator)]
authorship = torch.stack([torch.arange(AUTHORS).repeat_interleave(PAPERS_PER_AUTHOR), written.flatten()])

data = HeteroData()
data["paper"].x, data["author"].x = papers.x, torch.ones(AUTHORS, 1)
data[CITES].edge_index = papers.edge_index
data[WRITES].edge_index, data[WRITTEN_BY].edge_index = authorship, authorship.flip(0)
data.y = papers.y
data.train_mask, data.val_mask, data.test_mask = papers.train_mask, papers.val_mask, papers.test_mask
print(data)

# %%
# Papers read papers by attention; papers read their authors, and authors their papers, by ``SAGEConv``. The last layer
# needs no new features of authors.


class HeteroNetwork(nn.Module):
    def __init__(self, layers: int, width: int = 32) -> None:
        super().__init__()
        self.convs = nn.ModuleList()
        for layer in range(layers - 1):
            paper, author = (papers.num_features, 1) if layer == 0 else (width, width)
            convs = {
                CITES: GATv2Conv(paper, width),
                WRITES: SAGEConv((author, paper), width),
                WRITTEN_BY: SAGEConv((paper, author), width),
            }
            self.convs.append(HeteroConv(convs, aggr="sum"))
        self.last = SAGEConv((width, width), papers.classes)

    def forward(self, graph: HeteroData) -> Tensor:
        x = graph.x_dict
        for conv in self.convs:
            x = {kind: out.relu() for kind, out in conv(x, graph.edge_index_dict).items()}
        return self.last((x["author"], x["paper"]), graph[WRITES].edge_index)


# %%
# There are two laws per hidden layer, one per type of node. These are the parameters on either side of the laws of the
# first layer:

torch.manual_seed(0)
model = HeteroNetwork(8)
laws = eq.discover(model, data)
print(f"{len(laws)} laws")
for law in laws[:2]:
    print(f"\n{law.neurons} neurons")
    print("  incoming:", *(slot.name for slot in law.incoming), sep="\n    ")
    print("  outgoing:", *(slot.name for slot in law.outgoing), sep="\n    ")

# %%
# ``fuse_`` replaces the layers inside ``HeteroConv`` and keeps their parameters, so the laws stay valid.

eq.fuse_(model)
print({type(conv).__name__ for conv in model.convs[0].convs.values()})

# %%
# Pass the laws to ``initialize_``. ``rebalanced`` keeps the weights as PyG drew them and moves them along the laws;
# ``bal-o`` draws new ones.

as_built = copy.deepcopy(model.state_dict())
histories, imbalances = {}, {}
for name, scheme in {"PyG's default": None, "rebalanced": "rebalanced", "bal-o": "bal-o"}.items():
    model.load_state_dict(as_built)
    if scheme is not None:
        eq.initialize_(model, scheme, laws=laws, generator=torch.Generator().manual_seed(0))
    imbalances[name] = [law.relative_imbalance().abs().mean().item() for law in laws]
    histories[name] = eq.train(model, data, optimizer="adam", lr=0.002, epochs=35)

# %%
colours = {"PyG's default": "tab:gray", "rebalanced": "tab:orange", "bal-o": "tab:blue"}
figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
for (name, history), marker, size in zip(histories.items(), "o^s", (6, 10, 5), strict=True):
    epochs = range(1, history.epochs + 1)
    axes[0].plot(
        range(1, len(laws) + 1), imbalances[name], color=colours[name], marker=marker, markersize=size, label=name
    )
    axes[1].plot(epochs, history.loss, color=colours[name], label=name)
    axes[2].plot(epochs, history.test_metric, color=colours[name], label=name)
axes[0].set(title="mean relative imbalance at initialisation", xlabel="law")
axes[1].set(title="training loss", xlabel="epoch")
axes[2].set(title="test accuracy", xlabel="epoch", ylim=(0, 1))
axes[0].legend()
for ax in axes:
    ax.grid(alpha=0.3)
plt.show()

# %%
for name, history in histories.items():
    print(
        f"{name:14} {history.best_test_metric:.1%} test accuracy, epoch {history.best_epoch}, "
        f"training loss {history.loss[-1]:.3f}"
    )

# %%
# As built, the last hidden layer is far out of balance, the others much less. Rebalancing removes the imbalance, and
# the loss falls a little faster. ``bal-o``, which also sets the gain of the layers, trains the network within 35
# epochs.

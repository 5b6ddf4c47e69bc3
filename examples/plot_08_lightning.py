"""Record a Lightning run
======================

``RecorderCallback`` connects a recorder to a Lightning trainer: gradients, balance and representations of every layer,
without a line in your ``LightningModule``.

Install Lightning with ``pip install 'equipoise[lightning]'``.
"""

import logging
import warnings

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import equipoise as eq
from equipoise.integrations.lightning import RecorderCallback

try:
    import lightning as L
except ImportError:
    L = None
    print("Lightning is not installed, so this example does not run: pip install 'equipoise[lightning]'")

# %%
# An ordinary module for node classification on one graph. The only batch is the whole graph.

if L is not None:

    class NodeClassifier(L.LightningModule):
        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch, _):
            (data,) = batch
            scores = self.model(data.x, data.edge_index)
            loss = F.cross_entropy(scores[data.train_mask], data.y[data.train_mask])
            self.log("train_loss", loss, batch_size=1)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.model.parameters(), lr=0.2)


# %%
# Create the recorder for the network inside the module, and pass it to the trainer as a callback. It records after the
# backward pass, when gradients are complete and not yet clipped, and measures each step after the optimizer has taken
# it.


def fit(scheme: str, epochs: int = 100) -> eq.Recorder:
    data = eq.load_dataset("synthetic-citation")
    model = eq.Stack("gatv2", [data.num_features, *[32] * 5, data.classes])
    eq.initialize_(model, scheme, generator=torch.Generator().manual_seed(0))

    generator = torch.Generator().manual_seed(0)
    small_x = torch.rand(20, data.num_features, generator=generator)
    small_edges = torch.randint(0, 20, (2, 60), generator=generator)
    rec = eq.Recorder(model, eq.discover(model, small_x, small_edges), every=5)

    trainer = L.Trainer(
        max_epochs=epochs,
        callbacks=[RecorderCallback(rec)],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(NodeClassifier(model), DataLoader([data], collate_fn=list))
    return rec


if L is not None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)  # no list of devices on this page
    warnings.filterwarnings("ignore", module="lightning")  # a loader of one graph needs no worker processes
    frames = {scheme: fit(scheme).frame() for scheme in ("xav", "bal-o")}

# %%
# ``rec.frame()`` holds everything that was recorded, and the metrics ``loss`` and ``train_loss`` if the module logs
# them.

if L is not None:
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    for ax, (scheme, frame) in zip(axes, frames.items(), strict=False):
        gradients = frame[frame.quantity == "gradient/features"].pivot(index="epoch", columns="layer", values="value")
        for layer, values in gradients.items():
            ax.plot(values.index, values, color=plt.cm.viridis((layer - 1) / 5), label=f"layer {layer}")
        ax.set(title=f"{scheme}: relative gradient", xlabel="epoch", yscale="log", ylim=(1e-5, 1e-1))
    axes[0].legend(fontsize=8, ncols=2)
    for (scheme, frame), colour in zip(frames.items(), ("tab:gray", "tab:blue"), strict=True):
        loss = frame[frame.quantity == "train/train_loss"]
        axes[2].plot(loss.epoch, loss.value, color=colour, label=scheme)
    axes[2].set(title="training loss", xlabel="epoch", ylim=(0, 2.1))
    axes[2].legend()
    for ax in axes:
        ax.grid(alpha=0.3)
    plt.show()

# %%
if L is not None:
    for scheme, frame in frames.items():
        first = frame[(frame.quantity == "gradient/features") & (frame.layer == 1) & (frame.epoch == 1)].value.item()
        loss = frame[frame.quantity == "train/train_loss"].value.iloc[-1]
        print(
            f"{scheme:6} relative gradient of layer 1 at the first step: {first:.0e}, final training loss: {loss:.2f}"
        )

# %%
# With Xavier initialisation the six-layer network gets gradients that are too small for gradient descent to move it.
# The balanced network starts with larger ones in every layer, and its loss falls.

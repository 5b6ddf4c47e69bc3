"""Follow a run in TensorBoard
===========================

``TensorBoard`` writes what a recorder records as TensorBoard charts while the network trains: one chart per layer and
quantity, and never one per parameter.

Install TensorBoard with ``pip install 'equipoise[tensorboard]'``.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import equipoise as eq
from equipoise.integrations.tensorboard import TensorBoard

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    EventAccumulator = None
    print("TensorBoard is not installed, so this example does not run: pip install 'equipoise[tensorboard]'")

# %%
# Train the same network with two initialisation schemes, each into a folder of its own. ``TensorBoard`` is a context
# manager around the training, whether that is ``eq.train`` or your own loop.

folder = Path(tempfile.mkdtemp())  # use "runs" in your project


def train(scheme: str) -> eq.History:
    data = eq.load_dataset("synthetic-citation")
    model = eq.Stack("gatv2", [data.num_features, *[32] * 4, data.classes])
    eq.initialize_(model, scheme, generator=torch.Generator().manual_seed(0))

    generator = torch.Generator().manual_seed(0)
    small_x = torch.rand(20, data.num_features, generator=generator)
    small_edges = torch.randint(0, 20, (2, 60), generator=generator)
    rec = eq.Recorder(model, eq.discover(model, small_x, small_edges), every=5)
    with TensorBoard(folder / scheme, rec):
        return eq.train(model, data, lr=0.2, epochs=100, record=rec)


if EventAccumulator is not None:
    histories = {scheme: train(scheme) for scheme in ("xav", "bal-o")}

# %%
# Open the dashboard with
#
# .. code-block:: console
#
#     tensorboard --logdir runs
#
# The charts are grouped by quantity. For quantities with one value per neuron, a chart shows the largest and the mean
# absolute value. These are the charts of the first layer:

if EventAccumulator is not None:
    events = {scheme: EventAccumulator(str(folder / scheme)).Reload() for scheme in histories}
    print(*(tag for tag in events["bal-o"].Tags()["scalars"] if "layer01" in tag), sep="\n")

# %%
# The event files can be read back, too. Draw four of the charts with both runs in each, as the dashboard does.

if EventAccumulator is not None:
    charts = ["train/loss", "gradient/layer01/features", "balance/layer01/c_max", "change/layer01/features"]
    figure, axes = plt.subplots(2, 2, figsize=(9, 5.4), sharex=True, layout="constrained")
    for ax, tag in zip(axes.flat, charts, strict=True):
        for (scheme, run), colour in zip(events.items(), ("tab:gray", "tab:blue"), strict=True):
            scalars = run.Scalars(tag)
            ax.plot([s.step for s in scalars], [s.value for s in scalars], color=colour, label=scheme)
        ax.set_title(tag)
        ax.grid(alpha=0.3)
    axes[0, 1].set_yscale("log")
    axes[0, 0].legend()
    for ax in axes[1]:
        ax.set_xlabel("epoch")
    plt.show()

# %%
if EventAccumulator is not None:
    for scheme, history in histories.items():
        print(f"{scheme:6} {history.best_test_metric:.1%} test accuracy")

# %%
# The charts of one layer tell the story of the run: with Xavier initialisation the first layer is out of balance, its
# gradients are small, and its weights stay where they are.

"""Write your own experiment
=========================

An experiment is one TOML file: a grid of runs, and the claims to test. This example writes such a file, runs it from
Python, prints the table that ``equipoise report`` makes of it, and draws accuracy against depth.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from equipoise.experiments.parser import load_experiment
from equipoise.experiments.store import Store
from equipoise.experiments.sweep import sweep

# %%
# The question: does balancing help a GCN, which has no attention? In ``[grid]``, a list varies and a single value is
# fixed. Each combination is one cell of the table, and its runs differ in the seed only. ``[[set]]`` gives settings to
# the cells that match ``where``.

folder = Path(tempfile.mkdtemp())
file = folder / "deep-gcn.toml"
file.write_text(
    """
title = "Does balancing help a deep GCN?"

[grid]
dataset = "synthetic-citation"
kind = "gcn"
depth = [2, 5, 10]
init = ["xav", "bal-o"]
seed = [0, 1, 2]
width = 32
epochs = 100

[[set]]
where = { depth = [2, 5] }
lr = 0.5

[[set]]
where = { depth = 10 }
lr = 0.2

[[claims]]
say = "At every depth, bal-o reaches a higher accuracy than xav."
better = { init = "bal-o" }
worse = { init = "xav" }
"""
)
experiment = load_experiment(file)
print(f"{experiment.title} {len(experiment.specs)} runs in {len(experiment.cells)} cells")

# %%
# A mistake in the file is reported with its table and field when the file is loaded, before anything runs.
#
# ``sweep`` runs what the store does not have yet. Usually it starts one process per core; here a small executor of our
# own runs everything in this process. It yields a spec when its run starts, and the result when it ends.


def in_this_process(specs, work):
    for spec in specs:
        yield spec
        yield work(spec)


with Store(folder / "runs.sqlite") as store:
    results = sweep(experiment.specs, store, in_this_process)
    print(f"first sweep: {len(results)} runs")
    print(f"second sweep: {len(sweep(experiment.specs, store, in_this_process))} runs")

# %%
# A run is identified by a hash of its settings. The second sweep finds all of them in the store and runs nothing; an
# interrupted sweep continues in the same way. On the command line, this is
# ``equipoise reproduce deep-gcn.toml``.
#
# ``equipoise report`` prints one row per cell, with means and 95 % confidence intervals over the seeds, and tests the
# claims.

command = [sys.executable, "-m", "equipoise", "report", str(file), "--store", str(folder / "runs.sqlite")]
print(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

# %%
# Each result carries its settings, so your own analysis is a few lines of pandas.

frame = pd.DataFrame([{**result.spec.to_dict(), "accuracy": 100 * result.test_accuracy} for result in results])
figure, ax = plt.subplots(figsize=(6.5, 4), layout="constrained")
for (scheme, runs), colour, marker in zip(frame.groupby("init"), ("tab:blue", "tab:gray"), "so", strict=True):
    means = runs.groupby("depth").accuracy.mean()
    ax.plot(means.index, means, color=colour, label=f"{scheme}, mean of 3 seeds")
    ax.plot(runs.depth, runs.accuracy, marker, color=colour, alpha=0.6)
ax.set(xlabel="layers", ylabel="test accuracy (%)", ylim=(0, 100), xticks=[2, 5, 10], title=experiment.title)
ax.grid(alpha=0.3)
ax.legend()
plt.show()

# %%
print(frame.pivot_table(index="depth", columns="init", values="accuracy").round(1))

# %%
# Both schemes work at two layers. At five and ten layers, only the balanced GCN trains within 100 epochs.

"""First part: a network's laws, out of balance and back in it."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Column, Table
from torch import Tensor, nn

from equipoise.laws.discover import discover
from equipoise.laws.rebalance import rebalance_
from equipoise.report.figures import Imbalance, draw_imbalance, gather_imbalance, save_figure


def stock_gat() -> tuple[nn.Module, Tensor, Tensor]:
    """PyG's own GATv2 with three layers, as it comes, and a small random graph."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what PyG has to say about Python's own modules
        from torch_geometric.nn import GAT

    torch.manual_seed(0)
    model = GAT(100, 64, num_layers=3, out_channels=7, v2=True, act="relu", share_weights=True, bias=False)
    return model, torch.rand(60, 100), torch.randint(0, 60, (2, 240))


def show_laws(picture: Path, console: Console) -> Path:
    """Print the laws of a stock GAT and its imbalance before and after ``rebalance_``; returns the picture's path."""
    with console.status("finding the laws of a 3-layer GAT from its gradients …"):
        model, x, edge_index = stock_gat()
        laws = discover(model, x, edge_index)
    console.print("[bold]Every rescaling law of a stock 3-layer GATv2[/bold], found from its gradients alone:\n")
    for law in laws:
        console.print(f"  {law}", markup=False, highlight=False, soft_wrap=True)
    with torch.no_grad():
        before, output = gather_imbalance(laws, "the usual initialisation"), model(x, edge_index)
        rebalance_(laws)
        after = gather_imbalance(laws, "after rebalance_, the same function")
        change = float((model(x, edge_index) - output).abs().max() / output.abs().max())
    console.print("\n[bold]Imbalance[/bold] c of a neuron: squared norm of its incoming minus its outgoing weights\n")
    console.print(_table(before, after))
    console.print(f"\nThe network still computes the same: its outputs changed by {change:.0e}, relative.")
    return save_figure(draw_imbalance([before, after]), picture)


def _table(before: Imbalance, after: Imbalance) -> Table:
    table = Table("law of", *(Column(name, justify="right") for name in ("median c", "largest |c|", "rebalanced")))
    for label, old, new in zip(before.labels, before.values, after.values, strict=True):
        table.add_row(label, f"{np.median(old):+.3f}", f"{np.abs(old).max():.3f}", f"{np.abs(new).max():.1e}")
    return table

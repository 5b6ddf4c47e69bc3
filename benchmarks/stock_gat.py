"""PyG's 10-layer GATv2 on Cora, with and without ``initialize_``.

Run it as ``python benchmarks/stock_gat.py [EPOCHS]``; it takes about three minutes.
"""

import sys

import torch
from torch_geometric.nn import GAT

import equipoise as eq


def main(epochs: int = 300) -> None:
    """Train with one seed and one thread, using Adam at the paper's learning rate for ten layers."""
    torch.set_num_threads(1)
    data = eq.load_dataset("cora")
    for scheme in ("bal-o", None):
        torch.manual_seed(0)
        model = GAT(data.num_features, 64, num_layers=10, out_channels=data.classes, v2=True, act="relu")
        if scheme is not None:
            eq.initialize_(model, scheme, generator=torch.Generator().manual_seed(0))
        history = eq.train(model, data, optimizer="adam", lr=0.0005, epochs=epochs)
        result = f"{100 * history.best_test_metric:.1f} % at epoch {history.best_epoch} of {history.epochs}"
        print(f"{scheme or 'PyG default':<12} {result} ({history.outcome}, {history.seconds:.0f} s)")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

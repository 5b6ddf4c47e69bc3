"""Train a deep GAT and watch it in TensorBoard: python watch_with_tensorboard.py, then tensorboard --logdir runs."""

import sys

import torch

import equipoise as eq
from equipoise.integrations.tensorboard import TensorBoard


def main(folder: str = "runs") -> None:
    """Two starts side by side, five layers, 50 epochs each."""
    data = eq.load_dataset("synthetic-citation")
    for scheme in ("xav", "bal-o"):
        model = eq.initialize_(eq.Stack("gatv2", [data.num_features, *[32] * 4, data.classes]), scheme)
        laws = eq.discover(model, torch.rand(20, data.num_features), torch.randint(0, 20, (2, 60)))
        rec = eq.Recorder(model, laws, every=5)
        with TensorBoard(f"{folder}/{scheme}", rec):
            eq.train(model, data, lr=0.1, epochs=50, record=rec)


if __name__ == "__main__":
    main(*sys.argv[1:])

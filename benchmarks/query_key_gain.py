"""How large should query and key be in a balanced graph transformer? ``python benchmarks/query_key_gain.py [SEEDS]``.

``bal-o`` draws query and key of a TransformerConv orthogonal, times a gain. This script trains a 10-layer network on
Cora with plain gradient descent for several gains, with and without biases, and prints a Markdown table of test
accuracies (docs/guide/initialisation.md, "Graph transformers").
"""

from __future__ import annotations

import sys
from statistics import mean
from unittest.mock import patch

import torch
from torch_geometric.data import Data

import equipoise as eq
from equipoise.init import network

GAINS = (0.0, 0.03, 0.1, 0.3, 0.5, 1.0, 3.0)
LAYERS, WIDTH, LEARNING_RATE, EPOCHS = 10, 64, 0.05, 300


def test_accuracy(data: Data, gain: float | None, bias: bool, seed: int) -> float:
    """Train one network; without a gain, from PyG's initialisation."""
    torch.manual_seed(seed)
    widths = [data.num_features, *[WIDTH] * (LAYERS - 1), data.classes]
    model = eq.Stack("transformer", widths, skip="linear", bias=bias)
    if gain is not None:
        with patch.object(network, "QUERY_KEY_GAIN", gain):
            eq.initialize_(model, "bal-o", generator=torch.Generator().manual_seed(seed))
    return 100 * eq.train(model, data, lr=LEARNING_RATE, epochs=EPOCHS).best_test_metric


def main(seeds: int) -> None:
    """Print one row per kind of network and one column per gain."""
    data = eq.load_dataset("cora")
    columns = [*GAINS, None]
    names = " | ".join("PyG" if gain is None else f"{gain:g}" for gain in columns)
    print(f"| query and key, relative to orthogonal | {names} |\n|---|{'---|' * len(columns)}", flush=True)
    for bias in (False, True):
        print(f"| {'with' if bias else 'without'} biases |", end="", flush=True)
        for gain in columns:
            try:
                accuracy = mean(test_accuracy(data, gain, bias, seed) for seed in range(seeds))
                print(f" {accuracy:.1f} |", end="", flush=True)
            except eq.EquipoiseError as error:
                print(f" {type(error).__name__} |", end="", flush=True)
        print()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)

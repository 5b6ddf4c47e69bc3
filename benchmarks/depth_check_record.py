"""Compare the predictions of the depth check with full training: python benchmarks/depth_check_record.py [FILE]

Every case is checked in 40 steps and then trained for 400 epochs, four slow ones for 1500. A case *trains* if the loss
falls to 90 % of the entropy of the class frequencies. Writes one row per case and prints how often the prediction was
right.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import equipoise as eq
from equipoise.depth.prediction import GOAL

STEPS, EPOCHS, WIDTH = 40, 400, 16
SLOW = (
    ("wisconsin", 10, "GATv2", 1500),
    ("texas", 10, "GATv2", 1500),
    ("cornell", 10, "GATv2", 1500),
    ("wisconsin", 20, "GATv2", 1500),
)
RECORD = Path(__file__).with_suffix(".csv")
ARCHITECTURES = {  # kind, activation, scheme, factor of the paper's learning rate
    "GATv2": ("gatv2", "relu", "xav", 1.0),
    "GATv2, balanced": ("gatv2", "relu", "bal-o", 1.0),
    "GCN": ("gcn", "relu", "xav", 1.0),
    "GATv2, ELU, balanced": ("gatv2", "elu", "bal-o", 1.0),
    "GATv2, balanced, lr × 50": ("gatv2", "relu", "bal-o", 50.0),
}


def measure(dataset: str, depth: int, name: str, epochs: int = EPOCHS) -> dict[str, object]:
    """Check and train one case."""
    kind, activation, scheme, factor = ARCHITECTURES[name]
    data = eq.load_dataset(dataset)

    def build(layers: int) -> torch.nn.Module:
        return eq.Stack(kind, [data.num_features, *[WIDTH] * (layers - 1), data.classes], activation=activation)

    lr = factor * eq.depth_check(build, data, (depth,), (scheme,), 1).results[0].lr
    (result,) = eq.depth_check(build, data, (depth,), (scheme,), STEPS, lr=lr, epochs=epochs, seconds=600).results
    model = build(depth)
    eq.initialize_(model, scheme, generator=torch.Generator().manual_seed(0))
    history = eq.train(model, data, lr=lr, epochs=epochs, stop_loss=0.0)
    losses = np.array(history.loss)
    below = history.outcome != "diverged" and np.median(losses[-epochs // 20 :]) <= GOAL * result.entropy
    return {
        "dataset": dataset,
        "depth": depth,
        "architecture": name,
        "lr": lr,
        "entropy": round(result.entropy, 4),
        "loss_1": round(losses[0], 4) if len(losses) else None,
        f"loss_{STEPS}": round(result.losses[-1], 4) if result.losses else None,
        "epochs": epochs,
        "loss_end": round(losses[-1], 4) if len(losses) == epochs else None,
        "outlook": result.prediction.outlook,
        "predicted": result.trains,
        "trained": bool(below),
    }


def main(path: Path) -> None:
    """Measure all cases and write the record."""
    torch.set_num_threads(1)
    cases = [
        (dataset, depth, name, EPOCHS)
        for dataset in ("texas", "wisconsin", "cornell")
        for depth in (2, 5, 10)
        for name in ARCHITECTURES
        if depth == 5 or not name.endswith("50")
    ]
    rows = []
    for case in (*cases, *SLOW):
        rows.append(measure(*case))
        print(rows[-1], flush=True)
        pd.DataFrame(rows).to_csv(path, index=False)
    frame = pd.DataFrame(rows)
    print(pd.crosstab(frame.predicted, frame.trained))
    print(f"right in {(frame.predicted == frame.trained).sum()} of {len(frame)} cases")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else RECORD)

"""Compare the predictions of the depth check with full training: python benchmarks/depth_check_record.py [FILE]

Every case is checked in 50 steps and then trained in full. A case *trains* if the loss falls to 90 % of the entropy of
the class frequencies, by the median of the last 5 % of the epochs. Training ends early at 75 % of it. Writes one row
per case and prints how often the prediction was right, for each of the three splits:

- ``easy``: the first record. An earlier rule was shaped on its Texas cases.
- ``shaped``: the cases on which the present rule, which follows the gradient flow, was chosen.
- ``held-out``: cases whose predictions were not looked at before the rule was fixed.

A file that exists is continued.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch_geometric.nn import GraphSAGE

import equipoise as eq
from equipoise.depth.prediction import GOAL
from equipoise.depth.short_run import paper_learning_rate

STEPS, WIDTH = 50, 16
STOP = 0.75  # of the entropy: well below the goal
RECORD = Path(__file__).with_suffix(".csv")


@dataclass(frozen=True)
class Case:
    """A network, a data set, a learning rate as a multiple of the paper's, and a number of epochs."""

    split: str
    dataset: str
    depth: int
    kind: str
    activation: str
    norm: str
    scheme: str
    factor: float
    epochs: int

    def build(self, data: object, depth: int) -> torch.nn.Module:
        """Build the network."""
        if self.kind == "sage":
            return GraphSAGE(data.num_features, WIDTH, depth, data.classes)
        widths = [data.num_features, *[WIDTH] * (depth - 1), data.classes]
        return eq.Stack(self.kind, widths, activation=self.activation, norm=self.norm or None)


def easy_cases() -> list[Case]:
    """The cases of the first record."""
    rows = [
        ("gatv2", "relu", "xav", 1.0),
        ("gatv2", "relu", "bal-o", 1.0),
        ("gcn", "relu", "xav", 1.0),
        ("gatv2", "elu", "bal-o", 1.0),
        ("gatv2", "relu", "bal-o", 50.0),
    ]
    cases = [
        Case("easy", dataset, depth, kind, activation, "", scheme, factor, 400)
        for dataset in ("texas", "wisconsin", "cornell")
        for depth in (2, 5, 10)
        for kind, activation, scheme, factor in rows
        if depth == 5 or factor == 1
    ]
    slow = (("wisconsin", 10), ("texas", 10), ("cornell", 10), ("wisconsin", 20))
    return [*cases, *(Case("easy", name, depth, "gatv2", "relu", "", "xav", 1.0, 1500) for name, depth in slow)]


SHAPED = [
    Case("shaped", *row)
    for row in (
        ("wisconsin", 20, "gatv2", "relu", "", "xav", 10, 1000),
        ("texas", 10, "gat", "relu", "", "xav", 2, 800),
        ("texas", 20, "gatv2", "relu", "", "xav", 10, 800),
        ("texas", 20, "gatv2", "elu", "", "xav", 1, 800),
        ("texas", 10, "gcn", "relu", "", "xav", 3, 800),
        ("texas", 10, "sage", "relu", "", "default", 3, 800),
        ("texas", 20, "gatv2", "relu", "layer", "xav", 1, 800),
        ("texas", 40, "gatv2", "relu", "", "bal-o", 0.3, 800),
        ("texas", 20, "gcn", "elu", "", "xav", 3, 800),
        ("texas", 10, "gat", "elu", "layer", "xav", 0.3, 800),
        ("synthetic-citation", 5, "gatv2", "relu", "", "xav", 0.5, 500),
        ("synthetic-citation", 10, "gcn", "elu", "", "xav", 1, 500),
        ("synthetic-citation", 10, "gatv2", "relu", "", "bal-o", 0.05, 500),
        ("minesweeper", 5, "gatv2", "relu", "", "bal-o", 1, 300),
    )
]
HELD_OUT = [
    Case("held-out", *row)
    for row in (
        ("wisconsin", 10, "gat", "relu", "", "xav", 3, 800),
        ("wisconsin", 10, "gcn", "elu", "", "xav", 1, 800),
        ("wisconsin", 20, "gatv2", "elu", "", "xav", 0.5, 800),
        ("wisconsin", 10, "sage", "relu", "", "default", 3, 800),
        ("wisconsin", 20, "gcn", "relu", "layer", "xav", 1, 800),
        ("wisconsin", 10, "gatv2", "relu", "", "xav", 10, 800),
        ("wisconsin", 40, "gatv2", "relu", "", "bal-o", 0.3, 800),
        ("cornell", 10, "gat", "relu", "", "xav", 10, 800),
        ("cornell", 20, "gatv2", "relu", "", "xav", 10, 800),
        ("cornell", 20, "gatv2", "elu", "", "xav", 1, 800),
        ("cornell", 10, "gcn", "relu", "", "xav", 5, 800),
        ("cornell", 10, "gat", "elu", "layer", "xav", 0.3, 800),
        ("cornell", 10, "sage", "relu", "", "default", 10, 800),
        ("cornell", 40, "gatv2", "relu", "layer", "xav", 1, 800),
        ("chameleon-filtered", 10, "gatv2", "relu", "", "xav", 1, 500),
        ("chameleon-filtered", 10, "gatv2", "relu", "", "bal-o", 0.3, 500),
        ("chameleon-filtered", 10, "gcn", "elu", "", "xav", 1, 500),
        ("chameleon-filtered", 10, "sage", "relu", "", "default", 1, 500),
        ("chameleon-filtered", 10, "gat", "relu", "layer", "xav", 1, 500),
        ("minesweeper", 10, "sage", "relu", "", "default", 1, 300),
        ("minesweeper", 10, "gcn", "relu", "layer", "xav", 1, 300),
        ("minesweeper", 10, "gat", "relu", "", "bal-o", 0.3, 300),
    )
]


def measure(case: Case) -> dict[str, object]:
    """Check and train one case."""
    data = eq.load_dataset(case.dataset)
    lr = case.factor * paper_learning_rate(case.depth, case.dataset)
    check = eq.depth_check(
        lambda depth: case.build(data, depth),
        data,
        (case.depth,),
        (case.scheme,),
        STEPS,
        lr=lr,
        epochs=case.epochs,
        seconds=600,
    )
    (result,) = check.results
    torch.manual_seed(0)
    model = eq.fuse_(case.build(data, case.depth))
    if case.scheme != "default":
        eq.initialize_(model, case.scheme, generator=torch.Generator().manual_seed(0))
    history = eq.train(model, data, lr=lr, epochs=case.epochs, stop_loss=STOP * result.entropy)
    losses = np.array(history.loss)
    tail = max(1, case.epochs // 20) if history.outcome == "finished" else 1
    trained = history.outcome != "diverged" and bool(np.median(losses[-tail:]) <= GOAL * result.entropy)
    below = np.flatnonzero(losses <= GOAL * result.entropy)
    return asdict(case) | {
        "lr": lr,
        "entropy": round(result.entropy, 4),
        "loss_1": round(result.losses[0], 4),
        f"loss_{STEPS}": round(result.losses[-1], 4),
        "loss_end": round(losses[-1], 4) if history.outcome != "diverged" else None,
        "outlook": result.prediction.outlook,
        "predicted_steps": None if result.prediction.steps is None else round(result.prediction.steps),
        "reached_at": int(below[0]) + 1 if len(below) else None,
        "predicted": result.trains,
        "trained": trained,
    }


def main(path: Path) -> None:
    """Measure all cases that the record lacks, write it, and print the hit rates."""
    torch.set_num_threads(1)
    rows = pd.read_csv(path, keep_default_na=False).to_dict("records") if path.exists() else []
    known = {Case(**{name: row[name] for name in Case.__dataclass_fields__}) for row in rows}
    for case in (*HELD_OUT, *SHAPED, *easy_cases()):
        if case in known:
            continue
        rows.append(measure(case))
        print(rows[-1], flush=True)
        pd.DataFrame(rows).to_csv(path, index=False)
    frame = pd.read_csv(path, keep_default_na=False)
    for split, part in frame.groupby("split", sort=False):
        undecided = part[part[f"loss_{STEPS}"].astype(float) > GOAL * part["entropy"].astype(float)]
        right, of = (part.predicted == part.trained).sum(), len(part)
        print(f"{split}: right in {right} of {of} cases; ", end="")
        print(
            f"of {len(undecided)} not decided by the checked steps: {(undecided.predicted == undecided.trained).sum()}"
        )
        print(pd.crosstab(part.predicted, part.trained))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else RECORD)

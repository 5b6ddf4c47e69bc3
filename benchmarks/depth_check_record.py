"""Compare the predictions of the depth check with full training.

python benchmarks/depth_check_record.py [--predict]

Every case is checked in 50 steps and then trained in full. A case *trains* if the loss falls to 90 % of the entropy of
the class frequencies, by the median of the last 5 % of the epochs. Training ends early at 75 % of it. Writes one row
per case to ``depth_check_record.csv`` and prints how often the prediction was right, for each split:

- ``held-out``: cases that were chosen, checked and trained after the rule was fixed.
- ``reported``: networks of which an earlier rule was wrong.
- ``shaped``: cases that were known when the rule was chosen.
- ``easy``: the first record. Most reach the goal within the checked steps.

Rows that exist are kept. ``--predict`` repeats their predictions, but not the full training, which does not depend on
the rule.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch_geometric.nn import GraphSAGE

import equipoise as eq
from equipoise.depth.prediction import GOAL, class_entropy
from equipoise.depth.short_run import default_learning_rate

STEPS, WIDTH = 50, 16
STOP = 0.75  # of the entropy: well below the goal
RECORD = Path(__file__).with_suffix(".csv")


@dataclass(frozen=True)
class Case:
    """A network, a data set, a learning rate as a multiple of the data set's, and a number of epochs."""

    split: str
    dataset: str
    depth: int
    kind: str
    activation: str
    norm: str
    scheme: str
    factor: float
    epochs: int
    width: int = WIDTH

    @property
    def lr(self) -> float:
        """The learning rate."""
        return self.factor * default_learning_rate(self.depth, self.dataset)

    def build(self, data: object, depth: int) -> torch.nn.Module:
        """Build the network."""
        if self.kind == "sage":
            return GraphSAGE(data.num_features, self.width, depth, data.classes)
        widths = [data.num_features, *[self.width] * (depth - 1), data.classes]
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
        ("minesweeper", 5, "gatv2", "relu", "", "bal-o", 2, 300),
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
        ("chameleon-filtered", 10, "gatv2", "relu", "", "xav", 5, 500),
        ("chameleon-filtered", 10, "gatv2", "relu", "", "bal-o", 1.5, 500),
        ("chameleon-filtered", 10, "gcn", "elu", "", "xav", 5, 500),
        ("chameleon-filtered", 10, "sage", "relu", "", "default", 5, 500),
        ("chameleon-filtered", 10, "gat", "relu", "layer", "xav", 5, 500),
        ("minesweeper", 10, "sage", "relu", "", "default", 5, 300),
        ("minesweeper", 10, "gcn", "relu", "layer", "xav", 5, 300),
        ("minesweeper", 10, "gat", "relu", "", "bal-o", 1.5, 300),
    )
]


# A Wisconsin network on a plateau of 500 epochs; one that learns little more than the class frequencies; ELU networks
# whose loss rises to 7e8, to 1e2 and to 18, of which the last two recover; a learning rate that gives NaN.
REPORTED = [
    Case("reported", *row)
    for row in (
        ("wisconsin", 20, "gatv2", "relu", "", "xav", 10, 1000, 64),
        ("minesweeper", 10, "gatv2", "relu", "", "default", 5, 1000, 64),
        ("minesweeper", 10, "gatv2", "relu", "", "bal-o", 5, 1000, 64),
        ("texas", 5, "gatv2", "elu", "", "bal-o", 1, 300, 64),
        ("wisconsin", 10, "gatv2", "elu", "", "bal-o", 1, 300, 64),
        ("cora", 10, "gatv2", "elu", "", "bal-o", 1, 300, 64),
        ("cora", 10, "gatv2", "relu", "", "bal-o", 2e31, 100, 64),
    )
]
HELD_OUT = [
    Case("held-out", *row)
    for row in (
        ("cora", 10, "gatv2", "relu", "", "xav", 2, 500),
        ("cora", 10, "gcn", "relu", "", "xav", 10, 500),
        ("cora", 20, "gatv2", "elu", "", "xav", 1, 500),
        ("cora", 5, "sage", "relu", "", "default", 1, 500),
        ("citeseer", 10, "gat", "relu", "", "bal-o", 0.1, 500),
        ("citeseer", 20, "gcn", "elu", "", "xav", 2, 500),
        ("citeseer", 5, "gatv2", "relu", "", "default", 5, 500),
        ("actor", 5, "gatv2", "relu", "", "bal-o", 1, 300),
        ("actor", 10, "gcn", "relu", "layer", "xav", 1, 300),
        ("actor", 5, "sage", "relu", "", "default", 2, 300),
        ("chameleon", 10, "gatv2", "relu", "", "bal-o", 1, 500),
        ("chameleon", 5, "gcn", "relu", "", "xav", 2, 500),
        ("texas", 20, "sage", "relu", "layer", "default", 5, 1000),
        ("texas", 10, "gatv2", "relu", "", "xav", 5, 1000),
        ("cornell", 20, "gatv2", "relu", "", "bal-x", 0.5, 1000),
        ("cornell", 10, "gcn", "elu", "", "xav", 0.5, 1000),
        ("wisconsin", 20, "gatv2", "relu", "", "default", 20, 1000, 32),
        ("wisconsin", 5, "gcn", "relu", "", "xav", 0.2, 1000, 32),
        ("synthetic-citation", 10, "gatv2", "relu", "", "xav", 10, 500),
        ("synthetic-citation", 20, "gat", "elu", "", "xav", 2, 500),
    )
]


def predict(case: Case) -> dict[str, object]:
    """Check one case."""
    data = eq.load_dataset(case.dataset)
    check = eq.depth_check(
        lambda depth: case.build(data, depth),
        data,
        (case.depth,),
        (case.scheme,),
        STEPS,
        lr=case.lr,
        epochs=case.epochs,
        seconds=600,
    )
    (result,) = check.results
    steps = result.prediction.steps
    return {
        "lr": case.lr,
        "entropy": round(result.entropy, 4),
        "loss_1": round(result.losses[0], 4),
        f"loss_{STEPS}": round(result.losses[-1], 4),
        "outlook": result.prediction.outlook,
        "predicted_steps": None if steps is None else round(steps),
        "predicted": result.trains,
    }


def train(case: Case) -> dict[str, object]:
    """Train one case in full."""
    data = eq.load_dataset(case.dataset)
    entropy = class_entropy(data.y[data.train_mask])
    torch.manual_seed(0)
    model = eq.fuse_(case.build(data, case.depth))
    if case.scheme != "default":
        eq.initialize_(model, case.scheme, generator=torch.Generator().manual_seed(0))
    history = eq.train(model, data, lr=case.lr, epochs=case.epochs, stop_loss=STOP * entropy)
    losses = np.array(history.loss)
    tail = max(1, case.epochs // 20) if history.outcome == "finished" else 1
    below = np.flatnonzero(losses <= GOAL * entropy)
    return {
        "loss_end": round(losses[-1], 4) if history.outcome != "diverged" else None,
        "reached_at": int(below[0]) + 1 if len(below) else None,
        "trained": history.outcome != "diverged" and bool(np.median(losses[-tail:]) <= GOAL * entropy),
    }


def print_hit_rates(frame: pd.DataFrame) -> None:
    """Print for each split how often the prediction was right."""
    for split, part in frame.groupby("split", sort=False):
        undecided = part[part[f"loss_{STEPS}"].astype(float) > GOAL * part["entropy"].astype(float)]
        right, of = (part.predicted == part.trained).sum(), len(part)
        print(f"{split}: right in {right} of {of} cases; ", end="")
        print(f"of {len(undecided)} not decided by the checked steps: ", end="")
        print((undecided.predicted == undecided.trained).sum())
        print(pd.crosstab(part.predicted, part.trained))


def main(predict_again: bool) -> None:
    """Measure all cases that the record lacks, write it, and print the hit rates."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*this network has no ReLU")
    rows = pd.read_csv(RECORD, keep_default_na=False).to_dict("records") if RECORD.exists() else []
    known = {Case(**_key(row)): row for row in rows}
    record: list[dict[str, object]] = []
    for case in (*HELD_OUT, *REPORTED, *SHAPED, *easy_cases()):
        row = known.get(case, {})
        if not row or predict_again:
            row = row | predict(case)
        if "trained" not in row:
            row |= train(case)
        record.append(asdict(case) | row)
        if row != known.get(case):
            print(record[-1], flush=True)
            rest = [known[other] for other in known if other not in {Case(**_key(done)) for done in record}]
            pd.DataFrame([*record, *rest]).to_csv(RECORD, index=False)
    print_hit_rates(pd.read_csv(RECORD, keep_default_na=False))


def _key(row: dict[str, object]) -> dict[str, object]:
    return {name: row[name] for name in Case.__dataclass_fields__}


if __name__ == "__main__":
    main("--predict" in sys.argv[1:])

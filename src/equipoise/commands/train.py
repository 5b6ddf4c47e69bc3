"""``equipoise train``: one training run with the paper's protocol."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from equipoise.commands.options import DataRoot
from equipoise.commands.terminal import epoch_bar, spinner
from equipoise.data.catalog import METRIC_TITLES, Metric, dataset_info
from equipoise.errors import TrainingError
from equipoise.experiments.spec import CHOICES

if TYPE_CHECKING:
    from equipoise.training.history import History

Option = typer.Option


def _choices(setting: str) -> str:
    return ", ".join(str(choice) for choice in CHOICES[setting])


def train(
    *,
    dataset: Annotated[str, Option(help="Data set (`equipoise data list`).")] = "synthetic-citation",
    kind: Annotated[str, Option(help=f"Kind of layer: {_choices('kind')}.")] = "gatv2",
    layers: Annotated[int, Option(min=1, help="Depth.")] = 10,
    width: Annotated[int, Option(min=1, help="Hidden width per head.")] = 64,
    heads: Annotated[int, Option(min=1, help="Attention heads, concatenated.")] = 1,
    init: Annotated[str, Option(help=f"Initialisation scheme: {_choices('init')}.")] = "bal-o",
    optimizer: Annotated[str, Option(help=f"Optimizer: {_choices('optimizer')}.")] = "sgd",
    lr: Annotated[float, Option(help="Learning rate.")] = 0.05,
    epochs: Annotated[int, Option(min=1, help="Maximum number of epochs.")] = 5000,
    weight_decay: Annotated[float, Option(min=0.0, help="L2 penalty.")] = 0.0,
    dropout: Annotated[float, Option(min=0.0, max=0.99, help="Dropout of features and attention.")] = 0.0,
    share_weights: Annotated[bool, Option(help="One matrix for source and target nodes (gatv2, omega-gat).")] = True,
    bias: Annotated[bool, Option("--bias", help="Add biases to the layers.")] = False,
    activation: Annotated[str, Option(help=f"Activation: {_choices('activation')}.")] = "relu",
    seed: Annotated[int, Option(min=0, help="Seed of initialisation and dropout.")] = 0,
    data_root: DataRoot = None,
    save: Annotated[
        Path | None, Option(metavar="FILE", help="Save the best model's state_dict (.pt).", show_default=False)
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print the result and the training curves as JSON.")] = False,
) -> None:
    """Train one network on one data set and report the test accuracy at the best validation accuracy.

    Data sets with two classes of unequal size are measured by ROC AUC instead.
    """
    with spinner("loading torch, PyG and the data …"):
        import torch

        from equipoise.data.load import load_dataset
        from equipoise.init.schemes import initialize_
        from equipoise.nn.stack import Stack
        from equipoise.training.loop import train as train_model

        if save is not None and not save.resolve().parent.is_dir():
            folder = save.resolve().parent
            raise TrainingError(f"there is no folder {folder}", where=f"--save {save}", remedy="create it first")
        data = load_dataset(dataset, data_root)
        widths = [data.num_features, *[width] * (layers - 1), data.classes]
        model = Stack(
            kind, widths, heads, activation=activation, dropout=dropout, share_weights=share_weights, bias=bias
        )
        initialize_(model, init, generator=torch.Generator().manual_seed(seed))
        torch.manual_seed(seed)
    with epoch_bar(epochs) as on_epoch:
        history = train_model(
            model,
            data,
            metric=dataset_info(dataset).metric,
            optimizer=optimizer,
            lr=lr,
            epochs=epochs,
            weight_decay=weight_decay,
            on_epoch=on_epoch,
        )
    if save is not None:
        torch.save(history.best_state, save)
    typer.echo(json.dumps(history.to_dict()) if as_json else _summary(history, save))
    if history.outcome == "diverged":
        raise typer.Exit(1)
    if history.outcome == "interrupted":
        raise typer.Exit(130)


def _summary(history: History, save: Path | None) -> str:
    metric = METRIC_TITLES[cast(Metric, history.metric)]
    rows = {
        "outcome": history.outcome + (f": {history.reason}" if history.reason else ""),
        f"test {metric}": f"{100 * history.best_test_accuracy:.1f} % at the best validation {metric}",
        f"validation {metric}": f"{100 * history.best_val_accuracy:.1f} %",
        "best epoch": str(history.best_epoch),
        "epochs run": str(history.epochs),
        "final training loss": f"{history.loss[-1]:.4g}" if history.loss else "none",
        "time": f"{history.seconds:.1f} s, {1000 * history.seconds / max(history.epochs, 1):.1f} ms per epoch",
    }
    if save is not None:
        rows["model"] = str(save)
    return "\n".join(f"{name:<20} {value}" for name, value in rows.items())

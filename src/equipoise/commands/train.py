"""``equipoise train``: one training run with the paper's protocol."""

from __future__ import annotations

import io
import json
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.atomic_write import write_atomically
from equipoise.commands.options import DataRoot
from equipoise.commands.terminal import epoch_bar, spinner
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
    """Train one network on one data set and report the test accuracy at the best validation accuracy."""
    with spinner("loading torch, PyG and the data …"):
        import torch

        from equipoise.data.load import load_dataset
        from equipoise.init.schemes import initialize_
        from equipoise.nn.stack import Stack
        from equipoise.training.loop import train as train_model

        if save is not None:
            check_writable(save)
        data = load_dataset(dataset, data_root)
        widths = [data.num_features, *[width] * (layers - 1), data.classes]
        model = Stack(
            kind, widths, heads, activation=activation, dropout=dropout, share_weights=share_weights, bias=bias
        )
        initialize_(model, init, generator=torch.Generator().manual_seed(seed))
        torch.manual_seed(seed)
    with epoch_bar(epochs) as on_epoch:
        history = train_model(
            model, data, optimizer=optimizer, lr=lr, epochs=epochs, weight_decay=weight_decay, on_epoch=on_epoch
        )
    typer.echo(json.dumps(history.to_dict()) if as_json else _summary(history))
    if save is not None:
        _save(history, save)
        typer.echo(f"{'model':<20} {save}", err=as_json)
    if history.outcome == "diverged":
        raise typer.Exit(1)
    if history.outcome == "interrupted":
        raise typer.Exit(130)


def check_writable(save: Path) -> None:
    """Raise a :class:`TrainingError` unless a file of this name can be written, without touching an existing one."""
    target, where = save.resolve(), f"--save {save}"
    if not target.parent.is_dir():
        raise TrainingError(f"there is no folder {target.parent}", where=where, remedy="create it first")
    if target.is_dir():
        raise TrainingError(f"{target} is a folder", where=where, remedy=f"name a file: {save / 'model.pt'}")
    try:
        if target.exists():
            target.open("ab").close()
        with NamedTemporaryFile(dir=target.parent, suffix=".tmp") as file:
            file.write(b"equipoise")
    except OSError as error:
        raise TrainingError(
            f"the model cannot be saved there: {error.strerror}", where=where, remedy="name a file in a writable folder"
        ) from error


def _save(history: History, save: Path) -> None:
    import torch

    file = io.BytesIO()
    torch.save(history.best_state, file)
    try:
        write_atomically(save, file.getvalue())
    except OSError as error:
        raise TrainingError(
            f"the model could not be saved: {error.strerror}",
            where=f"--save {save}",
            remedy="free disk space and run the command again: equal settings give equal weights",
        ) from error


def _summary(history: History) -> str:
    rows = {
        "outcome": history.outcome + (f": {history.reason}" if history.reason else ""),
        "test accuracy": f"{100 * history.best_test_accuracy:.1f} % at the best validation accuracy",
        "validation accuracy": f"{100 * history.best_val_accuracy:.1f} %",
        "best epoch": str(history.best_epoch),
        "epochs run": str(history.epochs),
        "final training loss": f"{history.loss[-1]:.4g}" if history.loss else "none",
        "time": f"{history.seconds:.1f} s, {1000 * history.seconds / max(history.epochs, 1):.1f} ms per epoch",
    }
    return "\n".join(f"{name:<20} {value}" for name, value in rows.items())

"""``equipoise train``: one training run with the paper's protocol."""

from __future__ import annotations

import io
import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from equipoise.atomic_write import write_atomically
from equipoise.commands.options import DataRoot, refuse_options
from equipoise.commands.outputs import check_output
from equipoise.commands.terminal import epoch_bar, spinner, warn_if_long
from equipoise.commands.threads import wait_passively
from equipoise.commands.train_parts import default_checkpoint, restarts, train_on_part
from equipoise.data.catalog import METRIC_TITLES, Metric, dataset_info
from equipoise.errors import TrainingError
from equipoise.experiments.choices import CHOICES

if TYPE_CHECKING:
    from equipoise.distributed.parts.part import Part
    from equipoise.training.history import History

Option = typer.Option

MODEL_SETTINGS = (
    "kind",
    "layers",
    "width",
    "heads",
    "init",
    "optimizer",
    "lr",
    "epochs",
    "weight_decay",
    "dropout",
    "share_weights",
    "bias",
    "activation",
    "recompute",
    "seed",
)


def _choices(setting: str) -> str:
    return ", ".join(str(choice) for choice in CHOICES[setting])


def train(
    context: typer.Context,
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
    recompute: Annotated[
        bool, Option("--recompute", help="Save memory: compute activations again in the backward pass.")
    ] = False,
    seed: Annotated[int, Option(min=0, help="Seed of initialisation and dropout.")] = 0,
    data_root: DataRoot = None,
    parts: Annotated[
        Path | None,
        Option(
            metavar="FOLDER",
            help="Train on a partitioned graph (`equipoise partition`) instead of --dataset, one process per part: "
            "start the command with torchrun.",
            show_default=False,
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="With --parts: save the training state here and continue from it. "
            "Default: checkpoint.pt in FOLDER with torchrun --max-restarts, otherwise none.",
            show_default=False,
        ),
    ] = None,
    checkpoint_every: Annotated[float, Option(min=0.0, help="Seconds between two checkpoints.")] = 60.0,
    timeout: Annotated[float, Option(min=1.0, help="With --parts: seconds that a rank waits for the others.")] = 60.0,
    save: Annotated[
        Path | None, Option(metavar="FILE", help="Save the best model's state_dict (.pt).", show_default=False)
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print the result and the training curves as JSON.")] = False,
) -> None:
    """Train one network on one data set and report the test accuracy at the best validation accuracy.

    Data sets with two classes of unequal size are measured by ROC AUC instead.
    """
    settings = {name: value for name, value in locals().items() if name in MODEL_SETTINGS}
    from equipoise.experiments.cost import rough_seconds
    from equipoise.experiments.spec import RunSpec

    wait_passively()
    check_output(save, "--save")
    _check_parts_options(context, parts, checkpoint)
    spec = RunSpec(  # checks names and ranges before torch is loaded
        dataset=dataset,
        kind=kind,  # type: ignore[arg-type]
        depth=layers,
        width=width,
        heads=heads,
        init=init,  # type: ignore[arg-type]
        optimizer=optimizer,  # type: ignore[arg-type]
        lr=lr,
        epochs=epochs,
        weight_decay=weight_decay,
        dropout=dropout,
        activation=activation,  # type: ignore[arg-type]
        seed=seed,
    )
    warned = parts is None and warn_if_long(rough_seconds(spec), f"{epochs} epochs")
    rank = int(os.environ.get("RANK", "0")) if parts is not None else 0
    with spinner("loading torch, PyG and the data …") if rank == 0 else nullcontext():
        import torch

        from equipoise.data.load import load_dataset
        from equipoise.distributed.parts.loading import load_part
        from equipoise.init.schemes import initialize_
        from equipoise.nn.stack import Stack
        from equipoise.training.loop import train as train_model

        part = None if parts is None else load_part(parts)
        data = load_dataset(dataset, data_root) if part is None else None
        features, classes = _sizes(data, part)
        widths = [features, *[width] * (layers - 1), classes]
        torch.manual_seed(seed)  # for PyG's own initialisation, and schemes that keep it
        model = Stack(
            kind,
            widths,
            heads,
            activation=activation,
            dropout=dropout,
            share_weights=share_weights,
            bias=bias,
            recompute=recompute,
        )
        if init != "default":
            initialize_(model, init, generator=torch.Generator().manual_seed(seed))
        torch.manual_seed(seed)  # for dropout
    if part is not None and parts is not None:
        path = checkpoint or default_checkpoint(parts)
        limits = {"interval": checkpoint_every, "timeout": timeout}
        history = train_on_part(model, part, settings, checkpoint=path, **limits)
    else:
        with epoch_bar(epochs, warned) as on_epoch:
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
    if rank == 0:
        typer.echo(json.dumps(history.to_dict()) if as_json else _summary(history))
        if save is not None:
            _save(history, save)
            typer.echo(f"{'model':<20} {save}", err=as_json)
    if history.outcome == "diverged":
        raise typer.Exit(1)
    if history.outcome == "interrupted":
        raise typer.Exit(130)


def _check_parts_options(context: typer.Context, parts: Path | None, checkpoint: Path | None) -> None:
    """Refuse options that another one makes void, and torchrun without parts, which would train as many copies."""
    if parts is not None:
        refuse_options(context, ("dataset", "data_root"), "the parts contain the data; leave out this option")
        if int(os.environ.get("RANK", "0")) == 0:  # which alone uses the file
            check_output(checkpoint, "--checkpoint")
        if checkpoint is None and not restarts():
            refuse_options(context, ("checkpoint_every",), "needs --checkpoint FILE, or torchrun --max-restarts")
    else:
        refuse_options(
            context, ("checkpoint", "checkpoint_every", "timeout"), "needs --parts FOLDER (`equipoise partition`)"
        )
    if parts is None and os.environ.get("WORLD_SIZE", "1") != "1":
        raise TrainingError(
            f"torchrun started {os.environ['WORLD_SIZE']} processes, and each would train the whole graph",
            remedy="partition the graph and pass --parts FOLDER, or start one process without torchrun",
        )


def _sizes(data: Any, part: Part | None) -> tuple[int, int]:
    """Numbers of features and classes."""
    if part is None:
        return data.num_features, data.classes
    manifest = part.manifest
    if manifest.num_classes is None:
        raise TrainingError(
            f"the graph {manifest.name} has no classes",
            remedy="partition it with integer labels y, or use eq.train",
        )
    return manifest.num_features, manifest.num_classes


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
    metric = METRIC_TITLES[cast(Metric, history.metric)]
    rows = {
        "outcome": history.outcome + (f": {history.reason}" if history.reason else ""),
        f"test {metric}": f"{100 * history.best_test_metric:.1f} % at the best validation {metric}",
        f"validation {metric}": f"{100 * history.best_val_metric:.1f} %",
        "best epoch": str(history.best_epoch),
        "epochs run": str(history.epochs),
        "final training loss": f"{history.loss[-1]:.4g}" if history.loss else "none",
        "time": f"{history.seconds:.1f} s, {1000 * history.seconds / max(history.epochs, 1):.1f} ms per epoch",
    }
    return "\n".join(f"{name:<20} {value}" for name, value in rows.items())

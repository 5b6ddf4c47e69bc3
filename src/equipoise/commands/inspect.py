"""``equipoise inspect``: explain the laws and the balance of a network, or check how it behaves with depth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.commands.discover import FACTORY_HELP, Plot, plot_laws
from equipoise.commands.options import DataRoot, Json, check_learning_rate, refuse_options
from equipoise.commands.outputs import FIGURE_SUFFIXES, check_output
from equipoise.commands.terminal import spinner
from equipoise.commands.threads import wait_passively
from equipoise.errors import EquipoiseError
from equipoise.experiments.choices import CHOICES

if TYPE_CHECKING:
    from torch import nn
    from torch_geometric.data import Data

    from equipoise.depth.short_run import ModelBuilder

Option = typer.Option
DEPTHS = "2,5,10,20,40"

Subject = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:FACTORY|DATASET",
        help=f"{FACTORY_HELP} For a depth check: a function that takes a depth and returns the model, or the name of a "
        "data set for one of equipoise's networks.",
        show_default=False,
    ),
]


def inspect(
    context: typer.Context,
    subject: Subject,
    *,
    depth: Annotated[
        str | None, Option(metavar="L,L,…", help=f"Depths to check; by default {DEPTHS}.", show_default=False)
    ] = None,
    dataset: Annotated[
        str | None, Option(help="Depth check: data set to train on (`equipoise data list`).", show_default=False)
    ] = None,
    kind: Annotated[
        str, Option(help=f"Depth check of a data set: kind of layer ({', '.join(map(str, CHOICES['kind']))}).")
    ] = "gatv2",
    width: Annotated[int, Option(min=1, help="Depth check of a data set: hidden width.")] = 64,
    init: Annotated[
        str,
        Option(
            metavar="S,S,…",
            help="Depth check: initialisation schemes, default (as built), rebalanced, skip or layer-norm.",
        ),
    ] = "default,bal-o",
    steps: Annotated[int, Option(min=1, help="Depth check: steps of gradient descent per depth and scheme.")] = 50,
    lr: Annotated[
        float | None,
        Option(
            help="Depth check: learning rate; by default that of the experiments for data set and depth.",
            show_default=False,
        ),
    ] = None,
    optimizer: Annotated[str, Option(help="Depth check: optimizer, such as sgd or adam.")] = "sgd",
    metric: Annotated[
        str | None,
        Option(help="Depth check: metric of the training set, such as accuracy or roc_auc.", show_default=False),
    ] = None,
    clip: Annotated[float | None, Option(help="Depth check: maximum norm of the gradient.", show_default=False)] = None,
    epochs: Annotated[int, Option(min=1, help="Depth check: number of steps that the verdict refers to.")] = 5000,
    seconds: Annotated[float, Option(help="Depth check: time limit per depth and scheme.")] = 8.0,
    data_root: DataRoot = None,
    figure: Annotated[
        Path | None,
        Option(metavar="FILE", help="Depth check: write its figure (.png, .svg or .pdf).", show_default=False),
    ] = None,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """Explain a network: its laws, the imbalance of each, and why other neurons have no law.

    With --depth, --dataset or the name of a data set: train briefly at each
    depth, report gradients, balance, representations and loss, and judge
    whether the network will train.
    """
    wait_passively()
    check_output(figure, "--figure", FIGURE_SUFFIXES)
    check_output(plot, "--plot", FIGURE_SUFFIXES)
    check_learning_rate(lr)
    if depth is None and dataset is None and ":" in subject:
        void = set(context.params) - {"context", "subject", "as_json", "plot"}
        refuse_options(context, void, "belongs to a depth check: add --depth 2,5,10")
        _explain(subject, as_json, plot)
        return
    if ":" in subject:
        refuse_options(context, ("kind", "width"), f"the network is that of {subject}: leave out this option")
    if plot is not None:
        raise EquipoiseError("--plot shows one network, not a depth check", remedy="use --figure")
    depths = _parse_depths(DEPTHS if depth is None else depth)
    with spinner("loading torch, PyG and the data …"):
        from equipoise.data.load import load_dataset
        from equipoise.depth.check import depth_check

        data = load_dataset(_dataset_name(subject, dataset), data_root)
        build = _model_builder(subject, data, kind, width)
    network = f"{subject} on {data.name}" if ":" in subject else f"{kind} of width {width} on {data.name}"
    check = depth_check(
        build,
        data,
        depths,
        [scheme.strip() for scheme in init.split(",")],
        steps,
        lr=lr,
        optimizer=optimizer,
        metric=metric,
        clip=clip,
        epochs=epochs,
        seconds=seconds,
        title=f"{network}, {steps} steps of {optimizer}",
    )
    typer.echo(json.dumps(check.to_dict(), indent=2) if as_json else str(check))
    if figure is not None:
        check.figure(figure)
        typer.echo(f"figure: {figure}", err=True)


def _explain(factory: str, as_json: bool, plot: Path | None) -> None:
    with spinner(f"inspecting {factory} …"):
        from equipoise.factory import load_model
        from equipoise.laws.explain import explain

        model, inputs, kwargs = load_model(factory)
        explanation = explain(model, *inputs, **kwargs)
    typer.echo(json.dumps(explanation.to_dict(), indent=2) if as_json else str(explanation))
    plot_laws(explanation.laws, plot, factory)


def _dataset_name(subject: str, dataset: str | None) -> str:
    if ":" in subject:
        return dataset or "synthetic-citation"
    if dataset is not None and dataset != subject:
        raise EquipoiseError(
            f"{subject!r} and --dataset {dataset} both name a data set",
            remedy=f"leave one out, or name a model: package.module:build --dataset {dataset}",
        )
    if subject.endswith(".py"):
        raise EquipoiseError(f"{subject} does not name a function", remedy=f"write {subject}:build")
    return subject


def _model_builder(subject: str, data: Data, kind: str, width: int) -> ModelBuilder:
    from equipoise.factory import load_factory
    from equipoise.nn.stack import Stack

    if ":" in subject:
        build: ModelBuilder = load_factory(subject)
        return build

    def build_stack(depth: int) -> nn.Module:
        return Stack(kind, [data.num_features, *[width] * (depth - 1), data.classes])

    return build_stack


def _parse_depths(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise EquipoiseError(f"--depth {text} is not a list of depths", remedy="write --depth 2,5,10") from None

"""``equipoise inspect``: the laws of a network and its balance, or what becomes of it as it gets deeper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.commands.laws import Json, Plot, draw_laws
from equipoise.commands.terminal import working
from equipoise.errors import EquipoiseError

if TYPE_CHECKING:
    from torch import nn
    from torch_geometric.data import Data

    from equipoise.depth import Build

Option = typer.Option
DEPTHS = "2,5,10,20,40"

Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="package.module:factory or path/to/file.py:factory, a function that returns the model and its inputs "
        "(model, x, edge_index). For a depth check: a function of the depth that returns the model, or the name of a "
        "data set for one of equipoise's networks.",
        show_default=False,
    ),
]


def inspect(
    target: Target,
    *,
    depth: Annotated[
        str | None, Option(metavar="L,L,…", help=f"Check these depths (else {DEPTHS}).", show_default=False)
    ] = None,
    dataset: Annotated[
        str | None, Option(help="Depth check: data set to train on (`equipoise data list`).", show_default=False)
    ] = None,
    kind: Annotated[
        str, Option(help="Depth check of a data set: gatv2, gat, gcn, omega-gat or lipschitz-gat.")
    ] = "gatv2",
    width: Annotated[int, Option(min=1, help="Depth check of a data set: hidden width.")] = 64,
    init: Annotated[str, Option(metavar="S,S,…", help="Depth check: starts; default is as built.")] = "default,bal-o",
    steps: Annotated[int, Option(min=1, help="Depth check: steps of gradient descent, each.")] = 50,
    lr: Annotated[
        float | None, Option(help="Depth check: rate (else the paper's for each depth).", show_default=False)
    ] = None,
    seconds: Annotated[float, Option(help="Depth check: at most, for each depth and start.")] = 8.0,
    data_root: Annotated[
        Path | None, Option(help="Folder with the raw data; else EQUIPOISE_DATA, else a cache.")
    ] = None,
    figure: Annotated[
        Path | None, Option(metavar="FILE", help="Depth check: save its figure (.png, .svg or .pdf).")
    ] = None,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """Explain a network: its laws, how far each is out of balance, why a neuron has no law.

    With --depth, --dataset or a data set as TARGET: check what happens to gradients, balance, representations and loss
    as it gets deeper, in a short training each, and say whether it will train.
    """
    if depth is None and dataset is None and ":" in target:
        if figure is not None:
            raise EquipoiseError("--figure belongs to a depth check", remedy="add --depth 2,5,10, or use --plot")
        _explain(target, as_json, plot)
        return
    if plot is not None:
        raise EquipoiseError("--plot shows one network, not a depth check", remedy="use --figure")
    depths = _numbers(depth or DEPTHS)
    with working("loading torch, PyG and the data …"):
        from equipoise.data.load import load_dataset
        from equipoise.depth import depth_check

        data = load_dataset(_dataset(target, dataset), data_root)
        build = _builder(target, data, kind, width)
    what = f"{target} on {data.name}" if ":" in target else f"{kind} of width {width} on {data.name}"
    check = depth_check(
        build,
        data,
        depths,
        init.split(","),
        steps,
        lr=lr,
        seconds=seconds,
        title=f"{what}, {steps} steps of plain descent",
    )
    typer.echo(json.dumps(check.to_dict(), indent=2) if as_json else str(check))
    if figure is not None:
        check.figure(figure)
        typer.echo(f"figure: {figure}", err=True)


def _explain(target: str, as_json: bool, plot: Path | None) -> None:
    with working(f"looking at {target} …"):
        from equipoise.laws.explain import explain
        from equipoise.target import load_target

        model, inputs, kwargs = load_target(target)
        explanation = explain(model, *inputs, **kwargs)
    typer.echo(json.dumps(explanation.to_dict(), indent=2) if as_json else str(explanation))
    draw_laws(explanation.laws, plot, target)


def _dataset(target: str, dataset: str | None) -> str:
    if ":" not in target:
        if dataset is not None and dataset != target:
            raise EquipoiseError(
                f"{target!r} and --dataset {dataset} both name data",
                remedy=f"leave one out, or name a builder: package.module:build --dataset {dataset}",
            )
        return target
    return dataset or "synthetic-citation"


def _builder(target: str, data: Data, kind: str, width: int) -> Build:
    from equipoise.nn.stack import Stack
    from equipoise.target import load_factory

    if ":" in target:
        build: Build = load_factory(target)
        return build

    def stack(depth: int) -> nn.Module:
        return Stack(kind, [data.num_features, *[width] * (depth - 1), data.classes])

    return stack


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise EquipoiseError(f"--depth {text} is no list of depths", remedy="write it as --depth 2,5,10") from None

"""Depth check and width check: how gradients, balance, representations and loss of a model change with its size."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.depth.remedies import DEFAULT
from equipoise.depth.result import EPOCH_BUDGET, DepthCheck
from equipoise.depth.short_run import CheckData, ModelBuilder, Settings, run_checks
from equipoise.training.metrics import Metric
from equipoise.training.optimizers import OptimizerFactory, ScheduleFactory
from equipoise.training.task import Loss


def depth_check(
    build: ModelBuilder,
    data: CheckData,
    depths: Sequence[int] = (2, 5, 10, 20, 40),
    schemes: Sequence[str] = (DEFAULT, "bal-o"),
    steps: int = 50,
    *,
    loss: Loss | None = None,
    metric: str | Metric | None = None,
    optimizer: str | OptimizerFactory = "sgd",
    lr: float | None = None,
    schedule: ScheduleFactory | None = None,
    clip: float | None = None,
    epochs: int = EPOCH_BUDGET,
    seconds: float = 8.0,
    seed: int = 0,
    title: str = "",
) -> DepthCheck:
    """Check in a short run per depth whether a model will train when it is deep.

    For every depth and scheme, takes a few steps on the training set, records gradients and representations of all
    layers, the initial imbalance and the loss, and predicts whether the loss falls to 90 % of the entropy of the class
    frequencies within ``epochs`` steps. For this, up to four times as many longer steps follow the gradient flow
    (:mod:`equipoise.depth.flow`), except with a schedule. Plain gradient descent is the strict test: Adam enlarges
    small gradients, whether or not they carry information. The random state of torch is restored afterwards.

    Args:
        build: ``build(depth)`` returns a model that is called as ``model(x, edge_index)`` or ``model(data)``.
        data: Graph with ``x``, ``edge_index``, ``y`` and, optionally, ``train_mask``; or loaders of batches
            ``{"train": …}``, as in :func:`~equipoise.train`.
        depths: Numbers of layers.
        schemes: What to compare: ``"default"`` (the model as built), an initialisation scheme of
            :func:`equipoise.initialize_`, ``"rebalanced"`` (as built, rebalanced at the start and every 10 steps),
            ``"skip"`` (identity skips around hidden layers), ``"layer-norm"`` (after hidden layers).
        steps: Steps per depth and scheme.
        loss: Function of model and graph or batch; by default as in :func:`~equipoise.train`.
        metric: ``"accuracy"``, ``"roc_auc"``, ``"average_precision"`` or a function of scores and targets, as in
            :func:`~equipoise.train`; measured on the training set after the last step. None measures nothing.
        optimizer: Name of an optimizer, or a function of the parameters that returns one.
        lr: Learning rate; by default that of the experiments for this data set and depth (Tolokers: that of
            Minesweeper, other data sets: that of the citation graphs) with ``"sgd"``, 0.001 with other names.
        schedule: Function of the optimizer that returns a learning-rate schedule, as in :func:`~equipoise.train`. It
            advances after each step; with loaders, after each pass over the training batches.
        clip: Maximum norm of the gradient of all parameters together; None does not clip.
        epochs: Number of steps that the prediction refers to.
        seconds: Time limit per depth and scheme of the steps, and again of the longer steps; a run that exceeds it
            ends early, with a note.
        seed: Seed of the initialisation.
        title: Title of the table and the figure.

    Returns:
        The results, with ``summary()``, ``frame()``, ``figure()`` and ``verdict()``.

    Raises:
        ChoiceError: For an unknown scheme.
        ForwardError: If a model does not return one score per node and class.
        ModelError: If ``build`` fails or does not return a module.
        TrainingError: If the data lack a tensor, or for impossible values of the other arguments.

    Example:
        >>> from equipoise import Stack, load_dataset
        >>> data = load_dataset("synthetic-citation")
        >>> def build(depth):
        ...     return Stack("gatv2", [data.num_features, *[16] * (depth - 1), data.classes])
        >>> check = depth_check(build, data, depths=(2, 4), steps=3)
        >>> check.summary()[["depth", "scheme", "steps"]].values.tolist()
        [[2, 'default', 3], [2, 'bal-o', 3], [4, 'default', 3], [4, 'bal-o', 3]]
    """
    settings = Settings(loss, metric, optimizer, lr, schedule, clip, steps, epochs, seconds, seed)
    return DepthCheck(run_checks(build, data, depths, schemes, settings, axis="depth"), title)


def width_check(
    build: ModelBuilder,
    data: CheckData,
    widths: Sequence[int] = (16, 32, 64, 128),
    schemes: Sequence[str] = (DEFAULT, "bal-o"),
    steps: int = 50,
    *,
    loss: Loss | None = None,
    metric: str | Metric | None = None,
    optimizer: str | OptimizerFactory = "sgd",
    lr: float | None = None,
    schedule: ScheduleFactory | None = None,
    clip: float | None = None,
    epochs: int = EPOCH_BUDGET,
    seconds: float = 8.0,
    seed: int = 0,
    title: str = "",
) -> DepthCheck:
    """Check in a short run per width what happens as a model gets wider, at one learning rate.

    The same machinery as :func:`depth_check`. Gradients, updates and representations that keep their size allow one
    learning rate for all widths.

    Args:
        build: ``build(width)`` returns a model.
        data: As in :func:`depth_check`.
        widths: Hidden widths.
        schemes: As in :func:`depth_check`.
        steps: Steps per width and scheme.
        loss: As in :func:`depth_check`.
        metric: As in :func:`depth_check`.
        optimizer: As in :func:`depth_check`.
        lr: Learning rate, the same for all widths; by default 0.1 with ``"sgd"``, 0.001 with other names.
        schedule: As in :func:`depth_check`.
        clip: As in :func:`depth_check`.
        epochs: Number of steps that the prediction refers to.
        seconds: Time limit per width and scheme.
        seed: Seed of the initialisation.
        title: Title of the table and the figure.

    Returns:
        The results; the tables have a column ``width`` instead of ``depth``.

    Raises:
        ChoiceError: For an unknown scheme.
        ForwardError: If a model does not return one score per node and class.
        ModelError: If ``build`` fails or does not return a module.
        TrainingError: If the data lack a tensor, or for impossible values of the other arguments.

    Example:
        >>> from equipoise import Stack, load_dataset
        >>> data = load_dataset("synthetic-citation")
        >>> def build(width):
        ...     return Stack("gatv2", [data.num_features, width, width, data.classes])
        >>> width_check(build, data, widths=(8, 16), schemes=("default",), steps=3).summary()["width"].tolist()
        [8, 16]
    """
    settings = Settings(loss, metric, optimizer, lr, schedule, clip, steps, epochs, seconds, seed)
    return DepthCheck(run_checks(build, data, widths, schemes, settings, axis="width"), title, "width")

"""The specification of a run: every setting that determines its result.

This module imports neither torch nor PyG.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from numbers import Integral, Real
from typing import Annotated, Any, get_type_hints

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, WrapValidator

from equipoise.data.catalog import CATALOG, Metric
from equipoise.errors import ChoiceError, SpecError
from equipoise.experiments.choices import (
    BALANCED_SCHEMES,
    CHOICES,
    Activation,
    CriterionName,
    JumpingKnowledge,
    Kind,
    Norm,
    OptimizerName,
    SchemeName,
    Skip,
)


def _to_int(value: Any) -> Any:
    return int(value) if not isinstance(value, bool) and isinstance(value, Integral) else value


def _to_float(value: Any) -> Any:
    # Adding 0.0 turns -0.0 into 0.0, so that both have the same key.
    return float(value) + 0.0 if not isinstance(value, bool) and isinstance(value, Real) else value


def _expect(expected: str) -> WrapValidator:
    """Replace pydantic's message by a description of valid values."""

    def validate(value: Any, validate_inner: Callable[[Any], Any]) -> Any:
        try:
            return validate_inner(value)
        except ValidationError as error:
            raise ValueError(expected) from error

    return WrapValidator(validate)


MAX_INTEGER = 2**63 - 1  # of SQLite and torch
MAX_FLOAT = 3.4028234663852886e38  # of float32

# NumPy scalars become Python numbers; strings and booleans are not numbers.
INTEGER = BeforeValidator(_to_int)
FLOAT = BeforeValidator(_to_float)
FINITE = Field(strict=True, allow_inf_nan=False, le=MAX_FLOAT)

PositiveInt = Annotated[
    int, Field(strict=True, ge=1, le=MAX_INTEGER), INTEGER, _expect("a whole number, 1 or more (and below 2**63)")
]
NonNegativeInt = Annotated[
    int, Field(strict=True, ge=0, le=MAX_INTEGER), INTEGER, _expect("a whole number, 0 or more (and below 2**63)")
]
PositiveFloat = Annotated[float, FINITE, Field(gt=0), FLOAT, _expect("a number above 0, of float32")]
NonNegativeFloat = Annotated[float, FINITE, Field(ge=0), FLOAT, _expect("0 or more, of float32")]
Probability = Annotated[float, FINITE, Field(ge=0, lt=1), FLOAT, _expect("at least 0 and less than 1")]
Switch = Annotated[bool, Field(strict=True), _expect("true or false")]


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """The settings of one run. Equal specs have equal keys and give equal results.

    Attributes:
        dataset: name of a data set (``equipoise data list``), stored in lower case.
        depth: number of layers L.
        lr: learning rate.
        init: initialisation scheme, as in :func:`~equipoise.initialize_`; ``"default"`` is that of PyG's layers.
        seed: seed of initialisation and dropout.
        kind: kind of layer, as in :class:`~equipoise.Stack`.
        width: features of a hidden layer, per head.
        heads: attention heads of all layers but the last.
        concat: concatenate the outputs of these heads; otherwise average them.
        out_heads: heads of the last layer; their outputs are averaged.
        activation: activation function between layers.
        dropout: dropout probability of features between layers and of attention coefficients.
        attention_dropout: dropout probability of attention coefficients; ``None`` means ``dropout``.
        input_dropout: dropout probability of the input features.
        share_weights: use one weight matrix for source and target nodes.
        bias: add a bias to every layer.
        skip: skip connections: ``None``, ``"linear"`` or ``"identity"``.
        norm: normalisation between layers: ``None``, ``"layer"`` or ``"batch"``.
        jk: jumping knowledge: ``None`` or ``"cat"``.
        undirected: add the reverse of every edge.
        optimizer: name of the optimizer, as in :func:`~equipoise.train`.
        weight_decay: L2 penalty.
        epochs: maximum number of epochs.
        stop_loss: training stops when the training loss reaches this value.
        patience: training stops after this many epochs without a higher validation accuracy; ``None`` means never.
        beta: squared norm used for balancing; ``None`` means the scheme's default.
        clip: maximum norm of the gradient; ``None`` means no clipping.
        rebalance: epochs between two calls of :func:`~equipoise.rebalance_`; ``None`` means never.
        rebalance_criterion: what is balanced.
        rebalance_moments: whether the optimizer's moments are rescaled with the weights.
        calibrate: choose the gain of the scheme from the data, as in :func:`~equipoise.initialize_`.

    Raises:
        ChoiceError: If a name is unknown; the message suggests the nearest one.
        SpecError: If a value has the wrong type or lies outside its range.

    Example:
        >>> from dataclasses import replace
        >>> spec = RunSpec(dataset="cora", depth=10, lr=0.05, init="bal-o", seed=3)
        >>> spec.label, spec.key
        ('cora L=10 bal-o seed 3', '5159562c3a562c12')
        >>> replace(spec, activation="elu").label
        'cora L=10 bal-o seed 3, activation=elu'
        >>> RunSpec.from_dict(spec.to_dict()) == spec
        True
    """

    dataset: str
    depth: PositiveInt
    lr: PositiveFloat
    init: SchemeName = "xav"
    seed: NonNegativeInt = 0
    kind: Kind = "gatv2"
    width: PositiveInt = 64
    heads: PositiveInt = 1
    concat: Switch = True
    out_heads: PositiveInt = 1
    activation: Activation = "relu"
    dropout: Probability = 0.0
    attention_dropout: Probability | None = None
    input_dropout: Probability = 0.0
    share_weights: Switch = True
    bias: Switch = False
    skip: Skip | None = None
    norm: Norm | None = None
    jk: JumpingKnowledge | None = None
    undirected: Switch = False
    optimizer: OptimizerName = "sgd"
    weight_decay: NonNegativeFloat = 0.0
    epochs: PositiveInt = 5000
    stop_loss: NonNegativeFloat = 1e-4
    patience: PositiveInt | None = None
    beta: PositiveFloat | None = None
    clip: PositiveFloat | None = None
    rebalance: PositiveInt | None = None
    rebalance_criterion: CriterionName = "weights"
    rebalance_moments: Switch = True
    calibrate: Switch = False

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, validate_setting(field.name, getattr(self, field.name)))
        if self.beta is not None and self.init not in BALANCED_SCHEMES:
            raise SpecError(
                f"{self.init} is not a balanced scheme and takes no beta",
                where=f"beta={self.beta}",
                remedy=f"leave out beta, or choose init from: {', '.join(BALANCED_SCHEMES)}",
            )
        if self.calibrate and self.init == "default":
            raise SpecError(
                "PyG's initialisation is not calibrated", where="calibrate=True", remedy="choose another init, as bal-o"
            )

    @cached_property
    def key(self) -> str:
        """Identifier of the run, equal on all machines: 16 hex digits of the SHA-256 of the canonical form.

        The canonical form is JSON with sorted names, without the settings that equal their defaults. A later version
        can therefore add a field without changing existing keys, but must never change a default.
        """
        canonical = {name: value for name, value in self.to_dict().items() if value != DEFAULTS.get(name, MISSING)}
        text = json.dumps(canonical, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def metric(self) -> Metric:
        """Metric of validation and test nodes: a property of the data set, so it is no setting and not in the key."""
        return CATALOG[self.dataset].metric

    @property
    def label(self) -> str:
        """Short description for progress output, with the rarer settings that differ from their defaults."""
        changed = [name for name, value in DEFAULTS.items() if name not in COMMON and getattr(self, name) != value]
        settings = [f"{name}={getattr(self, name)}" for name in changed]
        return ", ".join([f"{self.dataset} L={self.depth} {self.init} seed {self.seed}", *settings])

    def to_dict(self) -> dict[str, Any]:
        """Return all settings as plain data."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunSpec:
        """Create a spec from plain data.

        Args:
            data: settings by name; missing ones get their defaults.

        Returns:
            The validated spec.

        Raises:
            ChoiceError: If there is no setting of such a name.
            SpecError: If a required setting is missing or a value is invalid.
        """
        check_setting_names(data)
        if missing := [name for name in FIELDS if name not in DEFAULTS and name not in data]:
            raise SpecError(f"a run needs {' and '.join(missing)}", remedy=f"set {missing[0]}")
        return cls(**data)


FIELDS = tuple(field.name for field in fields(RunSpec))
DEFAULTS = {field.name: field.default for field in fields(RunSpec) if field.default is not MISSING}
# Left out of the rarer settings of a label: `reproduce --dry-run` and the page show them next to it.
COMMON = ("init", "seed", "kind", "width", "heads", "optimizer", "epochs")

_VALIDATORS: dict[str, TypeAdapter[Any]] = {
    name: TypeAdapter(annotation) for name, annotation in get_type_hints(RunSpec, include_extras=True).items()
}


def check_setting_names(names: Iterable[str]) -> None:
    """Raise a :class:`ChoiceError` for the first name that is not a field of :class:`RunSpec`."""
    for name in names:
        if name not in FIELDS:
            raise ChoiceError("setting", name, FIELDS)


def validate_setting(name: str, value: Any) -> Any:
    """Validate one setting and convert it to its canonical type, so that equal settings have equal keys.

    Args:
        name: a field of :class:`RunSpec`.
        value: its value; NumPy scalars are accepted.

    Returns:
        A plain ``int``, ``float``, ``bool``, ``str`` or ``None``.

    Raises:
        ChoiceError: If there is no such setting, or the value is not one of its choices.
        SpecError: If the value has the wrong type or lies outside its range.
    """
    check_setting_names([name])
    if name in CHOICES:
        choice = value.lower() if name == "dataset" and isinstance(value, str) else value
        if choice not in CHOICES[name]:
            raise ChoiceError(name, value, map(str, CHOICES[name]))
        return choice
    try:
        return _VALIDATORS[name].validate_python(value)
    except ValidationError as error:
        expected = error.errors()[0]["ctx"]["error"]
        raise SpecError(f"{name} must be {expected}", where=f"{name}={value!r}") from error

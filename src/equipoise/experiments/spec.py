"""Everything that decides the result of one run, and nothing else."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from numbers import Integral, Real
from typing import Any

from equipoise.data.catalog import CATALOG
from equipoise.errors import ChoiceError, SpecError
from equipoise.init.schemes import SCHEMES
from equipoise.nn.stack import ACTIVATIONS, KINDS, SKIPS
from equipoise.train.protocol import OPTIMIZERS


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One run: data, network, start, training. Equal specs give equal results and have equal keys.

    Attributes:
        dataset: a name of the catalogue (``equipoise data list``); kept in lower case.
        depth: layers L.
        lr: the optimizer's rate.
        init: a scheme of ``initialize_``.
        seed: of the start and of dropout.
        kind: of layer, as in ``Stack``.
        width: of a hidden layer; with several heads, of each.
        heads: attention heads of every layer but the last.
        concat: whether these are concatenated or averaged.
        out_heads: heads of the last layer, averaged.
        activation: between layers.
        dropout: of features between layers, and of attention coefficients.
        attention_dropout: of attention coefficients, where it differs from ``dropout``.
        input_dropout: of the features that the first layer reads.
        share_weights: one matrix for source and target.
        bias: whether layers have biases.
        skip: ``None``, ``"linear"`` or ``"identity"``.
        undirected: whether the reverse of every edge is added.
        optimizer: ``"sgd"`` or ``"adam"``.
        weight_decay: L2 penalty.
        epochs: how many at most.
        stop_loss: training loss at which the run is over.
        patience: epochs in a row without a higher validation accuracy after which the run is over; ``None``: never.
        beta: squared norm that balancing starts from; ``None``: the scheme's own.

    Example:
        >>> spec = RunSpec(dataset="cora", depth=10, lr=0.05, init="bal-o", seed=3)
        >>> spec.label, spec.key
        ('cora L=10 bal-o seed 3', '5159562c3a562c12')
        >>> RunSpec.from_dict(spec.to_dict()) == spec
        True
    """

    dataset: str
    depth: int
    lr: float
    init: str = "xav"
    seed: int = 0
    kind: str = "gatv2"
    width: int = 64
    heads: int = 1
    concat: bool = True
    out_heads: int = 1
    activation: str = "relu"
    dropout: float = 0.0
    attention_dropout: float | None = None
    input_dropout: float = 0.0
    share_weights: bool = True
    bias: bool = False
    skip: str | None = None
    undirected: bool = False
    optimizer: str = "sgd"
    weight_decay: float = 0.0
    epochs: int = 5000
    stop_loss: float = 1e-4
    patience: int | None = None
    beta: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, checked(field.name, getattr(self, field.name)))
        if self.beta is not None and not SCHEMES[self.init].balanced:
            raise SpecError(f"{self.init} balances nothing, so it starts from no beta", where=f"beta={self.beta}")

    @property
    def key(self) -> str:
        """The run's name, the same on every machine: 16 hex digits of the SHA-256 of its canonical form.

        The canonical form is JSON with sorted names, and leaves out what equals its default: a field that a later
        version adds, with a default that changes nothing, changes no key either. A default must therefore never change.
        """
        canonical = {name: value for name, value in self.to_dict().items() if value != DEFAULTS.get(name, MISSING)}
        text = json.dumps(canonical, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def label(self) -> str:
        """A few words for a progress line."""
        return f"{self.dataset} L={self.depth} {self.init} seed {self.seed}"

    def to_dict(self) -> dict[str, Any]:
        """Every field, as plain data."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunSpec:
        """The run with these settings; what is not given has its default."""
        for name in data:
            if name not in FIELDS:
                raise ChoiceError("setting", name, FIELDS)
        if missing := [name for name in FIELDS if name not in DEFAULTS and name not in data]:
            raise SpecError(f"a run needs {' and '.join(missing)}", remedy=f"set {missing[0]}")
        return cls(**data)


FIELDS = tuple(field.name for field in fields(RunSpec))
DEFAULTS = {field.name: field.default for field in fields(RunSpec) if field.default is not MISSING}

CHOICES: dict[str, Iterable[str | None]] = {
    "dataset": CATALOG,
    "init": SCHEMES,
    "kind": KINDS,
    "activation": ACTIVATIONS,
    "skip": SKIPS,
    "optimizer": OPTIMIZERS,
}
LEAST = {"depth": 1, "seed": 0, "width": 1, "heads": 1, "out_heads": 1, "epochs": 1, "patience": 1}  # whole numbers
POSITIVE = ("lr", "beta")
PROBABILITIES = ("dropout", "attention_dropout", "input_dropout")
SWITCHES = ("concat", "share_weights", "bias", "undirected")


def checked(name: str, value: Any) -> Any:
    """A setting's value as plain Python of one type, so that 0, 0.0 and numpy's make one key; an error names it."""
    if name in CHOICES:
        return _choice(name, value)
    if name in SWITCHES:
        if not isinstance(value, bool):
            raise _wrong(name, value, "true or false")
        return value
    if value is None and DEFAULTS.get(name, MISSING) is None:
        return None
    if name in LEAST:
        if isinstance(value, bool) or not isinstance(value, Integral) or value < LEAST[name]:
            raise _wrong(name, value, f"a whole number, {LEAST[name]} or more")
        return int(value)
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise _wrong(name, value, "a number")
    number = float(value) + 0.0  # and -0.0 is 0.0
    if name in POSITIVE and not number > 0:
        raise _wrong(name, value, "a number above 0")
    if name in PROBABILITIES and not 0 <= number < 1:
        raise _wrong(name, value, "at least 0 and less than 1")
    if number < 0:
        raise _wrong(name, value, "0 or more")
    return number


def _choice(name: str, value: Any) -> Any:
    known = list(CHOICES[name])
    found = value.lower() if name == "dataset" and isinstance(value, str) else value
    if found not in known:
        raise ChoiceError(name, value, map(str, known))
    return found


def _wrong(name: str, value: Any, expected: str) -> SpecError:
    return SpecError(f"{name} must be {expected}", where=f"{name}={value!r}")

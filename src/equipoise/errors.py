"""Every error that a user can cause: what is wrong, where, and what to do about it.

All of them derive from :class:`EquipoiseError`, so ``except EquipoiseError`` catches the family and nothing else:

    >>> str(LawError("the law does not fit the model", where="conv1.att", remedy="discover the laws again"))
    'the law does not fit the model\\n  where:  conv1.att\\n  remedy: discover the laws again'
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EquipoiseError(Exception):
    """Something cannot be done as asked; the message says what, where and the remedy."""

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.what, self.where, self.remedy = what, where, remedy
        lines = [what]
        if where:
            lines.append(f"  where:  {where}")
        if remedy:
            lines.append(f"  remedy: {remedy}")
        super().__init__("\n".join(lines))


class ModelError(EquipoiseError):
    """The model itself cannot be worked on: not a module, nothing to train, not initialised, not copyable."""


class ArchitectureError(EquipoiseError):
    """A layer or a network is asked for that cannot be built: widths, heads, options that do not go together."""


class ForwardError(EquipoiseError):
    """The model does not run on the inputs it was given."""


class OutputError(EquipoiseError):
    """The model's output is not one differentiable, finite tensor."""


class GradientError(EquipoiseError):
    """A gradient is asked for that no backward pass has left behind."""


class LawError(EquipoiseError):
    """A law is not well formed, or does not belong to the model it is used on."""


class PartsError(EquipoiseError):
    """A model cannot be initialised: a layer whose parts nobody has named, or layers that do not follow each other."""


class BalanceError(EquipoiseError):
    """A neuron cannot be balanced: one side is zero, or a number is not finite."""


class OptimizerError(EquipoiseError):
    """An optimizer's state cannot follow a rescaling of the parameters."""


class TrainingError(EquipoiseError):
    """A training run that cannot be started as asked."""


class MeasurementError(EquipoiseError):
    """A time or an amount of memory that could not be measured."""


class SpecError(EquipoiseError):
    """A run, or a file of runs, is described wrongly; names the setting."""


class TargetError(EquipoiseError):
    """``package.module:factory`` on the command line does not lead to a model and its inputs."""


class DataError(EquipoiseError):
    """A data set cannot be had as asked."""


class MissingDataError(DataError):
    """Raw files are neither where they were looked for nor to be downloaded; lists them."""


class ChecksumError(DataError):
    """A raw file is not the one that was published: its SHA-256 differs."""


class UnsafePickleError(DataError):
    """A pickle asks for something other than arrays, sparse matrices and dictionaries of lists."""


class DataOptionError(DataError):
    """An option that this data set does not have, or a value outside its range."""


class StoreError(EquipoiseError):
    """A store of results cannot be used: not one, of a later version, locked, or a table that does not fit it."""


class ClusterError(EquipoiseError):
    """A cluster that is not there, or Ray is not."""


class ChoiceError(EquipoiseError):
    """A name that is none of the known ones; lists them and suggests the nearest."""

    def __init__(self, kind: str, given: object, choices: Iterable[str]) -> None:
        known = list(choices)
        nearest = difflib.get_close_matches(str(given), known, n=1)
        hint = f"did you mean {nearest[0]!r}? " if nearest else ""
        super().__init__(f"unknown {kind} {given!r}", remedy=f"{hint}choose one of: {', '.join(known)}")

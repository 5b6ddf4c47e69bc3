"""Exceptions raised by equipoise.

Every exception derives from :class:`EquipoiseError`. Its message states the problem, the location and a remedy:

    >>> str(LawError("the law does not match the model", where="conv1.att", remedy="run discover again"))
    'the law does not match the model\\n  where:  conv1.att\\n  remedy: run discover again'
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EquipoiseError(Exception):
    """Base class of all exceptions that equipoise raises on purpose.

    Args:
        what: The problem in one line.
        where: The parameter, file, setting or layer concerned. Omitted from the message if empty.
        remedy: What the caller can do about it. Omitted from the message if empty.

    Example:
        >>> import equipoise as eq
        >>> try:
        ...     eq.discover("not a model")
        ... except eq.EquipoiseError as error:
        ...     print(error.what)
        expected a torch.nn.Module, got str
    """

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.what, self.where, self.remedy = what, where, remedy
        lines = [what]
        if where:
            lines.append(f"  where:  {where}")
        if remedy:
            lines.append(f"  remedy: {remedy}")
        super().__init__("\n".join(lines))


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that memory could not be allocated.

    Args:
        error: Any exception; torch raises a ``RuntimeError`` where Python raises a ``MemoryError``.

    Returns:
        True for a failed allocation.

    Example:
        >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("shape mismatch"))
        (True, False)
    """
    words = ("can't allocate memory", "not enough memory", "out of memory", "Storage size calculation overflowed")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


class TrainingWarning(UserWarning):
    """A recorder found a layer that does not move, or representations that have become equal."""


class ModelError(EquipoiseError):
    """The model is not a module, has no trainable parameters, has lazy parameters, or cannot be copied."""


class ArchitectureError(EquipoiseError):
    """A layer or network cannot be built from, or initialised with, the given widths, heads or options."""


class ForwardError(EquipoiseError):
    """The model's forward pass fails on the given inputs."""


class GraphError(EquipoiseError, ValueError):
    """``edge_index``, node features or edge features of a fused layer have the wrong type or shape."""


class EdgeIndexError(GraphError, IndexError):
    """``edge_index`` refers to a node that does not exist."""


class OutputError(EquipoiseError):
    """The model's output is not a single finite, differentiable tensor."""


class GradientError(EquipoiseError):
    """A parameter has no gradient because no backward pass has run."""


class LawError(EquipoiseError):
    """A law is malformed or does not match the model it is applied to."""


class ExpiredLawError(LawError):
    """A law rests on the value of a buffer (a running mean) that has changed since the law was found."""


class InitializationError(EquipoiseError):
    """A model cannot be initialised: a layer type is not registered, or consecutive widths do not match."""


class BalanceError(EquipoiseError):
    """A neuron cannot be balanced: one side has norm zero, or a parameter is not finite."""


class OptimizerError(EquipoiseError):
    """The optimizer's state cannot be rescaled together with the parameters."""


class TrainingError(EquipoiseError):
    """Training, recording or a depth check got invalid arguments, or a recording file cannot be read or written."""


class MeasurementError(EquipoiseError):
    """A running time or a memory footprint could not be measured."""


class SpecError(EquipoiseError):
    """A run specification or an experiment file is invalid."""


class FactoryError(EquipoiseError):
    """``package.module:factory`` does not resolve to a function that returns a model and its inputs."""


class DataError(EquipoiseError):
    """A data set cannot be loaded."""


class MissingDataError(DataError):
    """Raw files of a data set are neither on disk nor downloadable."""


class ChecksumError(DataError):
    """The SHA-256 checksum of a raw file differs from the published one."""


class UnsafePickleError(DataError):
    """A pickle references a type other than arrays, sparse matrices and dictionaries of lists."""


class DataOptionError(DataError):
    """A data set does not support the given option or value."""


class PartitionError(EquipoiseError):
    """A graph cannot be partitioned, or a part cannot be read: missing, altered, or for another number of ranks."""


class StoreError(EquipoiseError):
    """A result store cannot be used: wrong format, newer schema version, locked, or an incompatible table."""


class ClusterError(EquipoiseError):
    """The Ray cluster is unreachable, or Ray is not installed."""


class DistributedError(EquipoiseError):
    """Ranks do not match the parts of a graph, or another rank failed or does not answer."""


class ChoiceError(EquipoiseError):
    """A name is not among the valid choices; the message lists them and suggests the closest match."""

    def __init__(self, kind: str, given: object, choices: Iterable[str]) -> None:
        known = list(choices)
        nearest = difflib.get_close_matches(str(given), known, n=1)
        hint = f"did you mean {nearest[0]!r}? " if nearest else ""
        super().__init__(f"unknown {kind} {given!r}", remedy=f"{hint}choose one of: {', '.join(known)}")

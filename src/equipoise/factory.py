"""Load a model and its inputs from a factory named on the command line, ``package.module:factory``."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from equipoise.errors import FactoryError

SYNTAX = "package.module:factory or path/to/file.py:factory"
DEBUG = "run it in Python to debug it"


def load_model(reference: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Call a factory and return the model and its inputs.

    A factory takes no arguments and returns ``model, x, edge_index``, or ``model, (x, edge_index)``, or
    ``model, {"x": x}``.

    Args:
        reference: ``package.module:factory`` or ``path/to/file.py:factory``.

    Returns:
        The model, its positional inputs and its named inputs.

    Raises:
        FactoryError: If the factory cannot be found, fails, or returns something else.
    """
    factory = load_factory(reference)
    if required := _required_parameters(factory):
        raise FactoryError(
            f"{reference.rpartition(':')[2]} takes {', '.join(required)}",
            where=reference,
            remedy="name a function without arguments; for one that takes a depth: inspect … --depth 2,5,10",
        )
    try:
        returned = factory()
    except (Exception, SystemExit) as error:
        name = reference.rpartition(":")[2]
        raise FactoryError(f"{name}() failed: {_describe(error)}", where=_location(error), remedy=DEBUG) from error
    return _unpack(returned, reference)


def load_factory(reference: str) -> Callable[..., Any]:
    """Import a factory.

    Args:
        reference: ``package.module:factory`` or ``path/to/file.py:factory``.

    Returns:
        The function of that name.

    Raises:
        FactoryError: If the module or the function cannot be found.
    """
    module_name, colon, name = reference.rpartition(":")
    if not colon or not module_name or not name:
        raise FactoryError(f"{reference!r} does not name a factory", remedy=f"write {SYNTAX}")
    module = _import(module_name)
    factory = getattr(module, name, None)
    if factory is None:
        matches = difflib.get_close_matches(name, [n for n in vars(module) if not n.startswith("_")], n=3)
        remedy = f"did you mean {' or '.join(matches)}?" if matches else "define it there, or name another function"
        where = str(getattr(module, "__file__", module_name))
        raise FactoryError(f"{module_name} has no function {name!r}", where=where, remedy=remedy)
    if not callable(factory):
        kind = type(factory).__name__
        raise FactoryError(f"{name!r} has type {kind}, not a function", where=module_name, remedy=f"write {SYNTAX}")
    function: Callable[..., Any] = factory
    return function


def _required_parameters(factory: Callable[..., Any]) -> list[str]:
    """Names of the arguments that a function needs."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # some functions written in C have none
        return []
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in parameters if one.default is one.empty and one.kind not in variable]


def _import(module_name: str) -> ModuleType:
    path = Path(module_name)
    try:
        if path.suffix == ".py":
            if not path.is_file():
                raise FactoryError(f"there is no file {module_name}", where=str(Path.cwd()), remedy=f"write {SYNTAX}")
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[path.stem] = module
            spec.loader.exec_module(module)
            return module
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(module_name)
    except FactoryError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.startswith(error.name):
            remedy = "run the command from a folder that contains the package, or name a file: path/to/file.py:factory"
            raise FactoryError(f"there is no module {module_name!r}", where=str(Path.cwd()), remedy=remedy) from error
        raise _import_error(module_name, error) from error
    except (Exception, SystemExit) as error:
        raise _import_error(module_name, error) from error


def _import_error(module_name: str, error: BaseException) -> FactoryError:
    message = f"{module_name} cannot be imported: {_describe(error)}"
    return FactoryError(message, where=_location(error), remedy=DEBUG)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _location(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}"


def _unpack(returned: Any, reference: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    if not isinstance(returned, (tuple, list)) or len(returned) < 2 or not isinstance(returned[0], nn.Module):
        kind = type(returned).__name__
        length = f" of length {len(returned)}" if isinstance(returned, (tuple, list)) else ""
        raise FactoryError(
            f"the factory returned {kind}{length}, not a model and its inputs",
            where=reference,
            remedy="return model, x, edge_index (as in model(x, edge_index))",
        )
    model, *inputs = returned
    if len(inputs) == 1 and isinstance(inputs[0], dict):
        return model, (), dict(inputs[0])
    if len(inputs) == 1 and isinstance(inputs[0], (tuple, list)):
        return model, tuple(inputs[0]), {}
    return model, tuple(inputs), {}

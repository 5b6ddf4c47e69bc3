"""From ``package.module:factory`` on a command line to a model and its inputs."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from equipoise.errors import TargetError

FORM = "package.module:factory or path/to/file.py:factory"


def load_target(target: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The model, its inputs and its named inputs, as the factory returns them.

    A factory takes nothing and returns ``model, x, edge_index``, or ``model, (x, edge_index)``, or ``model, {"x": x}``.
    """
    factory = load_factory(target)
    try:
        made = factory()
    except Exception as error:
        raise _failed(f"{target.rpartition(':')[2]}() failed", error) from error
    return _unpack(made, target)


def load_factory(target: str) -> Callable[..., Any]:
    """The function that ``package.module:factory`` names."""
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise TargetError(f"{target!r} does not name a factory", remedy=f"write {FORM}")
    module = _import(place)
    factory = getattr(module, name, None)
    if factory is None:
        near = difflib.get_close_matches(name, [n for n in vars(module) if not n.startswith("_")], n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "define it there, or name another function"
        raise TargetError(f"{place} has no {name!r}", where=str(getattr(module, "__file__", place)), remedy=hint)
    if not callable(factory):
        raise TargetError(
            f"{name!r} is a {type(factory).__name__}, not a function", where=place, remedy=f"write {FORM}"
        )
    found: Callable[..., Any] = factory
    return found


def _import(place: str) -> ModuleType:
    path = Path(place)
    try:
        if path.suffix == ".py":
            if not path.is_file():
                raise TargetError(f"there is no file {place}", where=str(Path.cwd()), remedy=f"write {FORM}")
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[path.stem] = module
            spec.loader.exec_module(module)
            return module
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(place)
    except TargetError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and place.startswith(error.name):
            remedy = "start the command where the package can be imported, or name a file: path/to/file.py:factory"
            raise TargetError(f"there is no module {place!r}", where=str(Path.cwd()), remedy=remedy) from error
        raise _failed(f"{place} cannot be imported", error) from error
    except Exception as error:
        raise _failed(f"{place} cannot be imported", error) from error


def _failed(what: str, error: Exception) -> TargetError:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    message = f"{what}: {type(error).__name__}: {error}"
    return TargetError(
        message, where=f"{frame.filename}:{frame.lineno}", remedy="run it in Python by itself, and mend it"
    )


def _unpack(made: Any, target: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    if not isinstance(made, (tuple, list)) or len(made) < 2 or not isinstance(made[0], nn.Module):
        got = f"a {type(made).__name__}" + (f" of {len(made)}" if isinstance(made, (tuple, list)) else "")
        raise TargetError(
            f"the factory returned {got}, not a model and its inputs",
            where=target,
            remedy="return model, x, edge_index (as in model(x, edge_index))",
        )
    model, *rest = made
    if len(rest) == 1 and isinstance(rest[0], dict):
        return model, (), dict(rest[0])
    if len(rest) == 1 and isinstance(rest[0], (tuple, list)):
        return model, tuple(rest[0]), {}
    return model, tuple(rest), {}

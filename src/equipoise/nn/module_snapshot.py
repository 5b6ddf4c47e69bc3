"""Snapshots of modules: a cheap test of whether a check made earlier still holds.

Checking every option and hook of every layer takes longer than a layer of a small graph. A snapshot holds what such a
check depends on, and compares it at the speed of C.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from operator import is_, itemgetter

from torch import nn

from equipoise.nn.hooks import CALL_HOOKS, MESSAGE_HOOKS

COMPARABLE = (bool, int, float, str, tuple, dict, type(None))


class ModuleSnapshot:
    """Options, parameters and submodules of modules without hooks.

    Args:
        modules: the modules; submodules that matter are listed too.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = [weakref.ref(module) for module in modules]  # a cache of snapshots keeps no module alive
        self._options = [_option_getter(module) for module in modules]
        self._values = self._read_options(modules)
        self._members = _members(modules)
        names = (*CALL_HOOKS, *MESSAGE_HOOKS)
        self._hooks = [module.__dict__[name] for module in modules for name in names if name in module.__dict__]

    def is_current(self, modules: Sequence[nn.Module]) -> bool:
        """Whether these are the same modules, nothing of them has been replaced, and none has a hook."""
        known = [reference() for reference in self._modules]
        if len(modules) != len(known) or not all(map(is_, modules, known)) or any(self._hooks):
            return False
        members = _members(modules)
        return (
            len(members) == len(self._members)
            and all(map(is_, members, self._members))
            and self._read_options(modules) == self._values
        )

    def _read_options(self, modules: Sequence[nn.Module]) -> list[object]:
        return [
            (len(module.__dict__), get(module.__dict__)) for module, get in zip(modules, self._options, strict=True)
        ]


def _option_getter(module: nn.Module) -> itemgetter[object]:
    """Reads all attributes that can be compared: numbers, strings, and the dictionaries of hooks by identity."""
    return itemgetter(*(name for name, value in module.__dict__.items() if isinstance(value, COMPARABLE)))


def _members(modules: Sequence[nn.Module]) -> list[object]:
    members: list[object] = []
    for module in modules:
        members += module._parameters.values()
        members += module._modules.values()
    return members

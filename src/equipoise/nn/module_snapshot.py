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


class ModuleSnapshot:
    """Options, parameters and submodules of modules without hooks.

    Args:
        modules: the modules; submodules that matter are listed too.
        options: names of attributes that matter, in modules that have all of them.
    """

    def __init__(self, modules: Sequence[nn.Module], options: Sequence[str]) -> None:
        self._modules = [weakref.ref(module) for module in modules]  # a cache of snapshots keeps no module alive
        self._indices = [i for i, module in enumerate(modules) if set(options) <= module.__dict__.keys()]
        self._read = itemgetter(*options)
        self._state = self._read_state(modules)
        self._members = _members(modules)
        names = (*CALL_HOOKS, *MESSAGE_HOOKS)
        self._hooks = [module.__dict__[name] for module in modules for name in names if name in module.__dict__]

    def is_current(self, modules: Sequence[nn.Module]) -> bool:
        """Whether these are the same modules, nothing of them has been replaced, and none has a hook."""
        if len(modules) != len(self._modules) or any(self._hooks):
            return False
        if not all(map(is_, modules, [reference() for reference in self._modules])):
            return False
        members = _members(modules)
        return (
            len(members) == len(self._members)
            and all(map(is_, members, self._members))
            and self._read_state(modules) == self._state
        )

    def _read_state(self, modules: Sequence[nn.Module]) -> list[object]:
        """Values of the options, and numbers of attributes: a method replaced on an instance is a new attribute."""
        attributes = [module.__dict__ for module in modules]
        read = self._read
        return [*map(len, attributes), *[read(attributes[i]) for i in self._indices]]


def _members(modules: Sequence[nn.Module]) -> list[object]:
    members: list[object] = []
    for module in modules:
        if module._parameters:
            members += module._parameters.values()
        if module._modules:
            members += module._modules.values()
    return members

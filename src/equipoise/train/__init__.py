"""One training run, as the paper's protocol has it, and what is looked at meanwhile.

``equipoise.train`` is a function and this package. Whichever name Python binds last (importing anything from here binds
the package), ``equipoise.train(model, data, …)`` runs: the package can be called, too.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from equipoise.train.protocol import train  # noqa: PLC0415 - it would import the package that it is in

        return train(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable

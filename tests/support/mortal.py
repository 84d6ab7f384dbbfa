"""A process that dies before its n-th change of a name on disk, without ending one.

Knows which functions of ``os`` and ``shutil`` change names. A test gives it to a module in the
place of the real ones.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

_CHANGES = ("replace", "remove", "mkdir", "rmtree")


class Killed(BaseException):
    """Stands for kill -9: nobody handles it."""


class Mortal:
    """A module whose functions raise Killed when the countdown, which several may share, is over.

    ``countdown``: a list with one number, the changes that are still allowed.
    """

    def __init__(self, module: ModuleType, countdown: list[int]) -> None:
        self._module = module
        self._countdown = countdown

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if name not in _CHANGES:
            return found

        def change(*args: Any) -> Any:
            self._countdown[0] -= 1
            if self._countdown[0] < 0:
                raise Killed
            return found(*args)

        return change

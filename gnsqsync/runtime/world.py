"""Which of socket and threading gevent has replaced in this process, and whether that changed.

Never imports gevent: a process that did not load it is not patched.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, NamedTuple

from gnsqsync.errors import ConfigError

__all__ = ["World", "check", "current", "forget", "native"]


class World(NamedTuple):
    """What gevent.monkey replaced: the socket module, the threading module."""

    socket: bool
    threading: bool

    def __str__(self) -> str:
        names = [name for name, patched in self._asdict().items() if patched]
        return " and ".join(names) or "neither socket nor threading"


_recorded: World | None = None


def current() -> World:
    """The world as it is now."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None:
        return World(False, False)
    return World(monkey.is_module_patched("socket"), monkey.is_module_patched("threading"))


def check() -> World:
    """The world, recorded by the first call; ConfigError when it is another one by now.

    Locks and sockets made before a patch do not work together with those made after it.
    """
    global _recorded
    now = current()
    if _recorded is None:
        _recorded = now
    if _recorded != now:
        raise ConfigError(
            f"gevent has patched {now} by now, but {_recorded} when gnsqsync was first used in"
            " this process; call gevent.monkey.patch_all() before the first start() or publish()"
        )
    return now


def forget() -> None:
    """Let the next ``check()`` record anew; for a fork's child, which has no task of ours."""
    global _recorded
    _recorded = None


def native(module: str, name: str) -> Any:
    """``module.name`` as Python made it, also when gevent has replaced it."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None:
        return getattr(importlib.import_module(module), name)
    return monkey.get_original(module, name)

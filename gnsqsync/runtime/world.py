"""State of the process: whether gevent has replaced socket or threading, and if that changed.

Never imports gevent: a process that did not load it is not patched.

``check`` records the state at the first use, and refuses a process that was patched later.

Surprise: a fork begins anew. gunicorn patches the children of an unpatched parent, and a child has
none of the parent's tasks.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, NamedTuple

from gnsqsync.errors import ConfigError

__all__ = ["World", "check", "current", "forget", "native"]


class World(NamedTuple):
    """State of the socket module and the threading module: True if gevent.monkey replaced it."""

    # True if gevent replaced the socket module.
    socket: bool
    # True if gevent replaced the threading module.
    threading: bool

    def __str__(self) -> str:
        names = [name for name, patched in self._asdict().items() if patched]
        return " and ".join(names) or "neither socket nor threading"


# The state at the first use of gnsqsync in this process.
_recorded: World | None = None


def current() -> World:
    """Return the present state."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None:
        return World(False, False)
    return World(monkey.is_module_patched("socket"), monkey.is_module_patched("threading"))


def check() -> World:
    """Return the state, which the first call records. Raises ConfigError if it has changed.

    Locks and sockets from before a patch do not work together with later ones.
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
    """Let the next ``check()`` record anew. For a forked child, which has none of our tasks."""
    global _recorded
    _recorded = None


def native(module: str, name: str) -> Any:
    """Return ``module.name`` as Python made it, even if gevent has replaced it."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None:
        return getattr(importlib.import_module(module), name)
    return monkey.get_original(module, name)

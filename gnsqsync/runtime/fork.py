"""Hooks that run in the child after os.fork().

Knows weak references to bound methods and their order. Must not know sockets.

Owners register a bound method, and the child calls all of them in order.

Surprise: uWSGI forks without Python's hooks, so no method is called then. Owners therefore also
compare process ids.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

from gnsqsync.runtime import world

__all__ = ["install", "register"]

logger: logging.Logger = logging.getLogger("gnsqsync.runtime")

# Hooks by the id of their weak reference. No lock: single dict operations are atomic, and a lock
# would be held at some fork. No WeakMethod: its callback complains on stderr at the end.
_Hook = tuple[weakref.ref[Any], Callable[[Any], object]]
_hooks: dict[int, _Hook] = {}
# Says which thread has installed the hook of the interpreter.
_once: dict[str, object] = {}


def install() -> None:
    """Register with the interpreter, once in a process. A child inherits the registration."""
    token = object()
    if _once.setdefault("installed", token) is token:
        os.register_at_fork(after_in_child=_in_child)


def register(method: MethodType) -> None:
    """Call ``method()`` in every child while its object lives."""
    install()
    owner = weakref.ref(method.__self__, _forget)
    _hooks[id(owner)] = (owner, method.__func__)


def _forget(owner: weakref.ref[Any], hooks: dict[int, _Hook] = _hooks) -> None:
    # The dict is a default value, because globals may be gone at the end of the interpreter.
    hooks.pop(id(owner), None)


def _in_child() -> None:
    # gunicorn, for one, patches a child of a parent that was used unpatched. The child has none
    # of our tasks, so that is allowed.
    world.forget()
    for ref, function in list(_hooks.values()):
        owner = ref()
        if owner is None:
            continue
        try:
            function(owner)
        except Exception:
            logger.exception("%r of %r failed in the child of a fork", function, owner)

"""Hooks that run in the child after os.fork().

Knows weak references to bound methods and the order to call them; knows nothing of sockets.
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

# Single dict operations are atomic, so no lock is needed: one would be held at some fork.
# Not WeakMethod: its callback complains on stderr when the interpreter ends.
_Hook = tuple[weakref.ref[Any], Callable[[Any], object]]
_hooks: dict[int, _Hook] = {}
_once: dict[str, object] = {}


def install() -> None:
    """Register with the interpreter, once per process; a child inherits the registration."""
    token = object()
    if _once.setdefault("installed", token) is token:
        os.register_at_fork(after_in_child=_in_child)


def register(method: MethodType) -> None:
    """Call ``method()`` in every child for as long as its object lives."""
    install()
    owner = weakref.ref(method.__self__, _forget)
    _hooks[id(owner)] = (owner, method.__func__)


def _forget(owner: weakref.ref[Any], hooks: dict[int, _Hook] = _hooks) -> None:
    # The dict as a default: at interpreter exit the module's globals may be gone.
    hooks.pop(id(owner), None)


def _in_child() -> None:
    # gunicorn and the like patch in the child what the parent used unpatched; the child has no
    # task of ours, so that is allowed.
    world.forget()
    for ref, function in list(_hooks.values()):
        owner = ref()
        if owner is None:
            continue
        try:
            function(owner)
        except Exception:
            logger.exception("%r of %r failed in the child of a fork", function, owner)

"""Hooks that run in the child after os.fork().

Knows weak references to bound methods and the order to call them; knows nothing of sockets.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from types import MethodType
from weakref import WeakMethod

from gnsqsync.runtime import world

__all__ = ["install", "register"]

logger = logging.getLogger("gnsqsync.runtime")

# Single dict operations are atomic, so no lock is needed: one would be held at some fork.
_hooks: dict[int, WeakMethod[Callable[[], object]]] = {}
_once: dict[str, object] = {}


def install() -> None:
    """Register with the interpreter, once per process; a child inherits the registration."""
    token = object()
    if _once.setdefault("installed", token) is token:
        os.register_at_fork(after_in_child=_in_child)


def register(method: MethodType) -> None:
    """Call ``method()`` in every child for as long as its object lives."""
    install()
    ref: WeakMethod[Callable[[], object]] = WeakMethod(method, _forget)
    _hooks[id(ref)] = ref


def _forget(ref: object, hooks: dict[int, WeakMethod[Callable[[], object]]] = _hooks) -> None:
    # The dict as a default: at interpreter exit the module's globals may be gone.
    hooks.pop(id(ref), None)


def _in_child() -> None:
    # gunicorn and the like patch in the child what the parent used unpatched; the child has no
    # task of ours, so that is allowed.
    world.forget()
    for ref in list(_hooks.values()):
        method = ref()
        if method is None:
            continue
        try:
            method()
        except Exception:
            logger.exception("%r failed in the child after a fork", method)

"""Closing of what is still open at the end of the interpreter.

Knows bound methods, which it holds weakly. Must not know Readers or Writers.

Readers and Writers register a method when they start, and take it back when they are closed.

Surprise: all threads of the package are daemons for this reason. The interpreter waits for other
threads before it runs these hooks.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable
from weakref import WeakMethod

__all__ = ["at_exit", "not_at_exit"]

log: logging.Logger = logging.getLogger("gnsqsync")

# Methods to call, in order; the values mean nothing. References to dead objects are never equal.
_open: dict[WeakMethod[Callable[[], object]], None] = {}
# Says which thread has installed the hook of atexit.
_once: dict[str, object] = {}


def at_exit(method: Callable[[], object]) -> None:
    """Call the bound ``method`` when the interpreter ends, if its object lives then.

    Our threads are daemons for this reason: the interpreter waits for other threads before it runs
    atexit hooks, so a hook that ends such threads would never run.
    """
    token = object()
    if _once.setdefault("installed", token) is token:
        atexit.register(_close_all)
    # Dead references stay until here, because an object without a close does not remove its own.
    for known in list(_open):
        if known() is None:
            _open.pop(known, None)
    _open[WeakMethod(method)] = None


def not_at_exit(method: Callable[[], object]) -> None:
    """Forget a method whose object was closed in time."""
    _open.pop(WeakMethod(method), None)


def _close_all() -> None:
    for reference in list(_open):
        method = reference()
        if method is None:
            continue
        try:
            method()
        except Exception:
            log.exception("%r failed at the end of the interpreter", method)

"""What is still open when the interpreter ends is closed then. Holds objects weakly only."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable
from weakref import WeakMethod

__all__ = ["at_exit", "not_at_exit"]

log: logging.Logger = logging.getLogger("gnsqsync")

# A set that keeps its order. Those of objects that are gone are equal to themselves only.
_open: dict[WeakMethod[Callable[[], object]], None] = {}
_once: dict[str, object] = {}


def at_exit(method: Callable[[], object]) -> None:
    """Call the bound ``method`` when the interpreter ends, if its object lives then.

    Our threads are daemons. The interpreter waits for other threads before it runs any atexit hook,
    so a hook that ends them would never run.
    """
    token = object()
    if _once.setdefault("installed", token) is token:
        atexit.register(_close_all)
    # An object that was forgotten without a close has no other end.
    for known in list(_open):
        if known() is None:
            _open.pop(known, None)
    _open[WeakMethod(method)] = None


def not_at_exit(method: Callable[[], object]) -> None:
    """It was closed in time."""
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

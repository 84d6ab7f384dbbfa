"""What is still open when the interpreter ends is closed then. Holds objects weakly only."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable
from weakref import WeakMethod

__all__ = ["at_exit", "not_at_exit"]

log = logging.getLogger("gnsqsync")

_open: dict[int, WeakMethod[Callable[[], object]]] = {}
_once: dict[str, object] = {}


def at_exit(method: Callable[[], object]) -> None:
    """Call the bound ``method`` when the interpreter ends, if its object lives then.

    Our threads are daemons: the interpreter would wait for others before it runs any atexit
    hook, and a hook that ends them would never come.
    """
    token = object()
    if _once.setdefault("installed", token) is token:
        atexit.register(_close_all)
    reference = WeakMethod(method)
    _open[id(method.__self__)] = reference  # type: ignore[attr-defined]


def not_at_exit(method: Callable[[], object]) -> None:
    """It was closed in time."""
    _open.pop(id(method.__self__), None)  # type: ignore[attr-defined]


def _close_all() -> None:
    for reference in list(_open.values()):
        method = reference()
        if method is None:
            continue
        try:
            method()
        except Exception:
            log.exception("%r failed at the end of the interpreter", method)

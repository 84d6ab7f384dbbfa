"""SQLAlchemy's engines in the child of a fork, which must not use its parent's connections.

Knows the methods of an engine. Imports no SQLAlchemy.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any
from weakref import WeakSet

__all__ = ["not_shared"]

# Engines whose connections no child may use.
_engines: WeakSet[Any] = WeakSet()
# Pools of the parent, which are kept in the child. A garbage-collected pool would end its sessions
# over connections that the parent still uses.
_pools_of_parent: list[Any] = []
_once: dict[str, object] = {}


def not_shared(engines: Iterable[Any]) -> None:
    """Have each child of a fork begin with connections of its own for these engines."""
    token = object()
    if _once.setdefault("installed", token) is token:
        os.register_at_fork(after_in_child=_in_child)
    for engine in engines:
        _engines.add(engine)


def _in_child() -> None:
    for engine in list(_engines):
        # A database in memory is copied by the fork, so nothing is shared.
        if engine.dialect.name == "sqlite" and engine.url.database in (None, "", ":memory:"):
            continue
        _pools_of_parent.append(engine.pool)
        engine.dispose(close=False)

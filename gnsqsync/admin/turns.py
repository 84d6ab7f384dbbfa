"""Greenlets of nsqadmin: whether there are any, and pauses for others in long loops.

Knows no loop. With threads the interpreter switches by itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["give_turn", "in_turns", "on_greenlets"]

_T = TypeVar("_T")


def on_greenlets() -> bool:
    """Return True if gevent has patched ``threading``, so that threads are greenlets."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def give_turn() -> None:
    """Let other greenlets of this process run, if they can."""
    time.sleep(0)


def in_turns(items: Iterable[_T], every: int = 100) -> Iterator[_T]:
    """Yield ``items``. Let other greenlets run before each item number divisible by ``every``."""
    for number, item in enumerate(items, 1):
        if number % every == 0:
            give_turn()
        yield item

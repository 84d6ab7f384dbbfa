"""Detection of an asyncio event loop on the calling thread, which a blocking call would stop.

Does not import asyncio, so that a process without it pays nothing.

A Writer keeps the function of ``running_loop_finder`` and calls it at each publish.

Surprise: a Writer asks for that function once, at its first publish. A program that imports asyncio
only later is not warned.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

__all__ = ["running_loop_finder", "warn_that_start_blocks"]


def running_loop_finder() -> Callable[[], object] | None:
    """Return a cheap function that returns the event loop of the calling thread, or None.

    Returns None in place of the function if the process has not imported asyncio.
    """
    find: Callable[[], object] | None
    find = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    return find


def warn_that_start_blocks() -> None:
    """Warn the caller of a blocking ``start()`` if an event loop runs on this thread."""
    find = running_loop_finder()
    if find is not None and find() is not None:
        warnings.warn(
            "start() blocks the event loop until stop(); in async code: start(block=False), and at"
            " the end stop() and await asyncio.to_thread(reader.join)",
            RuntimeWarning,
            stacklevel=3,
        )

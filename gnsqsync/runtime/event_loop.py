"""Whether an asyncio event loop runs on the calling thread, which a blocking call would stop.

Imports no asyncio: a process without it pays nothing.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

__all__ = ["START_BLOCKS", "running_loop_finder", "warn_in_event_loop"]

START_BLOCKS = (
    "start() blocks the event loop until stop(); in async code: start(block=False), and at the end"
    " stop() and await asyncio.to_thread(reader.join)"
)


def running_loop_finder() -> Callable[[], object] | None:
    """What tells the event loop that runs on the calling thread, or None; it costs little.

    None in place of it: the process has not imported asyncio.
    """
    find: Callable[[], object] | None
    find = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    return find


def warn_in_event_loop(text: str, stacklevel: int) -> bool:
    """Give ``text`` as a RuntimeWarning where a loop runs on this thread; whether it does.

    ``stacklevel``: 1 is the caller of this function.
    """
    find = running_loop_finder()
    if find is None or find() is None:
        return False
    warnings.warn(text, RuntimeWarning, stacklevel=stacklevel + 1)
    return True

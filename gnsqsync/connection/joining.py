"""The end of closed connections: their reading threads joined, what nsqd leaves open cut.

Knows tasks and connections; knows nothing of why they were closed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gnsqsync.connection.connection import Connection
from gnsqsync.runtime import Runtime, Task

__all__ = ["join_or_cut"]

# How long nsqd has to close its side after our EOF, and a reading thread then to end.
_EOF_SECONDS = 1.0
_JOIN_SECONDS = 5.0


def join_or_cut(
    tasks: Iterable[Task], connections: Callable[[], list[Connection]], runtime: Runtime
) -> None:
    """Wait for reading threads whose connections were closed; cut what nsqd does not end.

    ``connections`` tells which are left. Called by the one that started the threads.
    """
    waiting = [task for task in tasks if not task.is_current]
    deadline = runtime.now() + _EOF_SECONDS
    for task in waiting:
        task.join(max(0.0, deadline - runtime.now()))
    for connection in connections():
        connection.cut()
    deadline = runtime.now() + _JOIN_SECONDS
    for task in waiting:
        task.join(max(0.0, deadline - runtime.now()))

"""Waiting for the reading threads of closed connections, and cutting those that nsqd keeps open.

Knows tasks and connections. Must not know why the connections were closed.

All threads together have a second to see nsqd's EOF. Connections that are left are then cut, and
their threads have five more seconds.

Surprise: a close waits for nsqd. nsqd reads what was sent before our EOF and then closes its side,
so a cut at once might lose commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gnsqsync.connection.link import Link
from gnsqsync.runtime import Runtime, Task

__all__ = ["join_or_cut"]

# Seconds for nsqd to close its side after our EOF.
_EOF_SECONDS = 1.0
# Seconds for a reading thread to end after its connection was cut.
_JOIN_SECONDS = 5.0


def join_or_cut(
    tasks: Iterable[Task], connections: Callable[[], Sequence[Link]], runtime: Runtime
) -> None:
    """Join the reading threads of closed connections. Cut what nsqd does not end in time.

    ``connections`` returns the connections that are left. Called by the thread that started the
    tasks.
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

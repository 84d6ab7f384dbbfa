"""Whether threads that read from nsqds or ask nsqlookupds hang, of a Writer as of a Reader.

Takes no lock: a thread that never gives one back is what it looks for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gnsqsync.connection.connection import Connection
from gnsqsync.discovery.polling import Discovery

__all__ = ["LATE_SECONDS", "stuck_threads"]

# How long after its time a thread may come round: hooks of observers and a machine without free
# processors delay it, but not for so long.
LATE_SECONDS = 60.0
# For a question to an nsqlookupd: that ends in bounded time too, but the resolver of the system,
# asked for its name, and a lookupd_session have time-outs of their own.
_QUESTION_SECONDS = 300.0


def stuck_threads(
    name: str, connections: Iterable[Connection], discovery: Discovery[Any]
) -> list[str]:
    """A sentence for each; ``name`` says whose they are.

    A thread that reads from an nsqd that is away is not among them: it gives the connection up
    after two silent heartbeats.
    """
    found = []
    for connection in connections:
        seconds = connection.not_read(LATE_SECONDS)
        if seconds is not None:
            found.append(
                f"{name}: the thread that reads from {connection.nsqd_address} is stuck since"
                f" {seconds:.0f} s"
            )
    for url, seconds in discovery.not_asked(_QUESTION_SECONDS):
        found.append(f"{name}: the thread that asks {url} is stuck since {seconds:.0f} s")
    return found

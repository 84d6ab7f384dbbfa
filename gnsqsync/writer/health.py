"""Search for hung threads that read from nsqds or ask nsqlookupds, for a Writer or a Reader.

Takes no lock, because it looks for a thread that never gives a lock back.

Each thread has a time by which it must come round, and a sentence is returned for each that is
late.

Surprise: a thread that reads from an nsqd that is away is not late. It gives the connection up
after two silent heartbeats.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gnsqsync.connection.link import Link
from gnsqsync.discovery.polling import Discovery

__all__ = ["LATE_SECONDS", "stuck_threads"]

# Seconds after its due time at which a thread counts as hung. Observers' hooks and a machine
# without free processors delay it, but for less than that.
LATE_SECONDS = 60.0
# The same for a question to an nsqlookupd. The question has a time limit, but the resolver of the
# system and a user's lookupd_session have longer ones of their own.
_QUESTION_SECONDS = 300.0


def stuck_threads(name: str, connections: Iterable[Link], discovery: Discovery[Any]) -> list[str]:
    """Return a sentence for each hung thread; ``name`` says whose threads these are.

    A thread that reads from an nsqd that is away does not hang: it gives the connection up after
    two silent heartbeats.
    """
    found = []
    for connection in connections:
        seconds = connection.seconds_unread(LATE_SECONDS)
        if seconds is not None:
            found.append(
                f"{name}: the thread that reads from {connection.nsqd_address} has been stuck for"
                f" {seconds:.0f} s"
            )
    for url, seconds in discovery.not_asked(_QUESTION_SECONDS):
        found.append(f"{name}: the thread that asks {url} has been stuck for {seconds:.0f} s")
    return found

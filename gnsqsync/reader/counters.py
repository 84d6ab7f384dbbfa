"""Counters of a Reader's connections. Reads connections, changes none.

``counts_of`` returns the counts that outlive a connection as parts of a sum. ``stats_of`` adds
those of a live connection.

Surprise: no lock is taken, so two counts may be of different moments.
"""

from __future__ import annotations

from gnsqsync.connection.subscribed import SubscribedConnection
from gnsqsync.stats import ConnectionStats

__all__ = ["counts_of", "stats_of"]


def counts_of(connection: SubscribedConnection) -> dict[str, int]:
    """Return the counts that can be summed over connections."""
    return {
        "received": connection.received,
        "finished": connection.send_queue.finished,
        "requeued": connection.send_queue.requeued,
        "answers_failed": connection.answers_failed,
    }


def stats_of(connection: SubscribedConnection, now: float) -> ConnectionStats:
    """Return the statistics of one connection at the moment ``now`` (seconds)."""
    return ConnectionStats(
        address=connection.nsqd_address,
        rdy=connection.send_queue.rdy_sent,
        in_flight=len(connection.in_flight),
        connected_seconds=now - connection.connected_at,
        **counts_of(connection),
    )

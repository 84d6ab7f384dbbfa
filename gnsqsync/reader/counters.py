"""The counters of a Reader's connections, summed and shown. Reads connections, changes none."""

from __future__ import annotations

from gnsqsync.connection.connection import Connection
from gnsqsync.stats import ConnectionStats

__all__ = ["Counters", "stats_of"]


class Counters:
    """Counters summed over connections, also over those that are gone."""

    def __init__(self) -> None:
        self.received: int = 0
        self.finished: int = 0
        self.requeued: int = 0
        self.answers_failed: int = 0

    def add(self, connection: Connection) -> None:
        self.received += connection.received
        self.finished += connection.send_queue.finished
        self.requeued += connection.send_queue.requeued
        self.answers_failed += connection.answers_failed

    def copy(self) -> Counters:
        other = Counters()
        other.__dict__.update(self.__dict__)
        return other


def stats_of(connection: Connection, now: float) -> ConnectionStats:
    """One connection at the moment ``now`` (seconds)."""
    return ConnectionStats(
        address=connection.nsqd_address,
        rdy=connection.send_queue.rdy_sent,
        in_flight=len(connection.in_flight),
        received=connection.received,
        finished=connection.send_queue.finished,
        requeued=connection.send_queue.requeued,
        answers_failed=connection.answers_failed,
        connected_seconds=now - connection.connected_at,
    )

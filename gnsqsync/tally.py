"""The counters of a Reader's connections, summed and shown. Reads connections, changes none."""

from __future__ import annotations

from gnsqsync.net.connection import Connection
from gnsqsync.stats import ConnectionStats

__all__ = ["Totals", "stats_of"]


class Totals:
    """Counters summed over connections, also over those that are gone."""

    def __init__(self) -> None:
        self.received = self.finished = self.requeued = self.answers_failed = 0

    def add(self, connection: Connection) -> None:
        self.received += connection.received
        self.finished += connection.outbox.finished
        self.requeued += connection.outbox.requeued
        self.answers_failed += connection.answers_failed

    def copy(self) -> Totals:
        other = Totals()
        other.__dict__.update(self.__dict__)
        return other


def stats_of(connection: Connection, now: float) -> ConnectionStats:
    """One connection at the moment ``now`` (seconds)."""
    return ConnectionStats(
        address=connection.nsqd_address,
        rdy=connection.outbox.rdy_sent,
        in_flight=len(connection.in_flight),
        received=connection.received,
        finished=connection.outbox.finished,
        requeued=connection.outbox.requeued,
        answers_failed=connection.answers_failed,
        connected_seconds=now - connection.connected_at,
    )

"""What Reader.stats() and Writer.stats() return: plain values of one moment."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ConnectionStats", "ReaderStats", "StopResult", "WriterConnectionStats", "WriterStats"]


@dataclass(frozen=True, slots=True)
class ConnectionStats:
    """One connection of a Reader. Counters are of this connection, not of the nsqd."""

    address: str
    rdy: int
    in_flight: int
    received: int
    finished: int
    requeued: int
    answers_failed: int
    connected_seconds: float


@dataclass(frozen=True, slots=True)
class ReaderStats:
    """A Reader at one moment; counters run since ``start()``, over lost connections too."""

    topic: str
    channel: str
    connections: tuple[ConnectionStats, ...]
    received: int
    finished: int
    requeued: int
    gave_up: int
    answers_failed: int
    in_flight: int
    max_in_flight: int
    is_paused: bool
    is_in_backoff: bool
    backoff_level: int


@dataclass(frozen=True, slots=True)
class StopResult:
    """How a Reader ended: what was left when it closed its connections.

    ``clean``: every message that had been delivered was answered, and every thread ended.
    ``unanswered``: messages in flight that nsqd will deliver again after their timeout.
    ``workers_running``: handlers that did not return in time; their threads are abandoned.
    """

    unanswered: int
    workers_running: int

    @property
    def clean(self) -> bool:
        return not self.unanswered and not self.workers_running


@dataclass(frozen=True, slots=True)
class WriterConnectionStats:
    """One connection of a Writer."""

    address: str
    unanswered: int
    connected_seconds: float


@dataclass(frozen=True, slots=True)
class WriterStats:
    """A Writer at one moment; counters run since the first publish of this process.

    ``published`` counts messages that nsqd confirmed, also after their publisher gave up waiting;
    the others count calls (an MPUB of publish_many is one) by what they ended with.
    ``outage_seconds``: for how long no nsqd could take a publish, 0 when there is no outage.
    """

    connections: tuple[WriterConnectionStats, ...]
    published: int
    refused: int
    not_sent: int
    outcome_unknown: int
    outage_seconds: float = 0.0

"""What Reader.stats() and Writer.stats() return: plain values of one moment."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "TIME_BOUNDS",
    "ConnectionStats",
    "Histogram",
    "ReaderStats",
    "StopResult",
    "WriterConnectionStats",
    "WriterStats",
]

# Seconds, from a millisecond to a day.
TIME_BOUNDS = (
    *(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0),
    *(100.0, 300.0, 1000.0, 3600.0, 10800.0, 86400.0),
)


def counted(count: int, noun: str) -> str:
    """``1 message``, ``2,000 messages``; ``noun`` is the singular of a regular word."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many messages took how long.

    Attributes:
        bounds: Seconds, rising: the upper bound of each count but the last.
        counts: How many were within each bound and above the one before; last those above all.
        total: The seconds of all of them together.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class ConnectionStats:
    """One connection of a Reader. Counters are of this connection, not of the nsqd.

    Attributes:
        address: ``host:port`` of the nsqd.
        rdy: The last RDY that was sent.
        in_flight: Messages without an answer now.
        received: Messages that arrived.
        finished: FINs that were sent.
        requeued: REQs that were sent.
        answers_failed: FIN, REQ and TOUCH that nsqd refused.
        connected_seconds: For how long it has been up.
    """

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
    """A Reader at one moment; counters run since ``start()``, over lost connections too.

    Attributes:
        topic: The topic.
        channel: The channel.
        connections: One entry for each connection.
        received: Messages that arrived.
        finished: FINs that were sent.
        requeued: REQs that were sent.
        gave_up: Messages finished because they were given up; not those that wait in nsqd.
        discarded: Messages finished because their handler raised ``Discard``.
        answers_failed: FIN, REQ and TOUCH that nsqd refused, mostly because they came too late.
        in_flight: Messages without an answer now.
        max_in_flight: The limit now.
        is_paused: Whether it is paused by ``pause()``.
        is_in_backoff: Whether failures have slowed it down.
        backoff_level: 0 when not in backoff.
        age_at_begin: From the publish of a message until its handler began, by the clocks of nsqd
            and this machine. This and the next two are empty in the pull form. What takes less than
            a millisecond is counted by a few messages together.
        age_at_end: The same until its handler had ended.
        handler_seconds: How long handlers took.
    """

    topic: str
    channel: str
    connections: tuple[ConnectionStats, ...]
    received: int
    finished: int
    requeued: int
    gave_up: int
    discarded: int
    answers_failed: int
    in_flight: int
    max_in_flight: int
    is_paused: bool
    is_in_backoff: bool
    backoff_level: int
    age_at_begin: Histogram
    age_at_end: Histogram
    handler_seconds: Histogram


@dataclass(frozen=True, slots=True)
class StopResult:
    """How a Reader ended: what was left when it closed its connections.

    Attributes:
        unanswered: Messages in flight that nsqd will deliver again after their timeout.
        workers_running: Handlers that did not return in time; their threads are abandoned.
    """

    unanswered: int
    workers_running: int

    @property
    def clean(self) -> bool:
        """Whether every message that had been delivered was answered, and every thread ended."""
        return not self.unanswered and not self.workers_running


@dataclass(frozen=True, slots=True)
class WriterConnectionStats:
    """One connection of a Writer.

    Attributes:
        address: ``host:port`` of the nsqd.
        unanswered: Publishes without an answer now.
        connected_seconds: For how long it has been up.
    """

    address: str
    unanswered: int
    connected_seconds: float


@dataclass(frozen=True, slots=True)
class WriterStats:
    """A Writer at one moment; counters run since the first publish of this process.

    ``refused``, ``not_sent`` and ``outcome_unknown`` count calls, by what they ended with. An MPUB
    of ``publish_many()`` is one.

    Attributes:
        connections: One entry for each connection.
        published: Messages that nsqd has said OK to, also after their publisher gave up waiting.
        refused: Publishes that ended as ``Refused``.
        not_sent: Publishes that ended as ``NotSent``.
        outcome_unknown: Publishes that ended as ``OutcomeUnknown``.
        outage_seconds: For how long no nsqd could take a publish; 0 when there is no outage.
    """

    connections: tuple[WriterConnectionStats, ...]
    published: int
    refused: int
    not_sent: int
    outcome_unknown: int
    outage_seconds: float = 0.0

"""Results of Reader.stats() and Writer.stats(): plain values of one moment."""

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

# Upper bounds of histograms in seconds, from a millisecond to a day.
TIME_BOUNDS = (
    *(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0),
    *(100.0, 300.0, 1000.0, 3600.0, 10800.0, 86400.0),
)


def counted(count: int, noun: str) -> str:
    """Return ``1 message``, ``2,000 messages``; ``noun`` is the singular of a regular word."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of messages by the time that they took.

    Attributes:
        bounds: Upper bound in seconds of each count but the last, rising. counts: Number of
        messages within each bound and above the one before; the last is above all. total: Sum of
        the seconds of all messages.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """Number of messages."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class ConnectionStats:
    """A connection of a Reader. Counters are of this connection, not of the nsqd.

    Attributes:
        address: ``host:port`` of the nsqd.
        rdy: The last RDY that was sent.
        in_flight: Messages without an answer now.
        received: Messages that arrived.
        finished: FINs that were sent.
        requeued: REQs that were sent.
        answers_failed: FIN, REQ and TOUCH that nsqd refused.
        connected_seconds: Seconds since it was connected.
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
    """A Reader at one moment. Counters run since ``start()``, over lost connections, too.

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
        is_paused: True while it is paused by ``pause()``.
        is_in_backoff: True while failures slow it down.
        backoff_level: Level of the backoff; 0 without one.
        age_at_begin: From the publish of a message until its handler began, by the clocks of nsqd
            and this machine. This and the next two are empty in the pull form. Messages of less
            than a millisecond are counted a few at a time, by their mean.
        age_at_end: The same until its handler had ended.
        handler_seconds: Running times of handlers.
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
    """State in which a Reader ended: the work left when it closed its connections.

    Attributes:
        unanswered: Messages in flight that nsqd will deliver again after their timeout.
        workers_running: Handlers that did not return in time; their threads are abandoned.
    """

    unanswered: int
    workers_running: int

    @property
    def clean(self) -> bool:
        """True if every delivered message was answered, and every thread ended."""
        return not self.unanswered and not self.workers_running


@dataclass(frozen=True, slots=True)
class WriterConnectionStats:
    """A connection of a Writer.

    Attributes:
        address: ``host:port`` of the nsqd.
        unanswered: Publishes without an answer now.
        connected_seconds: Seconds since it was connected.
    """

    address: str
    unanswered: int
    connected_seconds: float


@dataclass(frozen=True, slots=True)
class WriterStats:
    """A Writer at one moment. Counters run since the first publish of this process.

    ``refused``, ``not_sent`` and ``outcome_unknown`` count calls by their outcome. An MPUB of
    ``publish_many()`` counts as one.

    Attributes:
        connections: One entry for each connection.
        published: Messages that nsqd has confirmed, even after their publisher gave up waiting.
        refused: Publishes that ended as ``Refused``.
        not_sent: Publishes that ended as ``NotSent``.
        outcome_unknown: Publishes that ended as ``OutcomeUnknown``.
        outage_seconds: Seconds for which no nsqd could take a publish; 0 without an outage.
    """

    connections: tuple[WriterConnectionStats, ...]
    published: int
    refused: int
    not_sent: int
    outcome_unknown: int
    outage_seconds: float = 0.0

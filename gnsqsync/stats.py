"""Results of stats() and health() of Readers and Writers: plain values of one moment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = [
    "TIME_BOUNDS",
    "ConnectionStats",
    "Health",
    "Histogram",
    "ReaderStats",
    "SlowHandler",
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
        bounds: Upper bound in seconds of each count but the last, rising.
        counts: Number of messages within each bound and above the one before; the last is above
            all.
        total: Sum of the seconds of all messages.
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
        rdy: Number of messages in the last RDY that was sent.
        in_flight: Messages without an answer now.
        received: Messages that arrived.
        finished: FINs that were sent.
        requeued: REQs that were sent.
        answers_failed: Number of FIN, REQ and TOUCH that nsqd refused.
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
        topic: Name of the topic.
        channel: Name of the channel.
        connections: One entry for each connection.
        received: Messages that arrived.
        finished: FINs that were sent.
        requeued: REQs that were sent.
        gave_up: Messages finished because they were given up; not those that wait in nsqd.
        discarded: Messages finished because their handler raised ``Discard``.
        answers_failed: Number of FIN, REQ and TOUCH that nsqd refused, mostly because they came
            too late.
        in_flight: Messages without an answer now.
        max_in_flight: Upper bound of unanswered messages now.
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
        workers_running: Number of handlers that did not return in time; their threads are
            abandoned.
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


@dataclass(frozen=True, slots=True)
class SlowHandler:
    """A handler that runs longer than the limit.

    Attributes:
        reader: ``topic/channel``.
        handler: Name of the handler.
        seconds: Seconds since it began.
        limit: Seconds that it may run.
        message: Id of the message, its attempts, and the nsqd; empty if no message is known.
        stack: Lines of code where the handler is; empty if it has ended meanwhile.
    """

    reader: str
    handler: str
    seconds: float
    limit: float
    message: str
    stack: str

    def __str__(self) -> str:
        return (
            f"{self.reader}: a handler has run for {self.seconds:.0f} s; the limit is"
            f" {self.limit:g} s"
        )


@dataclass(frozen=True, slots=True)
class Health:
    """Health of a Reader, a group or a Writer.

    An nsqd or nsqlookupd that is away makes a Reader not ready, and hangs nothing.

    Attributes:
        threads: A sentence for each thread of the library that hangs or has died.
        handlers: Handlers that run longer than the limit that was asked for.
        not_ready: A sentence for each reason why no message can come, or none can be published.
    """

    threads: tuple[str, ...] = ()
    handlers: tuple[SlowHandler, ...] = ()
    not_ready: tuple[str, ...] = ()

    @property
    def stuck(self) -> list[str]:
        """A sentence for each thread and handler that hangs. A restart of the process helps."""
        return [*self.threads, *map(str, self.handlers)]

    @property
    def is_alive(self) -> bool:
        """True if no thread and no handler hangs."""
        return not self.threads and not self.handlers

    @property
    def is_ready(self) -> bool:
        """True if messages can come, or be published."""
        return not self.not_ready

    @classmethod
    def of(cls, several: Iterable[Health]) -> Health:
        """Return the health of several objects together.

        Args:
            several: The health of each.
        """
        parts = list(several)
        return cls(
            threads=tuple(text for part in parts for text in part.threads),
            handlers=tuple(one for part in parts for one in part.handlers),
            not_ready=tuple(text for part in parts for text in part.not_ready),
        )

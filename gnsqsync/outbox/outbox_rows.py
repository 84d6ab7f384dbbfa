"""The rows of an outbox: messages, their encoding, their counts, and broken rows.

Knows a relay's view of a table (``Store``). Knows no database and no nsqd.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Protocol

from gnsqsync.runtime.troubles import AWAY, more, troubles
from gnsqsync.writer.writer import Writer

__all__ = ["BadRows", "Lag", "Row", "Store", "age", "ahead", "encoded"]

log: logging.Logger = logging.getLogger("gnsqsync.outbox")


@dataclass(frozen=True)
class Lag:
    """Counts of rows in the outbox: due, failed for good, and scheduled for later.

    Attributes:
        waiting: Number of due rows.
        failed: Number of rows that failed for good.
        oldest_seconds: Age of the oldest due row in seconds; 0.0 without one.
        scheduled: Number of rows whose time is in the future.
        problems: A sentence for each message that does not come in time, and for clocks that
            differ.
    """

    waiting: int
    failed: int
    oldest_seconds: float
    scheduled: int = 0
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return a line for people."""
        text = (
            f"{self.waiting} waiting, the oldest for {self.oldest_seconds:.1f} s;"
            f" {self.failed} failed"
        )
        return f"{text}; {self.scheduled} scheduled" if self.scheduled else text


@dataclass(frozen=True, slots=True)
class Row:
    """A message of an outbox. ``alias``: name of the Writer that publishes it."""

    id: int
    alias: str
    topic: str
    body: bytes
    created_at: datetime
    # Names and values; None if the row was written for a Writer without headers.
    headers: Mapping[str, str] | None
    key: str | None
    attempts: int = 0
    # True after a publish whose outcome is unknown: nsqd may have the message.
    in_doubt: bool = False

    def __str__(self) -> str:
        return f"{self.topic} #{self.id}"


class Store(Protocol):
    """The table of an outbox, and the Writers of its messages. One thread uses it."""

    # Name of the outbox in log lines.
    name: str
    # Exceptions that the store raises while the database is away.
    errors: ClassVar[tuple[type[Exception], ...]]

    def add_due(self, now: datetime) -> int:
        """Write the rows of periodic messages that are due. Return their number."""

    def heal(self, now: datetime) -> None:
        """Correct the times that a wrong clock has written."""

    def batch(
        self, limit: int, now: datetime, without: Collection[str]
    ) -> AbstractContextManager[Sequence[Row]]:
        """Return the due rows, oldest first, except those of the aliases ``without``.

        If the database can lock rows, they belong to this relay until the context ends.
        """

    def delete(self, rows: Sequence[Row]) -> None: ...

    def note(self, rows: Sequence[Row], error: str) -> None:
        """Note that nsqd could not be reached."""

    def refused(self, row: Row, error: str, retry_at: datetime | None) -> None:
        """Note a failed attempt of the row. Without ``retry_at`` the row has failed for good."""

    def lag(self) -> Lag: ...

    def broken(self) -> Sequence[str]:
        """Return a sentence for each periodic message whose times cannot be computed."""

    def writer(self, alias: str) -> Writer: ...

    def rest(self) -> None:
        """Release connections before a pause, or after a failure of the database."""


def encoded(row: Row, writer: Writer) -> bytes:
    """Encode a row: in an envelope with its key if the Writer or the row has headers.

    A row without a key, from a former version, gets one from its id and time.

    Raises:
        ConfigError: The body is empty, or a header is not allowed.
    """
    key = row.key or f"outbox-{row.id}-{row.created_at.timestamp():.6f}"
    return writer.encoder.seal(row.body, headers=row.headers, key=key)


def age(since: datetime | None, now: datetime) -> float:
    """Return the seconds from ``since`` to ``now``, 0.0 or more."""
    return 0.0 if since is None else max(0.0, (now - since).total_seconds())


def ahead(written: datetime | None, now: datetime) -> list[str]:
    """Return a sentence if a row was written in the future, by the clock of another machine."""
    seconds = 0.0 if written is None else (written - now).total_seconds()
    if seconds < 1:
        return []
    return [
        f"a message was written {seconds:.0f} s ahead of the clock of this machine, so ages are too"
        " small; set the clocks by NTP"
    ]


class BadRows:
    """Broken rows of an outbox. Each is logged as an ERROR, at growing intervals.

    Args:
        outbox: The name of the outbox, for log lines.
        errors: The errors that a broken row causes.
    """

    def __init__(self, outbox: str, errors: tuple[type[Exception], ...]) -> None:
        self._outbox = outbox
        self._errors = errors
        # Errors of broken rows at the last look, by the row's name.
        self._found: dict[str, Exception] = {}

    def sentences(self) -> list[str]:
        """Return a sentence for each row that was broken at the last look."""
        found = sorted(self._found.items())
        return [f"{name} cannot be worked out: {error}" for name, error in found]

    @contextmanager
    def guard(self, name: str) -> Iterator[None]:
        """Log an error that this row causes, and go on after the ``with``."""
        place = ("outbox", self._outbox, "row", name)
        try:
            yield
        except self._errors as error:
            self._found[name] = error
            tell = troubles().began(place, AWAY)
            if tell is not None:
                log.error(
                    "outbox of %s: %s cannot be worked out: %s; it does not come until that is"
                    " mended, and the other messages go on%s",
                    self._outbox,
                    name,
                    error,
                    more(tell),
                )
        else:
            self._found.pop(name, None)
            troubles().ended(place)

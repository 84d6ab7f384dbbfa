"""Log lines of a Writer, and hooks of its Observers, about connections and publishes.

Decides nothing. Called outside all locks, on the thread where the event happened.

Each method logs at most one line, and calls the hooks.

Surprise: the times in lines are upper bounds. A Writer dials only for a publish, so an nsqd may
have been back for long when a line says so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future

from gnsqsync.connection.publishing import PublishingConnection
from gnsqsync.errors import NSQError, PublishError
from gnsqsync.observer import Observer, each, tell
from gnsqsync.runtime.troubles import AWAY, duration, kind_of, more, troubles, used_by

__all__ = ["Events", "fields"]

log: logging.Logger = logging.getLogger("gnsqsync.writer")


def fields(connection: PublishingConnection) -> dict[str, str]:
    """Return the ``extra`` of a log line about a connection."""
    return {"nsqd": connection.nsqd_address}


class Events:
    """Events of one Writer, without a reference to it, so that a Writer can be forgotten."""

    def __init__(self, observer: Observer | Sequence[Observer] | None) -> None:
        # Observers that the user gave, and all observers, with those of ``watch``.
        self._given: tuple[Observer, ...] = tuple(each(observer))
        self.observers: tuple[Observer, ...] = self._given

    def copy(self) -> Events:
        """Return the events of a copied Writer, without the observers of ``watch``."""
        return Events(self._given)

    def watch(self, observer: Observer) -> None:
        """Call this observer, too, from now on."""
        self.observers = (*self.observers, observer)

    def _notify(self, hook: str, *args: object) -> None:
        """Call a hook of the observers. An error of an observer is logged and changes nothing."""
        tell(self.observers, hook, *args, log=log)

    # -- publishes -------------------------------------------------------------------------------

    def published(self, topic: str, messages: int, began: float) -> None:
        """Report a confirmed publish. ``began``: start of the call, by ``time.monotonic()``."""
        self._notify("published", topic, messages, time.monotonic() - began)

    def publish_failed(self, topic: str, messages: int, began: float, error: PublishError) -> None:
        self._notify("publish_failed", topic, messages, time.monotonic() - began, error)

    def await_outcome(self, future: Future[None], topic: str, began: float) -> None:
        """Report the outcome of a ``publish_async()`` when its Future ends."""
        if not self.observers:
            return

        def ended(future: Future[None]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            if error is None:
                self.published(topic, 1, began)
            elif isinstance(error, PublishError):
                self.publish_failed(topic, 1, began, error)

        future.add_done_callback(ended)

    # -- nsqlookupds -----------------------------------------------------------------------------

    def lookup_changed(self, url: str, error: Exception | None) -> None:
        """Report a change: ``error`` is why the nsqlookupd is of no use, None if it is again."""
        if error is None:
            self._notify("lookup_recovered", url)
        else:
            self._notify("lookup_failed", url, error)

    # -- connections -----------------------------------------------------------------------------

    def connected(self, connection: PublishingConnection) -> None:
        address = connection.nsqd_address
        over = troubles().ended(address)
        if over is not None:
            # A Writer dials only for a publish, so the nsqd may have been back for long.
            log.warning(
                "a Writer is connected to %s again, which was away for %s at most%s",
                address,
                duration(over.seconds),
                used_by(over, "consumers"),
                extra=fields(connection),
            )
        log.info("connected to %s", address, extra=fields(connection))
        self._notify("connected", address)

    def dial_failed(self, connection: PublishingConnection, error: NSQError) -> None:
        self._log_dial_failed(connection, error)
        self._notify("lost", connection.nsqd_address, error)

    def _log_dial_failed(self, connection: PublishingConnection, error: NSQError) -> None:
        if connection.end_was_asked:
            log.debug("%s", error, extra=fields(connection))
            return
        tell = troubles().began(connection.nsqd_address, kind_of(error, "a Writer"))
        if tell is not None:
            next_step = "it is dialled again"
            if not error.retriable:
                next_step = "trying again will not help before that is changed"
            log.log(
                logging.WARNING if error.retriable else logging.ERROR,
                "a Writer: %s; %s%s%s",
                error,
                next_step,
                used_by(tell, "consumers"),
                more(tell),
                extra=fields(connection),
            )

    def lost(self, connection: PublishingConnection, reason: Exception) -> None:
        self._log_lost(connection, reason)
        self._notify("lost", connection.nsqd_address, reason)

    def _log_lost(self, connection: PublishingConnection, reason: Exception) -> None:
        if connection.end_was_asked:
            log.debug("%s closed as asked", connection.nsqd_address, extra=fields(connection))
            return
        tell = troubles().began(connection.nsqd_address, AWAY)
        if tell is not None:
            log.warning(
                "a Writer: lost %s: %s; the next publish dials it%s%s",
                connection.nsqd_address,
                reason,
                used_by(tell, "consumers"),
                more(tell),
                extra=fields(connection),
            )

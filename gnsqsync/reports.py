"""What a Reader tells of its connections: log lines and the hooks of its Observer.

Decides nothing. Every method is called outside all locks, on the thread where it happened.
"""

from __future__ import annotations

import logging

from gnsqsync.errors import NSQError, ServerError
from gnsqsync.net.connection import Connection
from gnsqsync.observer import Observer

__all__ = ["Reports"]

log = logging.getLogger("gnsqsync.reader")


class Reports:
    """One place for the words, the levels and the ``extra=`` fields of a Reader's log lines."""

    def __init__(self, topic: str, channel: str, observer: Observer) -> None:
        self._name = f"{topic}/{channel}"
        self._fields = {"topic": topic, "channel": channel}
        self._observer = observer
        self._told_overdue = False

    def notify(self, hook: str, *args: object) -> None:
        """Call a hook of the observer; what it raises is logged and changes nothing."""
        try:
            getattr(self._observer, hook)(*args)
        except (Exception, SystemExit):
            # SystemExit too: it would end this thread of ours only, or on greenlets the process.
            log.exception("the observer's %s failed", hook)

    def connected(self, connection: Connection) -> None:
        address = connection.nsqd_address
        log.info("%s subscribed at %s", self._name, address, extra=self._fields_of(connection))
        self.notify("connected", address)

    def crowd(self, limit: int) -> None:
        """There are more nsqds than max_in_flight."""
        log.warning(
            "%s has more nsqds than max_in_flight, which is %d: they take turns, and messages"
            " wait; raise it",
            self._name,
            limit,
            extra=self._fields,
        )

    def dial_failed(
        self, connection: Connection, error: NSQError, pause: float | None, *, discovered: bool
    ) -> None:
        """``pause``: seconds until the next try, None when there is none."""
        hint = ""
        if discovered:
            hint = " (if the address is wrong, see nsqd's --broadcast-address, or address_map)"
        extra = self._fields_of(connection)
        if error.retriable:
            next_try = "no nsqlookupd lists it, so it is not tried again"
            if pause is not None:
                next_try = f"it is tried again in {pause:.1f} s"
            log.warning("%s%s; %s", error, hint, next_try, extra=extra)
        else:
            log.error(
                "%s%s; trying again will not help before that is changed", error, hint, extra=extra
            )
        self.notify("lost", connection.nsqd_address, error)

    def lost(self, connection: Connection, reason: Exception) -> None:
        address = connection.nsqd_address
        extra = self._fields_of(connection)
        if connection.closing:
            log.debug("%s closed as asked", address, extra=extra)
        else:
            log.warning("lost %s: %s", address, reason, extra=extra)
        self.notify("lost", address, reason)

    def silent(self, seconds: float, reason: str, asked_for: bool) -> None:
        """RDY has been 0 at every nsqd for long."""
        log.log(
            logging.INFO if asked_for else logging.WARNING,
            "%s has had RDY 0 everywhere for %.0f s: %s",
            self._name,
            seconds,
            reason,
            extra=self._fields,
        )

    def testing(self) -> None:
        log.info("%s tests the waters with RDY 1", self._name, extra=self._fields)

    def backoff(self, level: int, seconds: float) -> None:
        """Level 0: it is over."""
        if level or seconds:
            log.info(
                "%s backs off for %.1f s (level %d)",
                self._name,
                seconds,
                level,
                extra=self._fields,
            )
        else:
            log.info("%s is out of backoff", self._name, extra=self._fields)
        self.notify("backoff", level, seconds)

    def strategy(self, error: Exception | None) -> None:
        """``error``: what the user's backoff_strategy raised for the first time, if it did."""
        if error is not None:
            log.error(
                "backoff_strategy of %s failed, its pauses are those of 'exponential'; told once",
                self._name,
                exc_info=error,
                extra=self._fields,
            )

    def answer_failed(self, connection: Connection, message_id: str, error: ServerError) -> None:
        address = connection.nsqd_address
        extra = {**self._fields_of(connection), "message_id": message_id}
        log.warning("%s: %s", address, error, extra=extra)
        self.notify("answer_failed", address, message_id, error.code)

    def overdue(self, connection: Connection, count: int) -> None:
        """So many were taken from a Reader without a handler, and not answered in time."""
        log.log(
            logging.DEBUG if self._told_overdue else logging.WARNING,
            "%s: %d messages from %s were taken and not answered within their timeout; nsqd"
            " delivers them again. Answer each message that you take (told once)",
            self._name,
            count,
            connection.nsqd_address,
            extra=self._fields_of(connection),
        )
        self._told_overdue = True

    def anew(self, connection: Connection, why: str) -> None:
        """It is closed when nothing is in flight, and made anew."""
        log.info(
            "%s %s: connecting to it anew",
            connection.nsqd_address,
            why,
            extra=self._fields_of(connection),
        )

    def _fields_of(self, connection: Connection) -> dict[str, str]:
        return {**self._fields, "nsqd": connection.nsqd_address}

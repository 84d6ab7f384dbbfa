"""Publishes that several nsqds must store: sent side by side, and elsewhere if an nsqd fails.

Knows how many nsqds have said OK. The NsqdPool says which nsqds there are.

Each round sends to all missing nsqds and then waits for each, so that their times do not add up.

Surprise: more nsqds than wanted may store a message. An nsqd that did not answer in time may have
stored it, and another one is asked in its place.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from gnsqsync.addresses import Address
from gnsqsync.connection.publish_slot import PublishSlot
from gnsqsync.connection.publishing import PublishingConnection
from gnsqsync.errors import ClosedError, NotSent, PublishError, Refused, TooFewCopies
from gnsqsync.runtime.troubles import duration, more, troubles
from gnsqsync.stats import counted
from gnsqsync.writer.publisher import Publisher

__all__ = ["CopyingPublisher"]

log: logging.Logger = logging.getLogger("gnsqsync.writer")


@dataclass(slots=True)
class _Copies:
    """Progress of one command on its way to several nsqds."""

    # Addresses that the command was sent to: each nsqd gets it once.
    used: set[Address] = field(default_factory=set)
    # Addresses of the nsqds that have said OK.
    stored: list[str] = field(default_factory=list)
    # Reasons why other nsqds have not stored it.
    causes: list[BaseException] = field(default_factory=list)


class CopyingPublisher(Publisher):
    """A Publisher whose publishes succeed when ``wanted`` different nsqds have said OK.

    With fewer, but at least ``least``, a publish succeeds and a warning is logged. With fewer than
    ``least`` it fails, and the error names the nsqds that have stored the message.
    """

    def __init__(self, *arguments: Any, wanted: int, least: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._wanted = wanted
        self._least = least

    def publish(
        self,
        data: bytes,
        messages: int,
        timeout: float,
        started: float,
        deadline: float | None = None,
    ) -> None:
        """Publish as Publisher does, to ``wanted`` nsqds. Raises TooFewCopies, too."""
        if deadline is None:
            deadline = started + timeout
        copies = _Copies()
        goes_on = True
        while goes_on and len(copies.stored) < self._wanted:
            sent, goes_on = self._send(copies, data, messages, timeout, deadline)
            for connection, slot in sent:
                try:
                    if not slot.done:
                        self._wait_longer(connection, slot, started, deadline, timeout)
                    error = slot.error
                except PublishError as raised:
                    error = raised
                if error is None:
                    copies.stored.append(connection.nsqd_address)
                    if self._table.in_doubt:
                        self.pool.prove(connection)
                    continue
                copies.causes.append(error)
                if self._is_outdated(connection, error, started):
                    copies.used.discard(connection.address)
                    self.pool.pass_over(connection)
                    continue
                self._leave(connection, error)
                if isinstance(error, Refused) and not error.error.retriable:
                    # Any other nsqd would refuse it, too.
                    goes_on = False
            goes_on = goes_on and self._now() < deadline
        self._settle(copies.stored, copies.causes)

    def _send(
        self, copies: _Copies, data: bytes, messages: int, timeout: float, deadline: float
    ) -> tuple[list[tuple[PublishingConnection, PublishSlot]], bool]:
        """Send to as many nsqds as are missing. Return what was sent; True if there may be more."""
        pool = self.pool
        sent: list[tuple[PublishingConnection, PublishSlot]] = []
        while (missing := self._wanted - len(copies.stored) - len(sent)) > 0:
            try:
                connection = pool.pick(deadline, timeout, copies.causes, copies.used)
            except (NotSent, ClosedError) as error:
                if isinstance(error, ClosedError) and not (sent or copies.stored):
                    raise
                copies.causes.append(error)
                return sent, False
            copies.used.add(connection.address)
            slot = PublishSlot(data, None, None, messages)
            if missing > 1:
                # Sent before the next nsqd is looked for, because that one may have to be dialled.
                if not connection.publishes.submit(slot, max(0.0, deadline - self._now())):
                    pool.pass_over(connection)
                    continue
            else:
                connection.publishes.publish(slot, self._now(), deadline)
            sent.append((connection, slot))
        return sent, True

    def _leave(self, connection: PublishingConnection, error: PublishError) -> None:
        if isinstance(error, Refused) and error.error.retriable:
            self.pool.leave(connection)
        else:
            self.pool.pass_over(connection)

    def _settle(self, stored: Sequence[str], causes: list[BaseException]) -> None:
        """Return if enough nsqds have stored it, else raise the error that tells its fate."""
        trouble = ("copies", id(self))
        if len(stored) >= self._wanted:
            over = troubles().ended(trouble)
            if over is not None:
                log.warning(
                    "a Writer: each message is at %d nsqds again, after %s with fewer",
                    self._wanted,
                    duration(over.seconds),
                )
            return
        # Failed dials are left out here: the text of NotSent names them.
        told = (cause for cause in causes if isinstance(cause, (PublishError, ClosedError)))
        why = "; ".join(dict.fromkeys(map(str, told)))
        if len(stored) >= self._least:
            tell = troubles().began(trouble, ("copies",))
            if tell is not None:
                log.warning(
                    "a Writer: each message is at %s instead of %d: %s%s",
                    counted(len(stored), "nsqd"),
                    self._wanted,
                    why,
                    more(tell),
                )
            return
        if stored:
            error: PublishError | ClosedError = TooFewCopies(
                f"only {', '.join(stored)} has it, of {self._least} nsqds: {why}", stored
            )
        else:
            # The newest error that tells the fate of the publish.
            error = next(
                cause for cause in causes[::-1] if isinstance(cause, (PublishError, ClosedError))
            )
        raise self._verdict(error, causes)

    def publish_async(
        self,
        data: bytes,
        messages: int,
        timeout: float,
        keep: object = None,
        used: set[Address] | None = None,
    ) -> Future[None]:
        """Publish as Publisher does. The Future ends when all ``wanted`` nsqds have answered."""
        started = self._now()
        used = set()
        futures: list[tuple[str, Future[None]]] = []
        causes: list[BaseException] = []
        for _ in range(self._wanted):
            before = set(used)
            left = max(0.001, started + timeout - self._now())
            try:
                future = super().publish_async(data, messages, left, keep, used)
            except (PublishError, ClosedError) as error:
                if not futures:
                    raise
                causes.append(error)
                break
            (address,) = used - before
            futures.append((str(address), future))
        return self._together(futures, causes)

    def _together(
        self, futures: list[tuple[str, Future[None]]], causes: list[BaseException]
    ) -> Future[None]:
        """Return one Future that ends when all of these have ended."""
        outcome: Future[None] = Future()
        stored: list[str] = []
        left = len(futures)

        def ended(address: str, future: Future[None]) -> None:
            nonlocal left
            error = future.exception()
            with self._lock:
                if error is None:
                    stored.append(address)
                else:
                    causes.append(error)
                left -= 1
                if left:
                    return
            if not outcome.set_running_or_notify_cancel():
                return
            try:
                self._settle(stored, causes)
            except (PublishError, ClosedError) as raised:
                outcome.set_exception(raised)
            else:
                outcome.set_result(None)

        for address, future in futures:
            future.add_done_callback(lambda done, address=address: ended(address, done))  # type: ignore[misc]
        return outcome

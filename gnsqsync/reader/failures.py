"""Failures of handlers: which answer a message gets whose handler raised, and what counts.

Knows verdicts, tries and dead letters. Must not know threads, chunks or the handler itself.

``answer`` is the one way from an exception to REQ, FIN or a dead letter. Workers call it in the
context of the message.

Surprise: a failure may count for the backoff although its message was given up, and a message that
comes again may count for nothing.
"""

from __future__ import annotations

import logging
from enum import Enum

from gnsqsync.connection.subscribed import SubscribedConnection
from gnsqsync.errors import ConfigError
from gnsqsync.foreign import class_of, line_of, repr_of
from gnsqsync.keywords import note_right_name
from gnsqsync.message import Fate, Message, Requeue, Uncalled
from gnsqsync.reader.dead_letters import DeadLetters, retry_delay
from gnsqsync.reader.options import ReaderSetup
from gnsqsync.reader.pauses import Pauses
from gnsqsync.reader.verdicts import Verdict
from gnsqsync.writer.writer import Writer

__all__ = ["Failures", "Tally"]

log: logging.Logger = logging.getLogger("gnsqsync.reader")

# Limit above any ``attempts``, which is a 16 bit number.
_NO_LIMIT = 65536


class Tally(Enum):
    """Count that a message falls under when its handler raised."""

    FINISHED = "finished"
    # A failure that counts for the backoff.
    FAILED = "failed"
    # A failure that does not.
    EXCUSED = "excused"
    NEUTRAL = "neutral"


def _is_delay(delay: object) -> bool:
    """Return True if a Requeue may carry this delay. A subclass may set anything."""
    return delay is None or (isinstance(delay, (int, float)) and delay >= 0)


class Failures:
    """Answers of the messages of one Reader whose handler raised. Called by any worker."""

    def __init__(self, pauses: Pauses, dead_letters: DeadLetters, setup: ReaderSetup) -> None:
        self._pauses = pauses
        self._dead_letters = dead_letters
        self._tries = dead_letters.tries
        self._verdicts = setup.flow.verdicts()
        self._last_delivery = setup.flow.max_deliveries or _NO_LIMIT
        # Names in log lines.
        self._setup = setup

    def note_deadly(self, message: Message, error: BaseException) -> None:
        """Remember a message that ended its worker on its last attempt, if it did."""
        if self._tries.is_last(message):
            self._dead_letters.note_deadly(message, error)

    def was_given_up(self, connection: SubscribedConnection, message: Message) -> bool:
        """Give up a message before its handler is called. Return False if it may run.

        It was delivered too often, or ended its worker on its last attempt.
        """
        error = self._dead_letters.deadly(message)
        if error is None and message.attempts <= self._last_delivery:
            return False
        self._dead_letters.settle(connection, message, error)
        return True

    def answer(
        self, connection: SubscribedConnection, message: Message, error: BaseException
    ) -> Tally:
        """Answer a message whose handler raised, by the meaning of the exception."""
        note_right_name(error, Message, Writer)
        verdict = self._verdicts.of(error)
        if verdict is Verdict.DISCARD:
            fate = self._dead_letters.discard(connection, message, error)
            return Tally.FINISHED if fate is Fate.FINISHED else Tally.NEUTRAL
        if verdict is Verdict.REJECT:
            fate = self._dead_letters.settle(connection, message, error, rejected=True)
            return Tally.NEUTRAL if fate is Fate.GONE else Tally.EXCUSED
        if isinstance(error, Uncalled):
            return self._answer_uncalled(connection, message, error)
        if isinstance(error, Requeue) and not _is_delay(error.delay):
            wrong = ConfigError(
                f"delay of {class_of(error)} is {repr_of(error.delay)}; it must be None or seconds,"
                " 0 or more"
            )
            wrong.__cause__ = error
            error = wrong
        if isinstance(error, Requeue) and not error.backoff:
            connection.requeue_quietly(message, error.delay)
            return Tally.NEUTRAL
        return self._answer_attempt(connection, message, error)

    def _answer_uncalled(
        self, connection: SubscribedConnection, message: Message, error: Uncalled
    ) -> Tally:
        """Requeue a message whose handler was not called. That was no try of it."""
        self._tries.note_uncalled(message)
        if not connection.requeue_quietly(message, None):
            return Tally.NEUTRAL
        cause = error.__cause__ or error
        counts = self._verdicts.backs_off(cause)
        self._pauses.failed(connection, message, counts)
        log.warning(
            "%s: handler %s was not called on message %s (attempt %d) from %s; %s: %s",
            self._setup.name,
            self._setup.handler_name,
            message.id,
            message.attempts,
            message.nsqd_address,
            self._when_again(connection.requeue_delay_for(message)),
            line_of(cause),
            exc_info=cause,
            extra={**self._setup.fields_of(message), "handler": self._setup.handler_name},
        )
        return Tally.FAILED if counts else Tally.EXCUSED

    def _answer_attempt(
        self, connection: SubscribedConnection, message: Message, error: BaseException
    ) -> Tally:
        """Requeue a message whose handler failed, or give it up after its last attempt."""
        asked = isinstance(error, Requeue)
        backs_off = asked or self._verdicts.backs_off(error)
        if self._tries.is_last(message):
            delay = retry_delay(connection, message)
            fate = self._dead_letters.settle(connection, message, error)
        else:
            wanted = error.delay if isinstance(error, Requeue) else None
            delay = connection.requeue_delay_for(message) if wanted is None else wanted
            requeued = connection.requeue_quietly(message, wanted)
            fate = Fate.REQUEUED if requeued else Fate.GONE
        if fate is Fate.GONE:
            # An answer of the handler was counted when it was given.
            if not asked:
                self._log_failure(message, error, "it was answered before or is not ours any more")
            return Tally.NEUTRAL
        counts = backs_off and fate is not Fate.KEPT
        self._pauses.failed(connection, message, counts)
        if fate is Fate.REQUEUED and not asked:
            self._log_failure(message, error, self._when_again(delay))
        return Tally.FAILED if counts else Tally.EXCUSED

    def _when_again(self, delay: float) -> str:
        """Say when a message comes again: a pause may outlast its delay (seconds)."""
        pause = self._pauses.left()
        if pause <= delay:
            return f"requeued, comes again in {round(delay, 1):g} s"
        return f"requeued, comes again after the pause of the consumer, in {round(pause, 1):g} s"

    def _log_failure(self, message: Message, error: BaseException, what_now: str) -> None:
        log.warning(
            "%s: handler %s failed on message %s (attempt %d) from %s; %s",
            self._setup.name,
            self._setup.handler_name,
            message.id,
            message.attempts,
            message.nsqd_address,
            what_now,
            exc_info=error,
            extra={**self._setup.fields_of(message), "handler": self._setup.handler_name},
        )

"""The hooks of a Reader or Writer, as one object with methods to override. Knows nothing more."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from gnsqsync.errors import ConfigError
from gnsqsync.foreign import ends_worker

if TYPE_CHECKING:
    from gnsqsync.errors import PublishError
    from gnsqsync.message import Message

__all__ = ["Observer", "each", "tell"]


class Observer:
    """Told what a Reader or Writer does: override what you want, pass it as ``observer=``.

    A Writer calls ``connected``, ``lost``, ``lookup_failed``, ``lookup_recovered``, ``published``
    and ``publish_failed``; a Reader all but the last two. The methods are called outside all locks,
    on the thread where the thing happened, and should return soon. What they raise is logged and
    changes nothing.
    """

    def connected(self, nsqd_address: str) -> None:
        """A Reader has subscribed at an nsqd, or a Writer has a connection to it.

        Args:
            nsqd_address: Its ``host:port``.
        """

    def lost(self, nsqd_address: str, reason: Exception) -> None:
        """A connection ended, or could not be made.

        A Reader's is dialled again by itself, unless it was found by nsqlookupds and they list it
        no more, or the Reader stops. A Writer's is dialled by the next publish; in an outage, by
        itself.

        Args:
            nsqd_address: Its ``host:port``.
            reason: Why.
        """

    def lookup_failed(self, url: str, reason: Exception) -> None:
        """An nsqlookupd gave no answer of use; once, until it works again. It is asked on.

        Args:
            url: Which one, without user info.
            reason: Why.
        """

    def lookup_recovered(self, url: str) -> None:
        """An nsqlookupd answers again after it failed.

        Args:
            url: Which one, without user info.
        """

    def backoff(self, level: int, seconds: float) -> None:
        """Backoff began or went to another level; RDY is 0 everywhere for ``seconds``.

        Args:
            level: 0: backoff is over.
            seconds: How long; 0 with level 0.
        """

    def gave_up(self, message: Message, error: BaseException | None) -> None:
        """A message was given up and is finished: max_attempts, max_deliveries or Reject.

        Args:
            message: Which one.
            error: What its handler raised; None where ``message.requeue()`` was called outside of
                an ``except``, or no handler ran.
        """

    def discarded(self, message: Message, error: BaseException) -> None:
        """A message was finished because its handler raised ``Discard``, or what means that.

        Args:
            message: Which one.
            error: What its handler raised.
        """

    def answer_failed(self, nsqd_address: str, message_id: str, code: str) -> None:
        """nsqd refused an answer: the message had timed out and comes again, or came already.

        Args:
            nsqd_address: Which nsqd.
            message_id: Which message.
            code: ``E_FIN_FAILED``, ``E_REQ_FAILED`` or ``E_TOUCH_FAILED``.

        Threads:
            Called on the reading thread, or on the only worker between two messages.
        """

    def batch(self, nsqd_address: str, finished: int, failed: int, seconds: float) -> None:
        """A worker handled a chunk of messages of one connection in ``seconds``.

        Args:
            nsqd_address: Where they came from.
            finished: How many were finished.
            failed: How many were not.
            seconds: The time of all of them.
        """

    def published(self, topic: str, messages: int, seconds: float) -> None:
        """nsqd confirmed what one call of a Writer published; the call took ``seconds``.

        Args:
            topic: Where to.
            messages: How many; 1, but for ``publish_many()``.
            seconds: How long the call took, or its Future to end.

        Threads:
            Of ``publish_async()`` on the reading thread, when nsqd has answered, unless its Future
            was cancelled; otherwise on the thread of the call.
        """

    def publish_failed(
        self, topic: str, messages: int, seconds: float, error: PublishError
    ) -> None:
        """A call of a Writer that publishes ended with ``error``. Otherwise as ``published``.

        Wrong arguments and a Writer that is closed are told to the caller only.

        Args:
            topic: Where to.
            messages: How many.
            seconds: How long the call took, or its Future to end.
            error: NotSent, Refused or OutcomeUnknown; its ``acknowledged`` says how many of the
                messages nsqd has confirmed nevertheless.
        """


def each(observer: object) -> Iterator[Observer]:
    """Those in what ``observer=`` may be: None, one, or a list of them. ConfigError otherwise."""
    if observer is None:
        return
    if isinstance(observer, (list, tuple)):
        for member in observer:
            yield from each(member)
    elif isinstance(observer, Observer):
        yield observer
    else:
        raise ConfigError(
            f"observer is {observer!r}; it must be a gnsqsync.Observer, or a list of them"
        )


def tell(
    observers: Iterable[Observer],
    hook: str,
    *args: object,
    log: logging.Logger,
    who: str = "",
    extra: Mapping[str, object] | None = None,
) -> None:
    """Call a hook of each. What one raises is logged, after ``who`` and with ``extra``."""
    for observer in observers:
        try:
            getattr(observer, hook)(*args)
        except BaseException as error:
            # A BaseException, too, would end a thread of this package, or on greenlets the process.
            if ends_worker(error):
                raise
            log.exception("%sthe observer's %s failed", who, hook, extra=extra)

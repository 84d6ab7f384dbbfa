"""Hooks of a Reader or Writer, as one object with methods to override. Knows nothing more."""

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
    """Hooks that a Reader or Writer calls. Override some, and pass the object as ``observer=``.

    A Writer calls ``connected``, ``lost``, ``lookup_failed``, ``lookup_recovered``, ``published``
    and ``publish_failed``; a Reader calls all but the last two. The hooks should return soon. Their
    exceptions are logged and change nothing.

    Threads:
        A hook is called on the thread where the event happened, outside all locks, and perhaps on
        several threads at the same time.
    """

    def connected(self, nsqd_address: str) -> None:
        """Called when a Reader has subscribed at an nsqd, or a Writer has connected to it.

        Args:
            nsqd_address: ``host:port`` of the nsqd.
        """

    def lost(self, nsqd_address: str, reason: Exception) -> None:
        """Called when a connection ended or could not be made.

        A Reader dials again by itself, unless nsqlookupds found the nsqd and list it no more, or
        the Reader stops. A Writer dials at the next publish; in an outage, by itself.

        Args:
            nsqd_address: ``host:port`` of the nsqd.
            reason: The error that ended the connection, or the attempt to make it.
        """

    def lookup_failed(self, url: str, reason: Exception) -> None:
        """Called when an nsqlookupd gave no usable answer; once, until it works again.

        Args:
            url: URL of the nsqlookupd, without user info.
            reason: The error of the last request to it.
        """

    def lookup_recovered(self, url: str) -> None:
        """Called when an nsqlookupd answers again after it failed.

        Args:
            url: URL of the nsqlookupd, without user info.
        """

    def backoff(self, level: int, seconds: float) -> None:
        """Called when backoff began or changed its level. RDY is 0 everywhere for ``seconds``.

        Args:
            level: Level of the backoff; 0 means that it is over.
            seconds: Length of the pause; 0 with level 0.
        """

    def gave_up(self, message: Message, error: BaseException | None) -> None:
        """Called when a message is given up and finished: max_attempts, max_deliveries, Reject.

        Args:
            message: The message that was given up.
            error: Exception of its handler; None if ``message.requeue()`` was called outside of an
                ``except``, or no handler ran.
        """

    def discarded(self, message: Message, error: BaseException) -> None:
        """Called when a message is finished because of ``Discard``, or an error that means it.

        Args:
            message: The message that was discarded.
            error: Exception of its handler.
        """

    def answer_failed(self, nsqd_address: str, message_id: str, code: str) -> None:
        """Called when nsqd refused an answer: the message comes again, or came already.

        Args:
            nsqd_address: ``host:port`` of the nsqd.
            message_id: Id of the message.
            code: ``E_FIN_FAILED``, ``E_REQ_FAILED`` or ``E_TOUCH_FAILED``.

        Threads:
            Called on the reading thread, or on the only worker between two messages.
        """

    def batch(self, nsqd_address: str, finished: int, failed: int, seconds: float) -> None:
        """Called when a worker has handled a chunk of messages of one connection.

        Args:
            nsqd_address: ``host:port`` of the nsqd that they came from.
            finished: Number of finished messages.
            failed: Number of the others.
            seconds: Seconds for all of them.
        """

    def published(self, topic: str, messages: int, seconds: float) -> None:
        """Called when nsqd has confirmed the messages of one call of a Writer.

        Args:
            topic: Name of the topic.
            messages: Number of messages; 1, except for ``publish_many()``.
            seconds: Seconds until the call returned, or its Future ended.

        Threads:
            For ``publish_async()``, called on the reading thread when nsqd has answered, unless the
            Future was cancelled; otherwise on the thread of the call.
        """

    def publish_failed(
        self, topic: str, messages: int, seconds: float, error: PublishError
    ) -> None:
        """Called when a publishing call of a Writer ended with ``error``. Else as ``published``.

        Wrong arguments and a closed Writer are reported to the caller only.

        Args:
            topic: Name of the topic.
            messages: Number of messages.
            seconds: Seconds until the call returned, or its Future ended.
            error: NotSent, Refused or OutcomeUnknown. Its ``acknowledged`` is the number of
                messages that nsqd has confirmed all the same.
        """


def each(observer: object) -> Iterator[Observer]:
    """Yield the Observers in a value of ``observer=``: None, one, or a list. Else ConfigError."""
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
    """Call a hook of each observer. Log its exception, after ``who`` and with ``extra``."""
    for observer in observers:
        try:
            getattr(observer, hook)(*args)
        except BaseException as error:
            # A BaseException would end a thread of this package, or on greenlets the process.
            if ends_worker(error):
                raise
            log.exception("%sthe observer's %s failed", who, hook, extra=extra)

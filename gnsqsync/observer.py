"""The hooks of a Reader, as one object with methods to override. Knows nothing of the rest."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gnsqsync.errors import ConfigError

if TYPE_CHECKING:
    from gnsqsync.message import Message

__all__ = ["Observer", "as_one", "each"]

log: logging.Logger = logging.getLogger("gnsqsync.reader")


class Observer:
    """Told what a Reader does. Subclass it, override what you want, pass it as ``observer=``.

    The methods are called outside all locks, on the thread where the thing happened, and should
    return soon. What they raise is logged and changes nothing.
    """

    def connected(self, nsqd_address: str) -> None:
        """Subscribed at an nsqd.

        Args:
            nsqd_address: Its ``host:port``.
        """

    def lost(self, nsqd_address: str, reason: Exception) -> None:
        """A connection ended, or could not be made.

        It is dialled again by itself, unless it was found by nsqlookupds and they list it no more,
        or the reader stops.

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
        """A message was given up and is finished: max_attempts or max_deliveries.

        Args:
            message: Which one.
            error: What its handler raised; None where ``message.requeue()`` was called outside of
                an ``except``, or no handler ran.
        """

    def answer_failed(self, nsqd_address: str, message_id: str, code: str) -> None:
        """nsqd refused an answer: the message had timed out and comes again, or came already.

        Args:
            nsqd_address: Which nsqd.
            message_id: Which message.
            code: ``E_FIN_FAILED``, ``E_REQ_FAILED`` or ``E_TOUCH_FAILED``.

        Threads:
            Called on the reading thread.
        """

    def batch(self, nsqd_address: str, finished: int, failed: int, seconds: float) -> None:
        """A worker handled a chunk of messages of one connection in ``seconds``.

        Args:
            nsqd_address: Where they came from.
            finished: How many were finished.
            failed: How many were not.
            seconds: The time of all of them.
        """


def each(observer: object) -> Iterator[Observer]:
    """The members of what ``observer=`` may be: None, one, or a list of them.

    ConfigError for anything else.
    """
    if observer is None:
        return
    if isinstance(observer, _Several):
        yield from observer.members
    elif isinstance(observer, (list, tuple)):
        for member in observer:
            yield from each(member)
    elif isinstance(observer, Observer):
        yield observer
    else:
        raise ConfigError(
            f"observer is {observer!r}; it must be a gnsqsync.Observer, or a list of them"
        )


def as_one(observer: Observer | Sequence[Observer] | None) -> Observer:
    """What is to be told: nobody, one, or each of several."""
    members = tuple(each(observer))
    if len(members) == 1:
        return members[0]
    return _Several(members) if members else Observer()


class _Several(Observer):
    """Several as one: each is told, whatever another one raises."""

    def __init__(self, members: tuple[Observer, ...]) -> None:
        self.members = members

    def _tell(self, hook: str, *args: object) -> None:
        for member in self.members:
            try:
                getattr(member, hook)(*args)
            except (Exception, SystemExit):
                log.exception("the observer's %s failed", hook)

    def connected(self, nsqd_address: str) -> None:
        self._tell("connected", nsqd_address)

    def lost(self, nsqd_address: str, reason: Exception) -> None:
        self._tell("lost", nsqd_address, reason)

    def lookup_failed(self, url: str, reason: Exception) -> None:
        self._tell("lookup_failed", url, reason)

    def lookup_recovered(self, url: str) -> None:
        self._tell("lookup_recovered", url)

    def backoff(self, level: int, seconds: float) -> None:
        self._tell("backoff", level, seconds)

    def gave_up(self, message: Message, error: BaseException | None) -> None:
        self._tell("gave_up", message, error)

    def answer_failed(self, nsqd_address: str, message_id: str, code: str) -> None:
        self._tell("answer_failed", nsqd_address, message_id, code)

    def batch(self, nsqd_address: str, finished: int, failed: int, seconds: float) -> None:
        self._tell("batch", nsqd_address, finished, failed, seconds)

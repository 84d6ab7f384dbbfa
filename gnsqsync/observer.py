"""The hooks of a Reader, as one object with methods to override. Knows nothing of the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnsqsync.message import Message

__all__ = ["Observer"]


class Observer:
    """Told what a Reader does. Subclass it, override what you want, pass it as ``observer=``.

    The methods are called outside all locks, on the thread where the thing happened, and should
    return soon. What they raise is logged and changes nothing.
    """

    def connected(self, nsqd_address: str) -> None:
        """Subscribed at an nsqd."""

    def lost(self, nsqd_address: str, reason: Exception) -> None:
        """A connection ended, or could not be made. It is dialled again by itself."""

    def lookup_failed(self, url: str, reason: Exception) -> None:
        """An nsqlookupd gave no answer of use; once, until it works again. It is asked on."""

    def lookup_recovered(self, url: str) -> None:
        """An nsqlookupd answers again after it failed."""

    def backoff(self, level: int, seconds: float) -> None:
        """Backoff began or went to another level; RDY is 0 everywhere for ``seconds``.

        Level 0 and 0 seconds: backoff is over.
        """

    def gave_up(self, message: Message) -> None:
        """A message had more attempts than max_attempts and is finished without a handler."""

    def answer_failed(self, nsqd_address: str, message_id: str, code: str) -> None:
        """nsqd refused an answer: the message had timed out and comes again, or came already.

        ``code``: "E_FIN_FAILED", "E_REQ_FAILED" or "E_TOUCH_FAILED". On the reading thread.
        """

    def batch(self, nsqd_address: str, finished: int, failed: int, seconds: float) -> None:
        """A worker handled a chunk of messages of one connection in ``seconds``."""

"""A message in flight: the data that nsqd sent, and the answers that a handler can give.

Must not know sockets or threads: answers go to a Responder, the connection it arrived on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, Protocol

from gnsqsync import envelope
from gnsqsync.errors import ConfigError, MessageAnswered
from gnsqsync.foreign import line_of
from gnsqsync.keywords import checks_names

__all__ = ["Discard", "Fate", "Message", "Reject", "Requeue", "Responder"]

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})

# Bits of Message._status. Each of ANSWERED, TIMED_OUT and DETACHED has one setter at a time: the
# thread that took the message out of the in-flight table, the reading thread, the handler's.
# BEGUN is set by the worker or by Batches: a handler or the user of the pull form has the message.
DETACHED = 1
TIMED_OUT = 2
ANSWERED = 4
BEGUN = 8
# The work is done, so FIN is the answer, even if nsqd no longer takes it. Set by the worker after
# the outermost middleware has returned, or by the caller of finish().
DONE = 16
# The handler or a middleware raised. Set by the worker.
FAILED = 32


class Requeue(Exception):
    """Raise it in a handler to send REQ instead of FIN.

    Args:
        delay: Seconds until nsqd delivers the message again. None means attempts times the
            reader's ``requeue_delay``.
        backoff: If True, this is a failure for the backoff and for ``max_attempts``. If False, it
            only means "not now".

    Raises:
        ConfigError: The delay is negative or not a number.
    """

    # Defaults for subclasses with a constructor of their own.
    delay: float | None = None
    backoff: bool = True

    @checks_names
    def __init__(self, delay: float | None = None, backoff: bool = True) -> None:
        if delay is not None and not delay >= 0:
            raise ConfigError(f"delay is {delay!r}; it must be None or seconds, 0 or more")
        super().__init__(f"requeue(delay={delay}, backoff={backoff})")
        self.delay = delay
        self.backoff = backoff


class Uncalled(Requeue):
    """The handler was not called, because an earlier step has failed.

    The cause says why. The message comes again, the delivery was no try of it, and the Reader backs
    off.
    """


class Reject(Exception):
    """Raise it in a handler to give the message up now, because no attempt can succeed.

    The message becomes a dead letter, as after the last of ``max_attempts``, and does not count for
    the backoff. Without options for dead letters it waits in nsqd and comes again.

    Args:
        reason: Text for the log and the dead letter.
    """

    # Defaults for subclasses with a constructor of their own.
    reason: str = ""

    @checks_names
    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Discard(Exception):
    """Raise it in a handler to finish the message although nothing was done with it.

    It is counted, but not as a failure.

    Args:
        reason: Text for the log.
    """

    # Defaults for subclasses with a constructor of their own.
    reason: str = ""

    @checks_names
    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


# Exceptions of a function that looks at a message, such as a validator, which do not come from the
# message: the next attempt may succeed. The last three decide what becomes of the message.
NOT_OF_THE_MESSAGE = (OSError, MemoryError, Requeue, Reject, Discard)


def no_key(what: str, error: BaseException) -> BaseException:
    """Return the error to raise for a message if a user's function fails to return its key.

    This is a Reject, because the function sees the same message each time; or the error itself, if
    that does not come from the message.
    """
    if isinstance(error, NOT_OF_THE_MESSAGE):
        return error
    reject = Reject(f"its {what} could not be told: {line_of(error)}")
    reject.__cause__ = error
    return reject


class Fate(Enum):
    """Fate of a message that was to be given up."""

    FINISHED = "finished"
    # The hook or the dead letter failed, so the message comes again as after any failure.
    REQUEUED = "requeued"
    # Without options for given up messages, it waits in nsqd.
    KEPT = "kept"
    # The message was answered before, or is not ours any more.
    GONE = "gone"


class Responder(Protocol):
    """The connection of a message, as far as the message needs it. Callable from any thread."""

    @property
    def nsqd_address(self) -> str: ...
    @property
    def topic(self) -> str: ...
    @property
    def channel(self) -> str: ...
    @property
    def msg_timeout(self) -> float: ...
    @property
    def max_msg_timeout(self) -> float: ...
    @property
    def is_closed(self) -> bool: ...

    def is_in_flight(self, message: Message) -> bool: ...
    def finish(self, message: Message) -> bool: ...
    def finish_many(self, messages: Iterable[Message]) -> int: ...
    def requeue(self, message: Message, delay: float | None, backoff: bool) -> bool: ...
    def touch(self, message: Message) -> bool: ...


class Message:
    """A message as delivered to a handler. A Reader makes it.

    Args:
        id: The 16 hex digits that nsqd gave it, as bytes.
        body: The body, without its envelope if the Reader opens envelopes.
        attempts: Number of its deliveries, 1 on the first one.
        timestamp: Nanoseconds since 1970 at which nsqd accepted the publish.
        responder: The connection that delivered it, which takes the answers.
        received_at: Seconds of ``time.monotonic()`` at which it arrived.

    Threads:
        A message may be answered from any thread.
    """

    __slots__ = (
        "__weakref__",
        "_headers",
        "_id",
        "_received_at",
        "_responder",
        "_status",
        "_touched_at",
        "attempts",
        "body",
        "timestamp",
    )

    # Headers as bytes until they are first read. Unset without an envelope.
    _headers: Mapping[str, str] | bytes

    def __init__(
        self,
        id: bytes,
        body: bytes,
        attempts: int,
        timestamp: int,
        responder: Responder,
        received_at: float = 0.0,
    ) -> None:
        self._id = id
        self.body: bytes = body
        self.attempts: int = attempts
        self.timestamp: int = timestamp
        self._responder = responder
        self._received_at = received_at
        self._touched_at = received_at
        self._status = 0

    @property
    def id(self) -> str:
        """The 16 hex digits that nsqd gave it.

        Unique within one nsqd and topic only (docs/protocol/publishing#ids).
        """
        return self._id.decode("ascii", "replace")

    @property
    def nsqd_address(self) -> str:
        """``host:port`` of the nsqd that delivered it."""
        return self._responder.nsqd_address

    @property
    def topic(self) -> str:
        """The topic that it was published to."""
        return self._responder.topic

    @property
    def channel(self) -> str:
        """The channel that it came from."""
        return self._responder.channel

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of its envelope (docs/protocol/envelope).

        Empty without an envelope, or in a Reader without ``headers=True``; ``body`` is then the
        whole data.
        """
        try:
            headers = self._headers
        except AttributeError:
            return _NO_HEADERS
        if isinstance(headers, bytes):
            headers = self._headers = envelope.parse(headers)
        return headers

    @property
    def _is_opened(self) -> bool:
        """True if ``body`` comes out of an envelope."""
        return hasattr(self, "_headers")

    @property
    def deadline(self) -> float:
        """Time at which nsqd takes the message back, in seconds of ``time.monotonic()``.

        Each touch moves it, but never past the server's max_msg_timeout
        (docs/protocol/timeouts#touch).
        """
        responder = self._responder
        return min(self._touched_at + responder.msg_timeout, self.hard_deadline)

    @property
    def hard_deadline(self) -> float:
        """Time after which no touch helps, in seconds of ``time.monotonic()``.

        It is nsqd's max_msg_timeout after the delivery (docs/protocol/timeouts#touch).
        """
        return self._received_at + self._responder.max_msg_timeout

    @property
    def is_alive(self) -> bool:
        """True if an answer can be sent, and is not known to be too late.

        The message is unanswered, and its connection lives.

        nsqd tells of a timeout only when it refuses an answer; ``deadline`` says when it is due.
        """
        return not self._status & (TIMED_OUT | ANSWERED) and self._responder.is_in_flight(self)

    @property
    def timed_out(self) -> bool:
        """True once the message is known to be no longer ours.

        This is known after a refused TOUCH (E_TOUCH_FAILED), and for a detached message also after
        a refused FIN or REQ, a round trip later. The Observer's ``answer_failed`` tells of all
        three. It is also True 5 s after the deadline, for a message from a Reader without a
        handler; and when another copy of it, which nsqd delivered here too, was answered.
        """
        return bool(self._status & TIMED_OUT)

    @property
    def is_detached(self) -> bool:
        """True if ``detach()`` was called."""
        return bool(self._status & DETACHED)

    @property
    def is_answered(self) -> bool:
        """True once an answer by ``finish()`` or ``requeue()`` was accepted."""
        return bool(self._status & ANSWERED)

    def finish(self) -> bool:
        """Send FIN: the message is done.

        Returns:
            False if its connection is gone or nsqd timed it out. It then comes again, to this or
            another consumer, unless another copy of it was answered here.

        Raises:
            MessageAnswered: The message was answered before.
        """
        if self._responder.finish(self):
            return True
        too_late = self._not_in_flight("finish")
        # The work is done all the same: a KeyWindow drops the next delivery.
        self._status |= DONE
        return too_late

    def requeue(self, delay: float | None = None, *, backoff: bool = True) -> bool:
        """Send REQ: deliver it again after ``delay`` seconds.

        A failure of the last of ``max_attempts`` gives the message up instead, before this returns:
        ``on_giving_up`` is called with the exception that is being handled, if there is one, or the
        dead letter is published.

        Args:
            delay: Seconds, 0 or more. None means attempts times the reader's ``requeue_delay``.
            backoff: If True, it counts as a failure.

        Returns:
            As in ``finish()``.

        Raises:
            MessageAnswered: The message was answered before.
            ConfigError: The delay is not allowed.
        """
        if delay is not None and not delay >= 0:
            raise ConfigError(f"delay is {delay!r}; it must be None or seconds, 0 or more")
        if self._responder.requeue(self, delay, backoff):
            return True
        return self._not_in_flight("requeue")

    def touch(self) -> bool:
        """Send TOUCH to ask nsqd for another msg_timeout. Returns and raises as ``finish()``.

        Returns:
            False if the connection is gone or nsqd timed the message out.

        Raises:
            MessageAnswered: The message was answered before.
        """
        if self._responder.touch(self):
            return True
        return self._not_in_flight("touch")

    def detach(self) -> None:
        """Keep the message after the handler returns, to answer it later.

        Threads:
            The handler calls it. Any thread may then answer the message.
        """
        self._status |= DETACHED

    def json(self) -> Any:
        """Return the body parsed as JSON.

        Raises:
            ValueError: The body is not JSON.
        """
        return json.loads(self.body)

    @property
    def _is_open(self) -> bool:
        """True while it may still become DONE: in a handler, in a middleware, or detached."""
        status = self._status
        if status & (DONE | FAILED | ANSWERED):
            return False
        # A detached message has no worker that would set its end.
        return not status & DETACHED or self.is_alive

    def _not_in_flight(self, answer: str) -> bool:
        # If it is neither timed out nor orphaned, another thread answered it at this moment.
        gone = self._status & TIMED_OUT or self._responder.is_closed
        if self._status & ANSWERED or not gone:
            raise MessageAnswered(f"{answer}() on message {self.id}, which was answered before")
        return False

    def __repr__(self) -> str:
        return (
            f"<Message {self.id} from {self.nsqd_address}"
            f" attempts={self.attempts} bytes={len(self.body)}>"
        )

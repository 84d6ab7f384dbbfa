"""Eager mode of the integrations: handlers run at once with published messages, without an nsqd.

Knows a message and its answers. Must not know a Writer or a framework.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from itertools import count
from typing import Protocol, TypeVar

from gnsqsync.message import ANSWERED, DONE, FAILED, Discard, Message, Reject, Requeue, Uncalled
from gnsqsync.middleware import Middleware, around_handler
from gnsqsync.testing.memory import CapturedMessage

__all__ = ["Channel", "deliver", "one_per_channel"]

# Upper bound of messages that handlers publish or requeue because of one publish, directly or not.
_MOST_CAUSED = 1000

_ids = count(1)


@dataclass(frozen=True, slots=True)
class Channel:
    """A handler that gets each message of a topic once, with its name and ``max_attempts``."""

    # Name of the handler.
    name: str
    channel: str
    handler: Callable[[Message], object]
    max_attempts: int
    middleware: tuple[Middleware, ...] = ()
    # Called with a rejected message in place of a Reader's dead letter. Without it, the publish
    # raises the Reject.
    give_up: Callable[[Message, Reject], None] | None = None

    def call(self, message: Message) -> object:
        """Call the handler within the middlewares."""
        return around_handler(self.middleware, self.handler)(message)


class _OfChannel(Protocol):
    """A registered handler, of which only the channel matters."""

    @property
    def channel(self) -> str: ...


_Handler = TypeVar("_Handler", bound=_OfChannel)


def one_per_channel(handlers: Iterable[_Handler]) -> list[_Handler]:
    """Return the first handler of each channel, because handlers of a channel share its messages.

    Args:
        handlers: The handlers of one topic.
    """
    by_channel: dict[str, _Handler] = {}
    for handler in handlers:
        by_channel.setdefault(handler.channel, handler)
    return list(by_channel.values())


class _Run:
    """The messages that one publish has caused, waiting for their handlers in that order.

    A publish inside a handler returns before the next handler begins, as with an nsqd.
    """

    __slots__ = ("caused", "is_over", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[tuple[_Source, Message]] = deque()
        # Number of messages in ``waiting``, now or before, that came from handlers.
        self.caused = 0
        # True once the publish has returned. A later publish in the same context begins a new run.
        self.is_over = False


# The run that handlers add to; set in the contexts that handlers run in.
_run: ContextVar[_Run | None] = ContextVar("gnsqsync_eager_run", default=None)


def deliver(
    messages: Collection[CapturedMessage], channels_of: Callable[[str], Iterable[Channel]]
) -> None:
    """Call the handlers with the messages, and with messages that handlers publish meanwhile.

    Runs on this thread, each message in an empty context of its own (``contextvars``), as on a
    worker. Inside a handler it only notes the messages; the outermost call runs them later.

    Args:
        messages: The messages that were just published.
        channels_of: Returns the channels of a topic.

    Raises:
        BaseException: A handler raised it. Messages that still wait reach no handler.
        RuntimeError: The handlers publish or requeue without an end.
    """
    channels = {topic: [*channels_of(topic)] for topic in {one.topic for one in messages}}
    deliveries = []
    for message in messages:
        # nsqd, too, gives one id to all copies of a message in its channels.
        id, timestamp = b"%016x" % next(_ids), time.time_ns()
        for channel in channels[message.topic]:
            source = _Source(channel, message, id, timestamp)
            deliveries.append((source, source.delivery(1)))
    _add(deliveries)


def _add(deliveries: list[tuple[_Source, Message]]) -> None:
    run = _run.get()
    if run is not None and not run.is_over:
        run.waiting.extend(deliveries)
        run.caused += len(deliveries)
        return
    run = _Run()
    run.waiting.extend(deliveries)
    # An empty context, as on a worker: without the caller's request, language, time zone.
    Context().run(_work, run)


def _work(run: _Run) -> None:
    _run.set(run)
    try:
        while run.waiting:
            source, message = run.waiting.popleft()
            copy_context().run(source.handle, message)
            if run.caused > _MOST_CAUSED:
                raise RuntimeError(
                    f"one publish has caused more than {_MOST_CAUSED} messages, the last ones by"
                    f" {source._to.name}, a handler of {source.topic}: in eager mode a handler"
                    " must not publish to its own topic, or requeue, without an end"
                )
    finally:
        run.is_over = True


class _Source:
    """A message in one channel, in place of the connection that would deliver it."""

    # Values of an nsqd with its defaults. Nothing times out here.
    nsqd_address = "127.0.0.1:4150"
    msg_timeout = 60.0
    max_msg_timeout = 900.0
    is_closed = False

    def __init__(
        self, channel: Channel, captured: CapturedMessage, id: bytes, timestamp: int
    ) -> None:
        self._to = channel
        self.topic: str = captured.topic
        self.channel: str = channel.channel
        self._captured = captured
        self._id = id
        self._timestamp = timestamp

    def delivery(self, attempts: int) -> Message:
        message = Message(
            self._id, self._captured.body, attempts, self._timestamp, self, time.monotonic()
        )
        if self._captured.headers:
            message._headers = self._captured.headers
        return message

    def handle(self, message: Message) -> None:
        """Call the handler, and raise what it raises, with three exceptions.

        Not raised: Discard, a Requeue that is granted, and a Reject if the channel can give up.
        """
        try:
            self._to.call(message)
        except Discard:
            self._end(message)
        except Reject as error:
            message._status |= FAILED
            if self._to.give_up is None:
                raise
            self._to.give_up(message, error)
            self._end(message)
        except Uncalled as error:
            # An eager publish does not wait until a database is back.
            message._status |= FAILED
            raise error.__cause__ or error from None
        except Requeue as error:
            message._status |= FAILED
            if message.is_answered or self._is_last(message, error.backoff):
                raise
            self.requeue(message, error.delay, error.backoff)
        except BaseException:
            # The status makes a KeyWindow, which outlives this publish, release the key.
            message._status |= FAILED
            raise
        else:
            if not message.is_detached:
                self.finish(message)

    def _is_last(self, message: Message, backoff: bool) -> bool:
        """Return True if a failure of this delivery gives the message up."""
        return backoff and 0 < self._to.max_attempts <= message.attempts

    # -- the answers -----------------------------------------------------------------------------

    def is_in_flight(self, message: Message) -> bool:
        return not message.is_answered

    def finish(self, message: Message) -> bool:
        return self._end(message, ANSWERED | DONE)

    def _end(self, message: Message, status: int = ANSWERED) -> bool:
        if message.is_answered:
            return False
        message._status |= status
        return True

    def finish_many(self, messages: Iterable[Message]) -> int:
        return sum(map(self.finish, messages))

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> bool:
        """Deliver it again without the delay, or raise Requeue after the last attempt."""
        if not self._end(message):
            return False
        if self._is_last(message, backoff):
            raise Requeue(delay, backoff)
        _add([(self, self.delivery(message.attempts + 1))])
        return True

    def touch(self, message: Message) -> bool:
        if message.is_answered:
            return False
        message._touched_at = time.monotonic()
        return True

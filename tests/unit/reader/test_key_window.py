"""When a key is remembered: when its message is done, and not before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gnsqsync import Discard, KeyWindow, Message, Middleware, Reject, Requeue
from gnsqsync.message import ANSWERED, BEGUN, DETACHED, DONE, FAILED
from gnsqsync.middleware import around_handler


class Connection:
    """A connection that answers whatever is in flight."""

    nsqd_address = "127.0.0.1:4150"
    topic = "orders"
    channel = "books"
    is_closed = False

    def __init__(self) -> None:
        self.in_flight: set[Message] = set()

    def is_in_flight(self, message: Message) -> bool:
        return message in self.in_flight

    def _take(self, message: Message, status: int) -> bool:
        if message not in self.in_flight:
            return False
        self.in_flight.discard(message)
        message._status |= status
        return True

    def finish(self, message: Message) -> bool:
        return self._take(message, ANSWERED | DONE)

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> bool:
        return self._take(message, ANSWERED)

    def lose(self) -> None:
        self.is_closed = True
        self.in_flight.clear()


class Outside(Middleware):
    """A middleware outside of the window, which does something when the handler has returned."""

    def __init__(self) -> None:
        self.then: Callable[[Message], object] = lambda message: None

    def handle(self, message: Message, handler: Any, proceed: Any) -> object:
        result = proceed(message)
        self.then(message)
        return result


class Books:
    """A Reader's worker, reduced to what the window depends on."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("key", lambda message: message.body.decode())
        self.window = KeyWindow(**options)
        self.outside = Outside()
        self.connection = Connection()
        self.handled: list[bytes] = []
        self.then: Callable[[Message], object] = lambda message: None
        self.call = around_handler([self.outside, self.window], self._handle)

    def _handle(self, message: Message) -> None:
        self.handled.append(message.body)
        self.then(message)

    def message(self, body: bytes = b"7") -> Message:
        message = Message(b"0" * 16, body, 1, 0, self.connection)
        self.connection.in_flight.add(message)
        return message

    def deliver(self, message: Message | None = None) -> BaseException | None:
        """Deliver as ``Workers._handle`` does. Return the exception that was raised."""
        message = message or self.message()
        message._status = BEGUN
        try:
            self.call(message)
        except BaseException as error:
            # The worker answers whatever it is.
            message._status |= FAILED
            self.connection.requeue(message, None, True)
            return error
        if message._status == BEGUN:
            self.connection.in_flight.discard(message)
            message._status |= ANSWERED | DONE
        return None

    def is_dropped(self) -> bool:
        """Deliver a twin. Return True if it was finished without the handler."""
        count = len(self.handled)
        assert self.deliver() is None
        return len(self.handled) == count


def fail(message: Message) -> None:
    raise ValueError("the commit failed")


def test_a_twin_of_what_was_finished_is_dropped() -> None:
    books = Books()
    assert not books.is_dropped()
    assert books.is_dropped()
    assert books.is_dropped()


@pytest.mark.parametrize(
    "then",
    [lambda message: message.requeue(), lambda message: message.requeue(5, backoff=False), fail],
)
@pytest.mark.parametrize("where", ["handler", "middleware outside"])
def test_a_requeued_message_is_handled_again(then: Callable[[Message], object], where: str) -> None:
    books = Books()
    place: Any = books if where == "handler" else books.outside
    place.then = then
    books.deliver()
    place.then = lambda message: None
    assert not books.is_dropped()
    assert books.is_dropped()
    assert books.handled == [b"7", b"7"]


def test_between_the_handler_and_the_end_a_twin_is_requeued() -> None:
    books = Books(delay=3.0)
    errors: list[BaseException | None] = []
    books.outside.then = lambda message: errors.append(books.deliver())
    books.deliver()
    (error,) = errors
    assert isinstance(error, Requeue) and (error.delay, error.backoff) == (3.0, False)
    assert books.handled == [b"7"]


def test_a_detached_message_counts_when_it_is_finished() -> None:
    books = Books()
    first = books.message()
    books.then = Message.detach
    books.deliver(first)
    assert first._status & DETACHED
    books.then = lambda message: None
    assert isinstance(books.deliver(), Requeue)
    assert first.finish()
    assert books.is_dropped()


@pytest.mark.parametrize("end", ["requeued", "lost"])
def test_a_detached_message_that_is_not_finished_is_handled_again(end: str) -> None:
    books = Books()
    first = books.message()
    books.then = Message.detach
    books.deliver(first)
    books.then = lambda message: None
    if end == "requeued":
        first.requeue()
    else:
        books.connection.lose()
    assert not books.is_dropped()


def test_work_that_is_done_is_not_repeated_when_its_fin_is_lost() -> None:
    books = Books()
    first = books.message()
    books.then = Message.detach
    books.deliver(first)
    books.then = lambda message: None
    books.connection.lose()
    assert first.finish() is False
    books.connection = Connection()
    assert books.is_dropped()


def test_a_finished_message_is_done_even_if_a_middleware_fails() -> None:
    books = Books()
    books.then = Message.finish
    books.outside.then = fail
    assert isinstance(books.deliver(), ValueError)
    books.then = books.outside.then = lambda message: None
    assert books.is_dropped()


def test_a_twin_of_a_discarded_or_rejected_message_is_not_handled() -> None:
    for error in (Discard(), Reject()):
        books = Books()

        def say(message: Message, error: BaseException = error) -> None:
            raise error

        books.then = say
        assert books.deliver() is error
        books.then = lambda message: None
        assert not books.is_dropped()


def broken(message: Message) -> str:
    raise SystemExit("no such field")


@pytest.mark.parametrize("key", [broken, lambda message: 7, lambda message: ["a", "b"]])
def test_a_message_whose_key_cannot_be_told_is_rejected(key: Any) -> None:
    books = Books(key=key)
    error = books.deliver()
    assert isinstance(error, Reject) and "key" in error.reason
    assert not books.handled


def test_a_window_that_stands_twice_around_a_handler() -> None:
    books = Books()
    books.call = around_handler([books.window, books.outside, books.window], books._handle)
    assert not books.is_dropped()
    assert books.is_dropped()


def test_no_ended_message_is_kept() -> None:
    books = Books(size=5)
    for number in range(100):
        message = books.message(b"%d" % number)
        books.then = Message.detach if number % 10 == 0 else lambda message: None
        books.deliver(message)
    assert len(books.window._handled) == 5
    # Ten are detached, and each call looks at two.
    assert len(books.window._turns) <= 21
    books.connection.lose()
    books.then = lambda message: None
    for _ in range(20):
        books.deliver()
    assert len(books.window._turns) <= 2
    assert len(books.window._left) <= 2

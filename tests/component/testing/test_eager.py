"""The eager mode by itself: handlers that a MemoryWriter calls, in which order, with what."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar, copy_context
from typing import Any

import pytest

from gnsqsync import Message, Reader, Requeue
from gnsqsync.errors import MessageAnswered
from gnsqsync.message import Responder
from gnsqsync.process.settings import max_attempts_of
from gnsqsync.testing.eager import Channel, deliver
from gnsqsync.testing.memory import CapturedMessage, MemoryWriter

Handle = Callable[[Message], object]


class Topics:
    """A Writer whose messages are handled at once, and the handlers of its topics."""

    def __init__(self) -> None:
        self.channels: dict[str, list[Channel]] = {}
        self.writer = MemoryWriter(deliver=self._deliver)
        # What was handled: topic and body.
        self.handled: list[str] = []

    def _deliver(self, messages: list[CapturedMessage]) -> None:
        deliver(messages, lambda topic: self.channels.get(topic, []))

    def consume(self, topic: str, handler: Handle | None = None, max_attempts: int = 5) -> None:
        def handle(message: Message) -> None:
            self.handled.append(f"{topic} {message.body.decode()}")
            if handler is not None:
                handler(message)

        self.channels.setdefault(topic, []).append(
            Channel("the handler", "c", handle, max_attempts)
        )

    def publish(self, topic: str, body: str = "x") -> None:
        self.writer.publish(topic, body)

    @property
    def bodies(self) -> list[str]:
        return [f"{message.topic} {message.body.decode()}" for message in self.writer.messages]


@pytest.fixture
def topics() -> Iterator[Topics]:
    yield Topics()


def test_a_message_is_there_when_its_handlers_run_and_each_channel_gets_it(topics: Topics) -> None:
    seen: list[list[str]] = []
    topics.consume("t", lambda message: seen.append(topics.bodies))
    topics.consume("t", lambda message: seen.append(topics.bodies))
    topics.publish("t", "1")
    assert seen == [["t 1"], ["t 1"]]
    topics.publish("nobody", "2")
    topics.writer.publish_many("t", ["3", "4"])
    topics.writer.publish_async("t", "5").result(0)
    topics.writer.publish("t", "6", defer=60)
    assert topics.handled == [f"t {number}" for number in "11334455" + "66"]
    assert topics.bodies == ["t 1", "nobody 2", "t 3", "t 4", "t 5", "t 6"]


def test_a_handler_gets_a_message_as_from_nsqd(topics: Topics) -> None:
    messages: list[Message] = []

    def handle(message: Message) -> None:
        assert isinstance(message, Message)
        assert message.is_alive
        assert message.touch()
        assert message.deadline <= message.hard_deadline
        messages.append(message)

    for _ in range(2):
        topics.consume("t", handle)
    before = time.time_ns()
    topics.publish("t", "1")
    topics.publish("t", "2")
    one, same, other, _ = messages
    assert one.body == b"1"
    assert one.attempts == 1
    assert len(one.id) == 16
    assert one.id == same.id != other.id
    assert before <= one.timestamp <= other.timestamp <= time.time_ns()
    assert one.nsqd_address == "127.0.0.1:4150"
    assert one.is_answered
    assert not one.is_alive
    with pytest.raises(MessageAnswered):
        one.finish()


def test_publishes_of_a_handler_are_handled_after_it_in_order(
    topics: Topics,
) -> None:
    def first(message: Message) -> None:
        topics.publish("second", "a")
        topics.publish("second", "b")
        topics.handled.append("first is done")

    topics.consume("first", first)
    topics.consume("second", lambda message: topics.publish("third", message.body.decode()))
    topics.consume("third")
    topics.publish("first", "1")
    assert topics.handled == [
        "first 1",
        "first is done",
        "second a",
        "second b",
        "third a",
        "third b",
    ]


def test_an_error_of_a_handler_reaches_the_publisher(topics: Topics) -> None:
    def fail(message: Message) -> None:
        raise ValueError(message.body.decode())

    topics.consume("chain", lambda message: topics.publish("bad"))
    topics.consume("bad", fail)
    topics.consume("good")
    for publish in (
        lambda: topics.writer.publish("bad", "1"),
        lambda: topics.writer.publish_many("bad", ["1", "2"]),
        lambda: topics.writer.publish_async("bad", "1"),
        lambda: topics.writer.publish("chain", "1"),
    ):
        with pytest.raises(ValueError, match=r"^(1|x)$"):
            publish()
    # Nothing of it is left.
    del topics.handled[:]
    topics.publish("good")
    assert topics.handled == ["good x"]


@pytest.mark.parametrize("by", ["exception", "method"])
def test_a_requeued_message_comes_again_without_a_wait(topics: Topics, by: str) -> None:
    seen: list[tuple[int, str]] = []

    def handle(message: Message) -> None:
        seen.append((message.attempts, message.id))
        if message.attempts < 3:
            topics.publish("other", str(message.attempts))
            if by == "exception":
                raise Requeue(delay=600)
            assert message.requeue(delay=600)

    topics.consume("t", handle)
    topics.consume("other")
    topics.publish("t")
    assert [attempts for attempts, _ in seen] == [1, 2, 3]
    assert len({id for _, id in seen}) == 1
    assert topics.handled == ["t x", "other 1", "t x", "other 2", "t x"]
    assert topics.bodies == ["t x", "other 1", "other 2"]


@pytest.mark.parametrize("by", ["exception", "method"])
def test_a_requeue_on_the_last_attempt_is_raised(topics: Topics, by: str) -> None:
    def handle(message: Message) -> None:
        if by == "exception":
            raise Requeue(7)
        message.requeue(7)

    topics.consume("t", handle, max_attempts=3)
    with pytest.raises(Requeue) as caught:
        topics.publish("t")
    assert caught.value.delay == 7
    assert topics.handled == ["t x"] * 3


def test_not_now_is_no_attempt(topics: Topics) -> None:
    def handle(message: Message) -> None:
        if message.attempts < 50:
            raise Requeue(backoff=False)

    topics.consume("t", handle, max_attempts=3)
    topics.publish("t")
    assert len(topics.handled) == 50


def publishes_again(topics: Topics, message: Message) -> None:
    topics.publish("t", "more")


def publishes_more_and_more(topics: Topics, message: Message) -> None:
    topics.writer.publish_many("t", ["a", "b", "c"])


def waits_for_ever(topics: Topics, message: Message) -> None:
    raise Requeue(backoff=False)


def swallows(topics: Topics, message: Message) -> None:
    try:
        topics.publish("t", "more")
    except Exception:
        pytest.fail("an error of another message")


@pytest.mark.parametrize(
    "handle", [publishes_again, publishes_more_and_more, waits_for_ever, swallows]
)
def test_handlers_that_go_on_without_an_end_are_stopped(topics: Topics, handle: Any) -> None:
    topics.consume("t", lambda message: handle(topics, message))
    with pytest.raises(RuntimeError, match="more than 1000 messages, the last ones by the handler"):
        topics.publish("t")
    assert len(topics.handled) <= 1001


def test_a_test_may_publish_as_many_as_it_likes(topics: Topics) -> None:
    topics.consume("t")
    topics.writer.publish_many("t", ["x"] * 3000)
    assert len(topics.handled) == 3000


def test_answers_of_a_handler(topics: Topics) -> None:
    def finish(message: Message) -> None:
        assert message.finish()
        with pytest.raises(MessageAnswered):
            message.requeue()
        with pytest.raises(MessageAnswered):
            message.touch()

    def finish_and_fail(message: Message) -> None:
        message.finish()
        raise Requeue

    topics.consume("finished", finish)
    topics.publish("finished")
    topics.consume("both", finish_and_fail)
    with pytest.raises(Requeue):
        topics.publish("both")
    assert topics.handled == ["finished x", "both x"]


def test_a_detached_message_is_answered_later_by_any_thread(topics: Topics) -> None:
    kept: list[Message] = []

    def keep(message: Message) -> None:
        message.detach()
        kept.append(message)

    topics.consume("t", keep)
    topics.publish("t")
    assert kept[0].is_alive
    # Also one that has inherited the context of a handler.
    for run in (lambda call: call(), copy_context().run):
        thread = threading.Thread(target=run, args=(kept[-1].requeue,))
        thread.start()
        thread.join()
    assert [message.attempts for message in kept] == [1, 2, 3]
    responder: Responder = kept[-1]._responder
    assert responder.finish_many([kept[-1], kept[0]]) == 1


caller: ContextVar[str] = ContextVar("caller", default="nobody")


def test_a_handler_sees_nothing_of_the_context_of_who_publishes(topics: Topics) -> None:
    seen: list[str] = []

    def handle(message: Message) -> None:
        seen.append(caller.get())
        caller.set("a handler")

    topics.consume("t", handle)
    # The publish makes two messages, and the second sees nothing of the first.
    topics.consume("t", handle)
    token = caller.set("a request")
    topics.publish("t")
    assert caller.get() == "a request"
    caller.reset(token)
    assert seen == ["nobody", "nobody"]


def test_a_thread_of_a_handler_that_outlives_it_has_its_messages_handled(topics: Topics) -> None:
    may_go_on = threading.Event()
    threads: list[threading.Thread] = []

    def handle(message: Message) -> None:
        def later() -> None:
            assert may_go_on.wait(30)
            topics.publish("later")

        # As the pools of asgiref do it.
        threads.append(threading.Thread(target=copy_context().run, args=(later,)))
        threads[0].start()

    topics.consume("t", handle)
    topics.consume("later")
    topics.publish("t")
    may_go_on.set()
    threads[0].join()
    assert topics.handled == ["t x", "later x"]


def test_threads_do_not_wait_for_each_other(topics: Topics) -> None:
    both = threading.Barrier(2, timeout=30)
    topics.consume("t", lambda message: both.wait())
    threads = [threading.Thread(target=topics.publish, args=("t",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert topics.handled == ["t x", "t x"]


def test_attempts_are_those_of_a_reader() -> None:
    default = inspect.signature(Reader).parameters["max_attempts"].default
    assert max_attempts_of({}) == default
    assert max_attempts_of({"max_attempts": 0}) == 0

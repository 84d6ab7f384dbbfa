"""Middleware and headers on the embedded and the real nsqd, in every world."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any

import pytest

from gnsqsync import Message, Middleware, Publication, Reject, Requeue, envelope
from gnsqsync.errors import ConfigError, NotSent
from tests.integration.conftest import Client
from tests.support.servers import Server, unique
from tests.support.worlds import World

REQUEST: ContextVar[str] = ContextVar("request", default="none")


class Carry(Middleware):
    """Carries a context variable in a header, from the publish to the handler."""

    def publish(self, publication: Publication, proceed: Any) -> Future[None] | None:
        assert publication.headers is not None
        publication.headers["request"] = REQUEST.get()
        result: Future[None] | None = proceed(publication)
        return result

    def handle(
        self, message: Message, handler: Any, proceed: Callable[[Message], object]
    ) -> object:
        REQUEST.set(message.headers.get("request", "no header"))
        return proceed(message)


class Requests(logging.Filter):
    """Notes the request of each log line."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str]] = []

    def filter(self, record: logging.LogRecord) -> bool:
        self.lines.append((REQUEST.get(), record.getMessage()))
        return True


def test_a_context_goes_from_the_publish_to_the_log_lines_of_the_handler(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    log = logging.getLogger("gnsqsync.reader")
    seen = Requests()
    log.addFilter(seen)
    handled: list[tuple[bytes, str]] = []

    def handler(message: Message) -> None:
        handled.append((message.body, REQUEST.get()))
        if message.attempts == 1 and message.body == b"fails":
            raise ValueError

    try:
        writer = client.writer(nsqd, headers=True, middleware=Carry())
        for body in ("fails", "good"):
            token = REQUEST.set(f"of {body}")
            writer.publish(topic, body)
            REQUEST.reset(token)
        writer.publish(topic, b"plain")
        client.consume(
            topic, handler, nsqd, headers=True, middleware=[Carry()], requeue_delay=0, backoff=False
        )
        world.eventually(lambda: len(handled) == 4)
    finally:
        log.removeFilter(seen)
    assert set(handled) == {(b"fails", "of fails"), (b"good", "of good"), (b"plain", "none")}
    failures = [request for request, line in seen.lines if "failed on message" in line]
    assert failures == ["of fails"]
    # Nothing is left of it on the worker.
    assert {request for request, line in seen.lines if "stopped" in line} <= {"none"}


def test_every_way_to_publish_goes_through_it(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    passed: list[tuple[int, bool]] = []

    class Noting(Middleware):
        def publish(self, publication: Publication, proceed: Any) -> Future[None] | None:
            result = proceed(publication)
            passed.append((len(publication.bodies), result is not None))
            return result  # type: ignore[no-any-return]

    got: dict[bytes, dict[str, str]] = {}
    writer = client.writer(nsqd, headers=True, middleware=[Noting()])
    writer.publish(topic, "a", headers={"n": "1"})
    writer.publish_many(topic, [b"b", "c"], headers={"n": "2"})
    future = writer.publish_async(topic, b"d", headers={"n": "ä"})
    world.eventually(future.done)
    assert future.result(0) is None
    writer.publish(topic, b"e", defer=0.01)
    assert passed == [(1, False), (2, False), (1, True), (1, False)]
    client.consume(topic, lambda m: got.__setitem__(m.body, dict(m.headers)), nsqd, headers=True)
    world.eventually(lambda: len(got) == 5)
    keys = {headers.pop("key") for headers in got.values()}
    assert len(keys) == 5 and all(re.fullmatch("[0-9a-f]{32}", key) for key in keys)
    assert got == {b"a": {"n": "1"}, b"b": {"n": "2"}, b"c": {"n": "2"}, b"d": {"n": "ä"}, b"e": {}}


def test_a_key_stays_through_attempts_and_dead_letters(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    seen: list[str] = []

    def handler(message: Message) -> None:
        seen.append(message.headers["key"])
        raise ValueError("not today")

    dead = unique("dead")
    client.writer(nsqd, headers=True).publish(topic, b"x")
    limits: Any = {"max_attempts": 2, "requeue_delay": 0, "backoff": False}
    client.consume(topic, handler, nsqd, headers=True, dead_letter_topic=dead, **limits)
    client.consume(dead, lambda m: seen.append(m.headers["key"]), nsqd, headers=True)
    world.eventually(lambda: len(seen) == 3)
    assert len(set(seen)) == 1


def test_a_key_for_many_messages_is_refused(client: Client, nsqd: Server, topic: str) -> None:
    writer = client.writer(nsqd, headers=True)
    writer.publish_many(topic, [b"a"], headers={"key": "k"})
    with pytest.raises(ConfigError, match="leave it out, and each message gets a key of its own"):
        writer.publish_many(topic, [b"a", b"b"], headers={"key": "k"})


def test_a_reader_without_headers_gets_the_bytes(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    client.writer(nsqd, headers=True).publish(topic, b"x", headers={"a": "b", "key": "k"})
    got: list[Message] = []
    client.consume(topic, got.append, nsqd)
    world.eventually(lambda: got)
    assert got[0].body == envelope.encode({"a": "b", "key": "k"}, b"x")
    assert got[0].headers == {}
    assert (got[0].topic, got[0].channel) == (topic, "ch")


def test_bytes_without_an_envelope_are_a_body(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    bodies = [b"{}", envelope.MAGIC, envelope.MAGIC + b"\xff\xff", b"\xff\xffNH\x02\x00\x00x"]
    client.writer(nsqd).publish_many(topic, bodies)
    got: list[Message] = []
    reader = client.reader(topic, None, nsqd, headers=True, max_in_flight=10)
    with reader:
        for batch in reader.batches(max_messages=10, max_wait=0.1):
            got += batch
            for message in batch:
                message.finish()
            if len(got) == len(bodies):
                break
    assert sorted(message.body for message in got) == sorted(bodies)
    assert all(message.headers == {} for message in got)


class Failing(Middleware):
    """As one whose commit fails, after the handler."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def handle(
        self, message: Message, handler: Any, proceed: Callable[[Message], object]
    ) -> object:
        result = proceed(message)
        if message.attempts == 1:
            raise self.error
        return result


@pytest.mark.parametrize("error", [RuntimeError("commit failed"), Requeue(delay=0)])
def test_a_middleware_that_fails_is_a_handler_that_fails(
    client: Client, nsqd: Server, world: World, topic: str, error: Exception
) -> None:
    attempts: list[int] = []
    client.writer(nsqd).publish(topic, b"x")
    reader = client.consume(
        topic,
        lambda message: attempts.append(message.attempts),
        nsqd,
        middleware=[Failing(error)],
        requeue_delay=0,
        max_backoff_duration=0,
    )
    world.eventually(lambda: attempts == [1, 2] and reader.stats().finished == 1)
    assert reader.stats().requeued == 1


def test_a_middleware_may_skip_the_handler_or_reject(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    class Gate(Middleware):
        def handle(
            self, message: Message, handler: Any, proceed: Callable[[Message], object]
        ) -> object:
            if message.body == b"skip":
                return None
            if message.body == b"bad":
                raise Reject("not allowed")
            return proceed(message)

    handled: list[bytes] = []
    client.writer(nsqd).publish_many(topic, [b"skip", b"bad", b"good"])
    reader = client.consume(
        topic,
        lambda message: handled.append(message.body),
        nsqd,
        middleware=[Gate()],
        on_giving_up="discard",
    )
    world.eventually(lambda: reader.stats().finished == 3)
    assert handled == [b"good"]
    assert reader.stats().gave_up == 1


def test_an_error_of_a_publish_middleware_is_raised(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    class Never(Middleware):
        def publish(self, publication: Publication, proceed: Any) -> Future[None] | None:
            raise NotSent("closed on Sundays")

    writer = client.writer(nsqd, middleware=[Never()])
    with pytest.raises(NotSent, match="closed on Sundays"):
        writer.publish(topic, b"x")
    with pytest.raises(ConfigError, match="empty"):
        client.writer(nsqd, headers=True).publish(topic, b"")


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({"": "x"}, "must be 1 to 255 bytes"),
        ({"a\n": "x"}, "all characters printable"),
        ({"a": 5}, "header 'a' is 5; it must be a str"),
        ({5: "a"}, "a header's name is 5; it must be a str"),
        ({"a": "x" * 65536}, "at most 65535"),
        ({"a": "x\0"}, "it must not have a zero character"),
        ({str(n): "x" for n in range(64)}, "65 headers, the key among them; an envelope holds 64"),
        ({"a": "\udc80"}, "surrogates not allowed"),
        ([("a", "b")], "it must be a dict"),
        ({"key": ""}, "the header 'key' is ''; it must be a str of 1 to 200 printable characters"),
        ({"key": "x" * 201}, "it must be a str of 1 to 200 printable characters"),
        ({"key": 17}, "the header 'key' is 17; it must be a str"),
    ],
)
def test_bad_headers(client: Client, nsqd: Server, topic: str, headers: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        client.writer(nsqd, headers=True).publish(topic, b"x", headers=headers)
    assert says in str(caught.value)
    with pytest.raises(ConfigError, match=r"Writer\(headers=True\)"):
        client.writer(nsqd).publish(topic, b"x", headers={"a": "b"})

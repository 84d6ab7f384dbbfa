"""How a Reader ends, and what is left behind: nothing."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import greenlet
import pytest

from gnsqsync import Message
from gnsqsync.errors import ClosedError
from gnsqsync.stats import StopResult
from tests.integration.conftest import Client, url
from tests.support.servers import Server, Site
from tests.support.worlds import World


def stats_of(server: Server, topic: str) -> Any:
    from gnsqsync import NsqdHTTP

    with NsqdHTTP(url(server)) as http:
        return http.stats(topic=topic).topics[0].channels[0]


def test_stop_lets_handlers_finish_and_gives_back_what_was_not_begun(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    begun: list[Message] = []
    finished: list[Message] = []
    release: list[bool] = []

    def handler(message: Message) -> None:
        begun.append(message)
        world.eventually(lambda: release)
        finished.append(message)

    client.writer(nsqd).publish_many(topic, [b"%d" % n for n in range(6)])
    reader = client.consume(topic, handler, nsqd, concurrency=2, max_in_flight=6)
    world.eventually(lambda: len(begun) == 2 and reader.stats().in_flight == 6)
    reader.stop()
    world.eventually(lambda: reader.stats().in_flight == 2)
    release.append(True)
    result = reader.join()
    assert result == StopResult(unanswered=0, workers_running=0)
    assert result.clean
    assert len(finished) == 2
    # At once and not after a timeout, and without a delay: another consumer gets the other four.
    again: list[Message] = []
    client.consume(topic, again.append, nsqd, max_in_flight=6)
    world.eventually(lambda: len(again) == 4)
    assert {m.body for m in again}.isdisjoint(m.body for m in finished)
    assert stats_of(nsqd, topic).timeout_count == 0


def test_stop_from_inside_a_handler_and_twice(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    def handler(message: Message) -> None:
        reader.stop()
        reader.stop()

    client.writer(nsqd).publish(topic, b"x")
    reader = client.reader(topic, handler, nsqd)
    reader.start(block=False)
    result = reader.join(60)
    assert result is not None
    assert result.clean
    world.eventually(lambda: stats_of(nsqd, topic).in_flight_count == 0)
    assert stats_of(nsqd, topic).depth == 0
    reader.stop()
    assert reader.join() == result


def test_a_blocking_start_returns_the_result(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    reader = client.reader(topic, lambda m: reader.stop(), nsqd)
    client.writer(nsqd).publish(topic, b"x")
    task = world.spawn(reader.start)
    assert task.join() == StopResult(0, 0)


def test_a_handler_that_hangs_is_named_in_the_result(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    begun: list[Message] = []
    release: list[bool] = []

    def handler(message: Message) -> None:
        begun.append(message)
        while not release:
            world.sleep(0.02)

    client.writer(nsqd).publish(topic, b"x")
    reader = client.consume(topic, handler, nsqd)
    world.eventually(lambda: begun)
    reader.stop(timeout=30)
    # A second stop can only shorten the time.
    reader.stop(timeout=0.2)
    result = reader.join(60)
    assert result == StopResult(unanswered=1, workers_running=1)
    assert not result.clean
    # The connection is gone: an answer is too late, and says so.
    assert not begun[0].is_alive
    assert begun[0].finish() is False
    release.append(True)
    world.eventually(lambda: reader._run.workers.working == 0)


def test_stop_waits_for_a_detached_message(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    kept: list[Message] = []

    def handler(message: Message) -> None:
        message.detach()
        kept.append(message)

    client.writer(nsqd).publish(topic, b"x")
    reader = client.consume(topic, handler, nsqd)
    world.eventually(lambda: kept)
    reader.stop(timeout=20)
    world.sleep(0.2)
    assert kept[0].is_alive
    assert kept[0].finish()
    assert reader.join(60) == StopResult(0, 0)
    world.eventually(lambda: stats_of(nsqd, topic).in_flight_count == 0)


def test_stop_before_anything_is_connected(client: Client, world: World, topic: str) -> None:
    reader = client.reader(
        topic,
        lambda m: None,
        nsqd_tcp_addresses="127.0.0.1:1",
        lookupd_http_addresses="127.0.0.1:1",
    )
    reader.start(block=False)
    world.sleep(0.05)
    reader.stop()
    assert reader.join(60) == StopResult(0, 0)


def test_a_handler_that_calls_sys_exit_has_failed(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    bodies: list[bytes] = []

    def handler(message: Message) -> None:
        if message.attempts == 1:
            sys.exit(3)
        bodies.append(message.body)

    client.writer(nsqd).publish_many(topic, [b"a", b"b"])
    client.consume(topic, handler, nsqd, requeue_delay=0, max_backoff_duration=0)
    world.eventually(lambda: sorted(bodies) == [b"a", b"b"])


class Killed(BaseException):
    """No Exception, and of nobody's."""


def test_a_worker_that_is_killed_is_replaced(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    """Greenlets are killed; on threads this is a failure like any other."""
    error = greenlet.GreenletExit if world.name == "gevent" else Killed
    bodies: list[bytes] = []

    def handler(message: Message) -> None:
        if message.attempts == 1:
            raise error
        bodies.append(message.body)

    client.writer(nsqd).publish_many(topic, [b"a", b"b"])
    client.consume(topic, handler, nsqd, requeue_delay=0, max_backoff_duration=0)
    world.eventually(lambda: sorted(bodies) == [b"a", b"b"])


@pytest.mark.parametrize(
    "error", [asyncio.CancelledError, GeneratorExit, Killed, "a kill of the worker"]
)
def test_any_error_of_a_handler_uses_up_the_tries_of_its_message(
    client: Client, nsqd: Server, world: World, topic: str, error: Any
) -> None:
    """The last attempt is followed by a dead letter, and other messages are handled meanwhile."""
    if isinstance(error, str):
        error = greenlet.GreenletExit
    calls: list[bytes] = []

    def handler(message: Message) -> None:
        calls.append(message.body)
        if message.body == b"bad":
            raise error("why")

    options = {"requeue_delay": 0, "backoff": False}
    dead: list[Message] = []
    client.consume(f"{topic}-dead", dead.append, nsqd, headers=True)
    client.writer(nsqd).publish_many(topic, [b"bad", b"good"])
    client.consume(
        topic,
        handler,
        nsqd,
        max_attempts=2,
        dead_letter_topic=f"{topic}-dead",
        headers=True,
        **options,
    )
    world.eventually(lambda: dead)
    assert sorted(calls) == [b"bad", b"bad", b"good"]
    assert dead[0].headers["deaderror"] == f"{error.__module__}.{error.__qualname__}"
    assert dead[0].headers["deadtext"] == "why"


def test_close_waits_for_publishes_under_way(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    writer = client.writer(nsqd)
    futures = [writer.publish_async(topic, b"x" * 1000) for _ in range(500)]
    writer.close()
    assert [future.exception(0) for future in futures] == [None] * 500
    with pytest.raises(ClosedError):
        writer.publish_async(topic, b"x")


def test_stop_does_not_wait_for_the_next_poll(
    client: Client, site: Site, world: World, topic: str
) -> None:
    """Nor for its jitter: the pause between two polls ends with the stop."""
    reader = client.consume(
        topic, lambda m: None, lookupd_http_addresses=url(site.nsqlookupd()), max_in_flight=2
    )
    run = reader._run
    # The first query is over, and its thread waits for a minute.
    world.eventually(lambda: [p.poll.unknown for p in run._discovery._places.values()] == [True])
    started = run.runtime.now()
    reader.stop()
    assert reader.join(60) == StopResult(0, 0)
    assert run.runtime.now() - started < 20
    world.eventually(lambda: not any(task.alive for task in run._discovery.tasks))


def test_messages_left_by_a_stop_come_back_after_their_timeout(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    """As after a crash: nsqd does not requeue when a consumer disconnects."""
    begun: list[Message] = []
    again: list[Message] = []
    release: list[bool] = []

    def handler(message: Message) -> None:
        begun.append(message)
        world.eventually(lambda: release)

    client.writer(nsqd).publish(topic, b"x")
    reader = client.consume(topic, handler, nsqd, msg_timeout=2)
    world.eventually(lambda: begun)
    reader.stop(0)
    assert reader.join(60) == StopResult(unanswered=1, workers_running=1)
    client.consume(topic, again.append, nsqd)
    world.eventually(lambda: again)
    assert (again[0].id, again[0].attempts) == (begun[0].id, 2)
    assert stats_of(nsqd, topic).timeout_count == 1
    release.append(True)
    world.eventually(lambda: not reader._run.workers.working)

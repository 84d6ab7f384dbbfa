"""Reader and Writer on the embedded and the real nsqd, in every world."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from gnsqsync import Message, NsqdHTTP, ReaderGroup, Requeue
from gnsqsync.errors import ClosedError, ConfigError, MessageAnswered
from tests.integration.conftest import Client, address, url
from tests.support.servers import Server, Site, unique
from tests.support.worlds import World


def test_a_message_arrives_as_it_was_published(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    got: list[Message] = []
    before = time.time_ns()
    client.writer(nsqd).publish(topic, b"caf\xc3\xa9 \x00\xff")
    client.consume(topic, got.append, nsqd)
    world.eventually(lambda: got)
    message = got[0]
    assert message.body == b"caf\xc3\xa9 \x00\xff"
    assert message.attempts == 1
    assert len(message.id) == 16
    assert abs(message.timestamp - before) < 60e9
    assert message.nsqd_address == address(nsqd)
    assert message.is_answered
    assert not message.is_alive


def test_text_is_published_as_utf8_and_json_is_parsed(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    got: list[Any] = []
    client.writer(nsqd).publish(topic, json.dumps({"name": "Zoë"}, ensure_ascii=False))
    client.consume(topic, lambda m: got.append(m.json()), nsqd)
    assert world.eventually(lambda: got) == [{"name": "Zoë"}]


def test_publish_many_is_split_and_keeps_its_order(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    bodies = [b"%05d" % n + b"x" * 2000 for n in range(5000)]
    got: list[bytes] = []
    writer = client.writer(nsqd)
    # Two MPUBs and a bit at nsqd's own limit of 5 MiB.
    writer.publish_many(topic, bodies)
    client.consume(topic, lambda m: got.append(m.body), nsqd, max_in_flight=500)
    world.eventually(lambda: len(got) == len(bodies))
    assert sorted(got) == bodies
    assert writer.stats().published == len(bodies)


def test_many_publishers_share_a_writer(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    writer = client.writer(nsqd)

    def publish(who: int) -> None:
        for n in range(200):
            writer.publish(topic, f"{who}-{n}")

    tasks = [world.spawn(publish, who) for who in range(16)]
    for task in tasks:
        task.join(60)
    got: list[str] = []
    client.consume(topic, lambda m: got.append(m.body.decode()), nsqd, max_in_flight=100)
    world.eventually(lambda: len(got) == 3200)
    assert sorted(got) == sorted(f"{who}-{n}" for who in range(16) for n in range(200))


def test_publish_async_ends_when_nsqd_has_said_ok(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    writer = client.writer(nsqd)
    futures = [writer.publish_async(topic, f"{n}") for n in range(100)]
    world.eventually(lambda: all(future.done() for future in futures))
    assert {future.result(0) for future in futures} == {None}
    got: list[bytes] = []
    client.consume(topic, lambda m: got.append(m.body), nsqd)
    world.eventually(lambda: len(got) == 100)


def test_a_deferred_message_comes_later(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    got: list[float] = []
    client.consume(topic, lambda m: got.append(time.monotonic()), nsqd)
    writer = client.writer(nsqd)
    writer.publish(topic, b"now")
    world.eventually(lambda: got)
    # A channel is not scanned for due messages for its first five seconds on the real nsqd.
    started = time.monotonic()
    writer.publish(topic, b"later", defer=0.5)
    world.eventually(lambda: len(got) == 2)
    assert got[1] - started >= 0.45


def test_a_failed_message_is_requeued_and_comes_again(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    attempts: list[int] = []

    def handler(message: Message) -> None:
        attempts.append(message.attempts)
        if message.attempts < 3:
            raise RuntimeError("not yet")

    client.writer(nsqd).publish(topic, b"x")
    reader = client.consume(topic, handler, nsqd, requeue_delay=0, max_backoff_duration=0)
    world.eventually(lambda: len(attempts) == 3)
    assert attempts == [1, 2, 3]
    world.eventually(lambda: reader.stats().finished == 1)
    assert reader.stats().requeued == 2


def test_requeue_says_when_and_whether_to_back_off(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    attempts: list[int] = []

    def handler(message: Message) -> None:
        attempts.append(message.attempts)
        if message.attempts == 1:
            raise Requeue(delay=0, backoff=False)

    client.writer(nsqd).publish(topic, b"x")
    reader = client.consume(topic, handler, nsqd)
    world.eventually(lambda: attempts == [1, 2])
    assert not reader.is_in_backoff


def test_failures_back_off_and_success_ends_it(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    broken = [True]
    done: list[bytes] = []

    def handler(message: Message) -> None:
        if broken[0]:
            raise RuntimeError("downstream is away")
        done.append(message.body)

    writer = client.writer(nsqd)
    writer.publish_many(topic, [b"%d" % n for n in range(20)])
    reader = client.consume(
        topic,
        handler,
        nsqd,
        requeue_delay=0,
        max_in_flight=10,
        max_attempts=0,
        max_backoff_duration=0.4,
        backoff_multiplier=0.1,
        backoff="every_failure",
    )
    world.eventually(lambda: reader.is_in_backoff)
    world.eventually(lambda: reader.stats().connections[0].rdy == 0)
    broken[0] = False
    world.eventually(lambda: len(done) == 20)
    world.eventually(lambda: not reader.is_in_backoff)


def test_a_detached_message_is_answered_later_from_another_thread(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    kept: list[Message] = []

    def handler(message: Message) -> None:
        message.detach()
        kept.append(message)

    client.writer(nsqd).publish_many(topic, [b"a", b"b"])
    reader = client.consume(topic, handler, nsqd, max_in_flight=2)
    world.eventually(lambda: len(kept) == 2)
    assert reader.stats().in_flight == 2
    assert all(message.is_alive for message in kept)
    assert kept[0].touch()
    assert world.spawn(kept[0].finish).join() is True
    assert world.spawn(kept[1].requeue, 0).join() is True
    world.eventually(lambda: len(kept) == 3)
    assert kept[2].body == kept[1].body
    assert kept[2].attempts == 2
    assert kept[2].finish()
    with pytest.raises(MessageAnswered):
        kept[2].finish()
    with pytest.raises(MessageAnswered):
        kept[0].touch()


def test_a_handler_may_answer_by_itself(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    seen: list[int] = []

    def handler(message: Message) -> None:
        seen.append(message.attempts)
        if message.attempts == 1:
            message.requeue(0, backoff=False)
        else:
            message.finish()

    client.writer(nsqd).publish(topic, b"x")
    reader = client.consume(topic, handler, nsqd)
    world.eventually(lambda: reader.stats().finished == 1)
    assert seen == [1, 2]


def test_giving_up_after_max_attempts(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    handled: list[int] = []
    given_up: list[tuple[Message, str]] = []
    dead: list[bytes] = []

    def handler(message: Message) -> None:
        handled.append(message.attempts)
        raise RuntimeError("never works")

    client.writer(nsqd).publish(topic, b"poison")
    reader = client.consume(
        topic,
        handler,
        nsqd,
        max_attempts=2,
        requeue_delay=0,
        max_backoff_duration=0,
        on_giving_up=lambda message, error: given_up.append((message, str(error))),
        dead_letter_topic=topic + "_dead",
    )
    client.consume(topic + "_dead", lambda m: dead.append(m.body), nsqd)
    assert world.eventually(lambda: dead) == [b"poison"]
    assert handled == [1, 2]
    assert [(message.body, error) for message, error in given_up] == [(b"poison", "never works")]
    world.eventually(lambda: reader.stats().gave_up == 1)
    world.eventually(lambda: reader.stats().in_flight == 0)


def test_discovery_finds_nsqds_and_new_ones(
    client: Client, site: Site, world: World, topic: str
) -> None:
    lookupd = site.own_nsqlookupd()
    flag = f"-lookupd-tcp-address={address(lookupd)}"
    first, second = site.own_nsqd(flag), site.own_nsqd(flag)
    got: list[bytes] = []
    reader = client.consume(
        topic,
        lambda m: got.append(m.body),
        lookupd_http_addresses=url(lookupd),
        lookupd_poll_interval=0.2,
        max_in_flight=4,
    )
    client.writer(first).publish(topic, b"one")
    world.eventually(lambda: got == [b"one"])
    client.writer(second).publish(topic, b"two")
    world.eventually(lambda: sorted(got) == [b"one", b"two"])
    assert len(reader.stats().connections) == 2
    assert sum(c.rdy for c in reader.stats().connections) <= 4


def ready_count(nsqd: Server, topic: str) -> int:
    """The RDY that nsqd has heard from the only consumer."""
    with NsqdHTTP(url(nsqd)) as http:
        return http.stats(topic=topic).topics[0].channels[0].clients[0].ready_count


def test_handlers_run_side_by_side(client: Client, nsqd: Server, world: World, topic: str) -> None:
    begun: list[Message] = []
    release: list[bool] = []

    def handler(message: Message) -> None:
        begun.append(message)
        world.eventually(lambda: release)

    client.writer(nsqd).publish_many(topic, [b"x"] * 8)
    reader = client.consume(topic, handler, nsqd, concurrency=4, max_in_flight=8)
    world.eventually(lambda: len(begun) == 4 and reader.stats().in_flight == 8)
    world.sleep(0.1)
    assert len(begun) == 4
    release.append(True)
    world.eventually(lambda: reader.stats().finished == 8)


def test_pause_and_resume(client: Client, nsqd: Server, world: World, topic: str) -> None:
    got: list[bytes] = []
    reader = client.consume(topic, lambda m: got.append(m.body), nsqd, max_in_flight=5)
    writer = client.writer(nsqd)
    writer.publish(topic, b"1")
    world.eventually(lambda: got == [b"1"])
    reader.pause()
    world.eventually(lambda: ready_count(nsqd, topic) == 0)
    writer.publish(topic, b"2")
    world.sleep(0.5)
    assert got == [b"1"]
    assert reader.stats().is_paused
    reader.resume()
    world.eventually(lambda: got == [b"1", b"2"])
    reader.set_max_in_flight(0)
    world.eventually(lambda: reader.stats().connections[0].rdy == 0)
    reader.set_max_in_flight(3)
    writer.publish(topic, b"3")
    world.eventually(lambda: got == [b"1", b"2", b"3"])
    with pytest.raises(ConfigError, match="max_in_flight is -1; allowed is 0 or more"):
        reader.set_max_in_flight(-1)


def test_heartbeats_are_answered_while_the_handler_is_busy(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    started: list[int] = []

    def handler(message: Message) -> None:
        started.append(message.attempts)
        if len(started) == 1:
            world.sleep(2.5)

    client.writer(nsqd).publish_many(topic, [b"a", b"b", b"c"])
    reader = client.consume(topic, handler, nsqd, heartbeat_interval=1, max_in_flight=3)
    world.eventually(lambda: reader.stats().finished == 3)
    # The silence of two heartbeats would have ended the connection, and attempts would rise.
    assert reader.stats().connections[0].connected_seconds > 2.3
    assert started == [1, 1, 1]


def test_an_idle_writer_keeps_its_connection(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    writer = client.writer(nsqd, heartbeat_interval=1)
    writer.publish(topic, b"first")
    world.sleep(2.5)
    assert writer.is_connected
    assert writer.stats().connections[0].connected_seconds > 2.3
    writer.publish(topic, b"second")


def test_batches(client: Client, nsqd: Server, world: World, topic: str) -> None:
    client.writer(nsqd).publish_many(topic, [b"%d" % n for n in range(25)])
    reader = client.reader(topic, None, nsqd, max_in_flight=10)
    got: list[bytes] = []
    with reader:
        for batch in reader.batches(10, 1.0):
            assert len(batch) <= 10
            for message in batch:
                got.append(message.body)
                assert message.finish()
            if len(got) == 25:
                break
        world.eventually(lambda: reader.stats().finished == 25)
    assert sorted(got, key=int) == [b"%d" % n for n in range(25)]


def test_iteration_gives_back_what_was_not_answered(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    client.writer(nsqd).publish_many(topic, [b"a", b"b"])
    with client.reader(topic, None, nsqd, max_in_flight=2) as reader:
        for message in reader:
            first = message
            break
    # Not after the message timeout of a minute, but at once.
    got: list[tuple[bytes, int]] = []
    client.consume(topic, lambda m: got.append((m.body, m.attempts)), nsqd, max_in_flight=2)
    world.eventually(lambda: len(got) == 2)
    assert (first.body, 2) in got


def test_batches_refuse_what_cannot_work(client: Client, nsqd: Server, topic: str) -> None:
    with pytest.raises(ConfigError, match="max_messages is 5, but max_in_flight is 1"):
        client.reader(topic, None, nsqd).batches(5, 1.0)
    with pytest.raises(ConfigError, match="has a handler"):
        client.reader(topic, print, nsqd).batches(1, 1.0)


def test_a_group_of_readers_shares_a_limit(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    got: list[bytes] = []
    readers = [client.reader(f"{topic}_{n}", lambda m: got.append(m.body), nsqd) for n in range(3)]
    writer = client.writer(nsqd)
    for n in range(3):
        writer.publish_many(f"{topic}_{n}", [b"%d" % n] * 10)
    group = ReaderGroup(readers, max_in_flight=6, runtime=world.runtime)
    group.start(block=False)
    try:
        world.eventually(lambda: len(got) == 30)
        assert sum(reader.stats().max_in_flight for reader in readers) <= 6
    finally:
        group.stop()
        results = group.join()
    assert [result.clean for result in results] == [True, True, True]


def test_stats_and_names(client: Client, nsqd: Server, world: World, topic: str) -> None:
    reader = client.reader(topic, lambda m: None, nsqd)
    assert repr(reader) == f"<Reader {topic}/ch>"
    with pytest.raises(ClosedError, match="not started"):
        reader.stats()
    reader.start(block=False)
    with pytest.raises(ClosedError, match="started once"):
        reader.start()
    world.eventually(lambda: reader.stats().connections)
    assert not reader.is_starved
    writer = client.writer(nsqd)
    assert not writer.is_connected
    writer.ping()
    assert writer.is_connected
    writer.close()
    with pytest.raises(ClosedError, match="the Writer is closed"):
        writer.publish(topic, b"x")
    writer.close()


def test_ephemeral_names(client: Client, nsqd: Server, world: World) -> None:
    topic = unique("eph") + "#ephemeral"
    got: list[bytes] = []
    reader = client.consume(topic, lambda m: got.append(m.body), nsqd, channel="c#ephemeral")
    world.eventually(lambda: reader.stats().connections)
    client.writer(nsqd).publish(topic, b"x")
    assert world.eventually(lambda: got) == [b"x"]

"""ReaderGroup: one limit for all as nsqd sees it, one stop, and one error that ends all."""

from __future__ import annotations

import pytest

from gnsqsync import Message, NsqdHTTP, Reader, ReaderGroup
from gnsqsync.errors import ClosedError, ConfigError, NSQError
from tests.integration.conftest import Client, url
from tests.support.servers import Server, Site
from tests.support.worlds import World

LIMIT = 6


def in_flight_at(http: NsqdHTTP, topics: list[str]) -> int:
    """What nsqd counts as unanswered on all of them, the lesser of two looks.

    The real nsqd counts one topic after the other, and messages come and go meanwhile.
    """
    looks = []
    for _ in range(2):
        found = [t for t in http.stats().topics if t.topic_name in topics]
        looks.append(sum(channel.in_flight_count for topic in found for channel in topic.channels))
    return min(looks)


def test_a_shared_limit_is_never_exceeded_at_nsqd(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    topics = [f"{topic}_{n}" for n in range(3)]
    done: list[bytes] = []

    def handler(message: Message) -> None:
        world.sleep(0.01)
        done.append(message.body)

    # Each alone would take 50.
    readers = [
        client.reader(name, handler, nsqd, concurrency=4, max_in_flight=50) for name in topics
    ]
    writer = client.writer(nsqd)
    for name in topics:
        writer.publish_many(name, [b"x"] * 100)
    group = ReaderGroup(readers, max_in_flight=LIMIT, runtime=world.runtime)
    most = 0
    with NsqdHTTP(url(nsqd), runtime=world.runtime) as http, group:
        while len(done) < 200:
            most = max(most, in_flight_at(http, topics))
            world.sleep(0.01)
        # The last one has all the work now, and gets what the others lend.
        writer.publish_many(topics[0], [b"y"] * 100)
        world.eventually(lambda: len(done) == 400)
        assert sum(reader.stats().max_in_flight for reader in readers) <= LIMIT
    assert 1 < most <= LIMIT


def test_the_error_of_any_reader_ends_all(
    client: Client, site: Site, nsqd: Server, world: World, topic: str
) -> None:
    # It is the last one, so nobody who waits for the first would hear of it.
    readers = [
        client.reader(topic, print, nsqd),
        client.reader(topic, print, nsqd, msg_timeout=900, channel="other"),
    ]
    strict = site.nsqd("-max-msg-timeout=10s")
    refused = client.reader(topic, print, strict, msg_timeout=60)
    group = ReaderGroup([*readers, refused], runtime=world.runtime)
    with pytest.raises(NSQError, match="E_BAD_BODY"):
        group.start()
    for reader in readers:
        result = reader.join(0)
        assert result is not None
        assert result.clean


def test_a_stop_ends_all_and_the_results_are_in_order(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    stuck: list[Message] = []

    def keep(message: Message) -> None:
        message.detach()
        stuck.append(message)

    client.writer(nsqd).publish(f"{topic}_b", b"x")
    readers = [client.reader(f"{topic}_a", print, nsqd), client.reader(f"{topic}_b", keep, nsqd)]
    group = ReaderGroup(readers, runtime=world.runtime)
    with pytest.raises(ClosedError, match="not started"):
        group.join()
    group.start(block=False)
    with pytest.raises(ClosedError, match="started once"):
        group.start()
    world.eventually(lambda: stuck)
    group.stop(0.2)
    first, second = group.join()
    assert (first.unanswered, second.unanswered) == (0, 1)


def test_a_reader_that_cannot_start_leaves_none_running(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    readers = [client.reader(topic, print, nsqd), client.reader(topic, print, nsqd, channel="b")]
    readers[1].start(block=False)
    with pytest.raises(ClosedError, match="started once"):
        ReaderGroup(readers, runtime=world.runtime).start()
    assert readers[0].join(60) is not None
    assert readers[1].join(60) is not None


@pytest.mark.parametrize("readers", [[], ["x"]])
def test_objects_that_are_no_group_are_refused(readers: list[Reader]) -> None:
    with pytest.raises(ConfigError, match="needs one Reader or more"):
        ReaderGroup(readers)

"""TopicGroup over two nsqlookupds and their nsqds: topics come, share a limit, go, and all stop."""

from __future__ import annotations

import pytest

from gnsqsync import LookupdHTTP, Message, NsqdHTTP, Reader, TopicGroup
from gnsqsync.stats import StopResult
from tests.integration.conftest import Client, url
from tests.integration.test_discovery import OFTEN, Cluster
from tests.integration.test_group import in_flight_at
from tests.support.servers import Site
from tests.support.worlds import World

LIMIT = 6


@pytest.fixture
def cluster(site: Site, world: World, topic: str) -> Cluster:
    return Cluster(site, world, topic)


class Consumers:
    """A TopicGroup of the test's topics, and what its Readers got."""

    def __init__(self, cluster: Cluster, world: World, topic: str) -> None:
        self.got: list[tuple[str, bytes]] = []
        self.made: list[str] = []
        self._cluster = cluster
        self._world = world
        self.group = TopicGroup(
            f"^{topic}",
            self._reader,
            lookupd_http_addresses=cluster.urls,
            lookupd_poll_interval=OFTEN,
            max_in_flight=LIMIT,
            runtime=world.runtime,
        )

    def _reader(self, topic: str) -> Reader:
        self.made.append(topic)

        def handle(message: Message) -> None:
            self._world.sleep(0.002)
            self.got.append((topic, message.body))

        return Reader(
            topic,
            "ch",
            handle,
            lookupd_http_addresses=self._cluster.urls,
            lookupd_poll_interval=OFTEN,
            # Each alone would take that.
            max_in_flight=50,
            concurrency=4,
            runtime=self._world.runtime,
        )

    @property
    def topics(self) -> list[str]:
        return [reader.topic for reader in self.group.readers]


@pytest.fixture
def consumers(cluster: Cluster, world: World, topic: str) -> Consumers:
    return Consumers(cluster, world, topic)


def test_topics_come_and_go(
    client: Client, cluster: Cluster, consumers: Consumers, world: World, topic: str
) -> None:
    one, two = cluster.nsqd(), cluster.nsqd()
    first, second, brief = f"{topic}_1", f"{topic}_2", f"{topic}_3"
    client.writer(one).publish(first, b"before")
    client.writer(one).publish(f"x_{topic}", b"not ours")
    with consumers.group as group:
        # What was there before the Reader is not lost: its channel is the first.
        world.eventually(lambda: consumers.got == [(first, b"before")])
        client.writer(two).publish(second, b"later")
        world.eventually(lambda: (second, b"later") in consumers.got)
        # The same topic at another nsqd is that Reader's.
        client.writer(two).publish(first, b"elsewhere")
        world.eventually(lambda: (first, b"elsewhere") in consumers.got)
        client.writer(two).publish(brief, b"brief")
        world.eventually(lambda: (brief, b"brief") in consumers.got)
        assert consumers.made == consumers.topics == [first, second, brief]
        # nsqlookupds keep topics whose nsqd has died, and so do we, until they are deleted.
        two.kill()
        world.eventually(lambda: not group.readers[2].stats().connections)
        for lookupd in cluster.lookupds:
            with LookupdHTTP(url(lookupd), runtime=world.runtime) as http:
                assert {second, brief} <= set(http.topics())
                assert brief in consumers.topics
        for lookupd in cluster.lookupds:
            with LookupdHTTP(url(lookupd), runtime=world.runtime) as http:
                http.delete_topic(brief)
        world.eventually(lambda: consumers.topics == [first, second])
        client.writer(one).publish(brief, b"again")
        world.eventually(lambda: (brief, b"again") in consumers.got)
        assert consumers.made == [first, second, brief, brief]
    assert group.join() == [StopResult(0, 0)] * 3


def test_the_limit_holds_for_all_topics_at_nsqd(
    client: Client, cluster: Cluster, consumers: Consumers, world: World, topic: str
) -> None:
    nsqd = cluster.nsqd()
    writer = client.writer(nsqd)
    topics = [f"{topic}_{n}" for n in range(3)]
    most = 0
    with NsqdHTTP(url(nsqd), runtime=world.runtime) as http, consumers.group:
        for number, name in enumerate(topics, 1):
            writer.publish_many(name, [b"x"] * 200)
            while len(consumers.got) < 200 * number - 50:
                most = max(most, in_flight_at(http, topics))
                world.sleep(0.01)
        world.eventually(lambda: len(consumers.got) == 600)
        shares = [reader.stats().max_in_flight for reader in consumers.group.readers]
        assert sum(shares) <= LIMIT
    assert 1 < most <= LIMIT


def test_a_killed_nsqlookupd_changes_nothing(
    client: Client, cluster: Cluster, consumers: Consumers, world: World, topic: str
) -> None:
    nsqd = cluster.nsqd()
    client.writer(nsqd).publish(topic, b"1")
    with consumers.group:
        world.eventually(lambda: consumers.got)
        cluster.lookupds[0].kill()
        client.writer(nsqd).publish(f"{topic}_new", b"2")
        world.eventually(lambda: len(consumers.got) == 2)
        # It forgets everything, until nsqd's next ping; the other one does not.
        cluster.lookupds[0].start()
        client.writer(nsqd).publish(topic, b"3")
        world.eventually(lambda: len(consumers.got) == 3)
        assert consumers.made == consumers.topics == [topic, f"{topic}_new"]

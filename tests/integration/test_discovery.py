"""Discovery over running nsqlookupds and nsqds: what comes, goes, restarts, and exists in time."""

from __future__ import annotations

import logging

import pytest

from gnsqsync import LookupdHTTP, Message, NsqdHTTP, Writer
from gnsqsync.errors import HTTPError, NotSent
from tests.integration.conftest import Client, address, url
from tests.support.servers import Server, Site
from tests.support.worlds import World

OFTEN = 0.1


class Cluster:
    """nsqds that register at all of two nsqlookupds, and what their APIs say of one topic."""

    def __init__(self, site: Site, world: World, topic: str) -> None:
        self.site = site
        self.world = world
        self.topic = topic
        self.lookupds = [site.own_nsqlookupd(), site.own_nsqlookupd()]

    def nsqd(self) -> Server:
        flags = [f"-lookupd-tcp-address={address(lookupd)}" for lookupd in self.lookupds]
        server = self.site.own_nsqd(*flags)
        for lookupd in self.lookupds:
            self.world.eventually(lambda at=lookupd: server.http_address[1] in self.nodes(at))
        return server

    def nodes(self, lookupd: Server) -> list[int]:
        with LookupdHTTP(url(lookupd), runtime=self.world.runtime) as http:
            return [node.http_port for node in http.nodes()]

    def lists(self, lookupd: Server, *nsqds: Server) -> bool:
        """Whether it lists exactly these for the topic."""
        with LookupdHTTP(url(lookupd), runtime=self.world.runtime) as http:
            try:
                producers = http.lookup(self.topic).producers
            except HTTPError:
                producers = ()
        return {p.tcp_port for p in producers} == {n.tcp_address[1] for n in nsqds}

    def channel_depth(self, nsqd: Server, channel: str) -> int | None:
        """Messages that wait in the channel there; None when it has no such channel."""
        with NsqdHTTP(url(nsqd), runtime=self.world.runtime) as http:
            for topic in http.stats(self.topic).topics:
                for found in topic.channels:
                    if found.channel_name == channel:
                        return found.depth
        return None

    def topic_count(self, nsqd: Server) -> int:
        with NsqdHTTP(url(nsqd), runtime=self.world.runtime) as http:
            return sum(found.message_count for found in http.stats(self.topic).topics)

    def consumers(self, nsqd: Server) -> int:
        with NsqdHTTP(url(nsqd), runtime=self.world.runtime) as http:
            return sum(c.client_count for t in http.stats(self.topic).topics for c in t.channels)

    @property
    def urls(self) -> list[str]:
        return [url(lookupd) for lookupd in self.lookupds]


@pytest.fixture
def cluster(site: Site, world: World, topic: str) -> Cluster:
    return Cluster(site, world, topic)


def test_nsqlookupds_that_restart_or_die_close_nothing(
    client: Client, cluster: Cluster, world: World, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gnsqsync.lookupd")
    nsqd = cluster.nsqd()
    got: list[Message] = []
    reader = client.consume(
        topic,
        got.append,
        lookupd_http_addresses=cluster.urls,
        lookupd_poll_interval=OFTEN,
        on_giving_up="discard",
    )
    writer = client.writer(nsqd)
    writer.publish(topic, b"1")
    world.eventually(lambda: len(got) == 1)
    for lookupd in cluster.lookupds:
        lookupd.kill()
    # Each is told of once.
    world.eventually(lambda: caplog.text.count(f"lookup of {topic} at") >= 2)
    # They come back without a memory, and stay so until nsqd's next ping (15 s).
    for lookupd in cluster.lookupds:
        lookupd.start()
    world.eventually(lambda: caplog.text.count("works again") == 2)
    writer.publish(topic, b"2")
    world.eventually(lambda: len(got) == 2)
    (connection,) = reader.stats().connections
    assert connection.received == 2
    assert not [r for r in caplog.records if r.name == "gnsqsync.reader" and r.levelno > 20]


def test_a_topic_that_is_deleted_stays_so_until_somebody_publishes(
    client: Client, cluster: Cluster, world: World, topic: str
) -> None:
    """nsqd closes the connection of its Reader, whose SUB would create the topic again."""
    nsqd = cluster.nsqd()
    got: list[bytes] = []
    reader = client.consume(
        topic, lambda m: got.append(m.body), lookupd_http_addresses=cluster.urls
    )
    with NsqdHTTP(url(nsqd), runtime=world.runtime) as http:
        http.create_topic(topic)
        for lookupd in cluster.lookupds:
            world.eventually(lambda at=lookupd: cluster.lists(at, nsqd))
        # Not to wait for the next poll.
        reader._run._discovery.hurry(0.0)  # type: ignore[union-attr]
        world.eventually(lambda: cluster.consumers(nsqd) == 1)
        http.delete_topic(topic)
        world.eventually(lambda: not reader.stats().connections)
        # The dial would have come within half a second.
        world.sleep(1.5)
        assert http.stats(topic).topics == ()
        http.pub(topic, "new")
        world.eventually(lambda: got == [b"new"])


def test_a_writer_finds_nsqds_and_leaves_those_that_go(
    client: Client, cluster: Cluster, world: World, topic: str
) -> None:
    writer = Writer(
        lookupd_http_addresses=cluster.urls,
        lookupd_poll_interval=OFTEN,
        runtime=world.runtime,
    )
    client._open.append(writer)
    with pytest.raises(NotSent, match="no nsqlookupd lists one"):
        writer.publish(topic, b"nobody is there", timeout=0.3)

    def found(*nsqds: Server) -> bool:
        """A publish, and whether exactly these are connected."""
        writer.publish(topic, b"x")
        connected = {connection.address for connection in writer.stats().connections}
        return connected == {address(nsqd) for nsqd in nsqds}

    stays = cluster.nsqd()
    world.eventually(lambda: found(stays))
    goes = cluster.nsqd()
    world.eventually(lambda: found(stays, goes) and cluster.topic_count(goes))
    for lookupd in cluster.lookupds:
        world.eventually(lambda at=lookupd: cluster.lists(at, stays, goes))

    def passed_over() -> bool:
        before = cluster.topic_count(goes)
        return all(found(stays, goes) for _ in range(4)) and cluster.topic_count(goes) == before

    assert not passed_over()
    # Tombstoned for all of its topics, here one: it gets nothing new.
    for lookupd in cluster.urls:
        with LookupdHTTP(lookupd, runtime=world.runtime) as http:
            http.tombstone_topic(topic, f"127.0.0.1:{goes.http_address[1]}")
    world.eventually(passed_over)
    goes.stop()
    world.eventually(lambda: found(stays))


def test_nsqlookupds_are_added_and_removed_while_it_runs(
    client: Client, cluster: Cluster, world: World, topic: str
) -> None:
    direct, found = cluster.site.nsqd(), cluster.nsqd()
    got: list[bytes] = []
    reader = client.consume(
        topic,
        lambda m: got.append(m.body),
        direct,
        lookupd_poll_interval=OFTEN,
        max_in_flight=4,
    )
    client.writer(found).publish(topic, b"found")
    reader.add_lookupd(cluster.urls[0])
    world.eventually(lambda: got == [b"found"])
    reader.remove_lookupd(cluster.urls[0])
    reader.add_lookupd(cluster.urls[1])
    client.writer(found).publish(topic, b"still")
    client.writer(direct).publish(topic, b"direct")
    world.eventually(lambda: sorted(got) == [b"direct", b"found", b"still"])
    assert cluster.consumers(found) == 1


def test_an_nsqd_is_removed_in_good_order(
    client: Client, site: Site, world: World, topic: str
) -> None:
    leaves, stays = site.nsqds(2)
    begun: list[Message] = []
    go: list[bool] = []

    def handler(message: Message) -> None:
        begun.append(message)
        world.eventually(lambda: go)

    client.writer(leaves).publish_many(topic, [b"%d" % n for n in range(5)])
    reader = client.consume(topic, handler, leaves, stays, max_in_flight=20, latency="throughput")
    world.eventually(lambda: begun and reader.stats().in_flight == 5)
    reader.remove_nsqd(address(leaves))

    def channel() -> tuple[int, int, int]:
        with NsqdHTTP(url(leaves), runtime=world.runtime) as http:
            (found,) = http.stats(topic).topics[0].channels
        return found.depth, found.in_flight_count, found.client_count

    # What was not begun is there for others at once; the one at work is still ours.
    world.eventually(lambda: channel() == (4, 1, 1))
    go.append(True)
    world.eventually(lambda: channel() == (4, 0, 0))
    assert len(begun) == 1
    world.eventually(lambda: len(reader.stats().connections) == 1)
    assert reader.stats().connections[0].address == address(stays)
    reader.add_nsqd(address(leaves))
    world.eventually(lambda: channel() == (0, 0, 1))
    assert len(begun) == 5


def test_ensure_channel_keeps_messages_published_before_a_consumer(
    client: Client, cluster: Cluster, world: World, topic: str
) -> None:
    known = cluster.nsqd()
    with NsqdHTTP(url(known), runtime=world.runtime) as http:
        http.create_topic(topic)
    world.eventually(lambda: all(cluster.lists(at, known) for at in cluster.lookupds))
    reader = client.reader(topic, None, lookupd_http_addresses=cluster.urls, channel="audit")
    reader.ensure_channel()
    # An nsqd that is new to the topic asks the nsqlookupds for its channels.
    new = cluster.nsqd()
    for nsqd in (known, new):
        client.writer(nsqd).publish(topic, b"early")
        world.eventually(lambda at=nsqd: cluster.channel_depth(at, "audit") == 1)
    # Another channel that nobody made has missed it.
    late = client.reader(topic, None, known, channel="late")
    late.ensure_channel()
    assert cluster.channel_depth(known, "late") == 0
    client.writer(known).publish(topic, b"more")
    world.eventually(lambda: cluster.channel_depth(known, "late") == 1)
    assert cluster.consumers(known) == 0


def test_ensure_channel_at_direct_nsqds(
    client: Client, cluster: Cluster, site: Site, world: World, topic: str
) -> None:
    nsqds = site.nsqds(3)
    client.reader(topic, None, *nsqds, channel="audit").ensure_channel()
    for nsqd in nsqds:
        assert cluster.channel_depth(nsqd, "audit") == 0
        client.writer(nsqd).publish(topic, b"early")
        world.eventually(lambda at=nsqd: cluster.channel_depth(at, "audit") == 1)
        world.eventually(lambda at=nsqd: cluster.consumers(at) == 0)

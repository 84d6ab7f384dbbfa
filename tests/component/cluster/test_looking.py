"""Looks at embedded servers: what is collected, and that nothing at an nsqd is changed by it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gnsqsync import ConnectionOptions, LookupdHTTP, NsqdHTTP
from gnsqsync.cluster.looking import Question, look
from gnsqsync.cluster.servers import Servers
from gnsqsync.cluster.sight import Nsqd as Seen
from gnsqsync.cluster.totals import totals
from gnsqsync.embedded import Nsqd, Nsqlookupd
from gnsqsync.errors import ConfigError
from tests.support.waiting import eventually
from tests.support.world import World


class Site:
    """An nsqlookupd, and an nsqd with a topic, a channel and three messages."""

    def __init__(self, lookupd: Nsqlookupd, nsqd: Nsqd) -> None:
        self.lookupd = lookupd
        self.nsqd = nsqd


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Nsqlookupd() as lookupd:
        flags = {"lookupd_tcp_addresses": lookupd.tcp_address, "broadcast_address": "127.0.0.1"}
        with Nsqd(**flags) as nsqd, NsqdHTTP(nsqd.http_address) as client:  # type: ignore[arg-type]
            client.create_topic("t")
            client.create_channel("t", "c")
            client.mpub("t", [b"1", b"2", b"3"])
            with LookupdHTTP(lookupd.http_address) as asked:
                eventually(lambda: [node.topics for node in asked.nodes()] == [("t",)])
            eventually(lambda: client.stats("t").topics[0].channels[0].depth == 3)
            yield Site(lookupd, nsqd)


def one(question: Question) -> Seen:
    (nsqd,) = look(question).nsqds
    return nsqd


def test_an_nsqd_that_nsqlookupd_lists(site: Site, world: World) -> None:
    question = Question(
        lookupd_http=(site.lookupd.http_address,), seconds=0.1, runtime=world.runtime
    )
    seen = look(question)
    (nsqd,) = seen.nsqds
    assert nsqd.name == site.nsqd.tcp_address
    assert nsqd.error == "" and nsqd.health == "OK"
    assert nsqd.tcp is not None and nsqd.tcp.verdict == "good"
    assert nsqd.http is not None and nsqd.http.verdict == "good"
    assert nsqd.agreed is not None and nsqd.agreed.max_rdy_count == 2500
    assert nsqd.limits["mem_queue_size"] == 10000
    assert nsqd.limits["msg_timeout"] == 60_000_000_000
    assert nsqd.ahead is not None and abs(nsqd.ahead) < 3
    assert nsqd.waiting == 3
    assert nsqd.topics_before.keys() == {"t"}
    assert [node.topics for node in nsqd.listed.values()] == [("t",)]
    (lookupd,) = seen.lookupds
    assert lookupd.error == "" and lookupd.version
    assert lookupd.ahead is not None and abs(lookupd.ahead) < 3
    assert seen.seconds >= 0.1


def test_the_same_nsqd_by_three_addresses_is_one(site: Site) -> None:
    seen = one(
        Question(
            nsqd_tcp=site.nsqd.tcp_address,
            nsqd_http=(site.nsqd.http_address, f"http://{site.nsqd.http_address}"),
            lookupd_http=(site.lookupd.http_address,),
            seconds=0.1,
        )
    )
    assert seen.name == site.nsqd.tcp_address


def test_the_http_address_tells_the_tcp_address(site: Site) -> None:
    seen = one(Question(nsqd_http=(site.nsqd.http_address,), seconds=0.1))
    assert seen.name == site.nsqd.tcp_address
    assert seen.listed == {}
    assert seen.tcp is not None and seen.tcp.verdict == "good"


def test_a_tcp_address_whose_next_port_is_no_http_api(site: Site) -> None:
    """The servers of a test have ports that do not follow each other."""
    seen = one(Question(nsqd_tcp=site.nsqd.tcp_address, seconds=0.1))
    assert seen.name == site.nsqd.tcp_address
    assert seen.tcp is not None and seen.tcp.verdict == "good"


def test_a_look_leaves_no_channel_and_no_consumer(site: Site) -> None:
    look(Question(lookupd_http=(site.lookupd.http_address,), seconds=0.1))
    with NsqdHTTP(site.nsqd.http_address) as client:
        (topic,) = client.stats().topics
        (channel,) = topic.channels
    assert (channel.channel_name, channel.depth, channel.clients) == ("c", 3, ())


def test_an_address_map_leads_to_the_nsqd(site: Site) -> None:
    away = ConnectionOptions(address_map=lambda address: "127.0.0.1:1")
    seen = one(Question(lookupd_http=(site.lookupd.http_address,), seconds=0.1, options=away))
    assert seen.tcp is not None and seen.tcp.verdict == "away"
    assert seen.http is not None and seen.http.verdict == "away"
    assert seen.error and seen.info is None


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (Question(), "there is no address to ask"),
        (Question(nsqd_http=("127.0.0.1:1",), topic="a b"), "topic"),
        (Question(nsqd_http=("127.0.0.1:1",), channel="a b"), "channel"),
        (Question(nsqd_http=("127.0.0.1:0x",)), "port"),
        (Question(nsqd_http=("127.0.0.1:1",), seconds=0.0), "seconds"),
    ],
)
def test_a_wrong_question(question: Question, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        look(question)


def test_servers_and_totals(site: Site) -> None:
    with pytest.raises(ConfigError, match="'no address:x' has no valid host"):
        Servers(["127.0.0.1:1", "no address:x"], [site.lookupd.http_address])
    servers = Servers(["127.0.0.1:1"], [site.lookupd.http_address])
    try:
        found = servers.find()
        asked = servers.ask(found.nsqds, lambda nsqd: nsqd.stats())
        assert list(found.nsqds) == ["127.0.0.1:1", site.nsqd.http_address]
        assert not found.bad
        assert list(asked.failures) == ["127.0.0.1:1"]
        total = totals(asked.answers.values())["t"]
        assert (total.messages, total.channels["c"].depth) == (3, 3)
    finally:
        servers.close()

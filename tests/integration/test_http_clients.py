"""NsqdHTTP and LookupdHTTP against the real servers and the embedded ones."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gnsqsync.errors import ConnectionLost, HTTPError
from gnsqsync.http.clients import LookupdHTTP, NsqdHTTP
from tests.support.servers import Server, Site, unique


@pytest.fixture
def nsqd(site: Site) -> Iterator[NsqdHTTP]:
    with NsqdHTTP(site.nsqd().http_address) as client:
        yield client


@pytest.fixture
def lookupd(site: Site) -> Iterator[LookupdHTTP]:
    with LookupdHTTP(site.nsqlookupd().http_address) as client:
        yield client


def test_ping_and_info(site: Site, nsqd: NsqdHTTP) -> None:
    server = site.nsqd()
    assert nsqd.ping() == "OK"
    info = nsqd.info()
    assert info.version
    assert (info.tcp_port, info.http_port) == (server.tcp_address[1], server.http_address[1])
    assert info.broadcast_address == "127.0.0.1"
    assert info.max_heartbeat_interval == 60.0
    assert info.max_output_buffer_timeout == 30.0


def test_publish_and_stats(nsqd: NsqdHTTP) -> None:
    topic = unique()
    nsqd.create_topic(topic)
    nsqd.create_channel(topic, "c")
    nsqd.pub(topic, "zwölf")
    nsqd.mpub(topic, [b"a\nb", b"\x00"])
    nsqd.pub(topic, b"later", defer=60)
    (found,) = nsqd.stats(topic).topics
    assert found.topic_name == topic
    assert found.message_count == 4
    assert found.message_bytes == len("zwölf".encode()) + 3 + 1 + 5
    (channel,) = found.channels
    assert (channel.channel_name, channel.client_count, channel.clients) == ("c", 0, ())
    assert found.depth + channel.depth + channel.deferred_count == 4
    assert nsqd.stats(topic, "other").topics == ()
    assert nsqd.stats(unique("none")).topics == ()


def test_stats_leave_out_what_was_not_asked_for(nsqd: NsqdHTTP) -> None:
    assert nsqd.stats(include_mem=True).memory is not None
    stats = nsqd.stats(include_mem=False, include_clients=False)
    assert stats.memory is None
    assert stats.producers == ()
    assert stats.health == "OK"
    topic = unique()
    nsqd.create_topic(topic)
    assert f"[{topic}" in nsqd.stats_text(topic, include_mem=False)


def test_a_consumer_and_a_publisher_are_seen(site: Site, nsqd: NsqdHTTP) -> None:
    topic = unique()
    client = site.client(site.nsqd())
    body = b'{"client_id": "me", "hostname": "here", "user_agent": "test/1"}'
    client.send(b"IDENTIFY\n" + len(body).to_bytes(4, "big") + body)
    client.send(b"SUB %s c\n" % topic.encode() + b"RDY 7\n")
    seen = site.eventually(
        lambda: [
            found
            for each in nsqd.stats(topic).topics
            for channel in each.channels
            for found in channel.clients
            if found.ready_count == 7
        ]
    )
    (found,) = seen
    assert (found.client_id, found.hostname, found.user_agent) == ("me", "here", "test/1")
    assert found.version == "V2"
    assert not found.tls
    assert found.connect_ts > 1_500_000_000


def test_pause_empty_delete(nsqd: NsqdHTTP) -> None:
    topic = unique()
    nsqd.create_topic(topic)
    nsqd.pause_topic(topic)
    assert nsqd.stats(topic).topics[0].paused
    nsqd.pub(topic, b"x")
    assert nsqd.stats(topic).topics[0].depth == 1
    nsqd.empty_topic(topic)
    assert nsqd.stats(topic).topics[0].depth == 0
    nsqd.unpause_topic(topic)
    nsqd.create_channel(topic, "c")
    nsqd.pause_channel(topic, "c")
    assert nsqd.stats(topic).topics[0].channels[0].paused
    nsqd.unpause_channel(topic, "c")
    assert not nsqd.stats(topic).topics[0].channels[0].paused
    nsqd.empty_channel(topic, "c")
    nsqd.delete_channel(topic, "c")
    assert nsqd.stats(topic).topics[0].channels == ()
    nsqd.delete_topic(topic)
    assert nsqd.stats(topic).topics == ()


def test_errors_carry_nsqds_code(nsqd: NsqdHTTP) -> None:
    topic = unique()
    with pytest.raises(HTTPError) as caught:
        nsqd.create_channel(topic, "c")
    assert (caught.value.status, caught.value.code) == (404, "TOPIC_NOT_FOUND")
    assert caught.value.url == f"{nsqd.url}/channel/create?topic={topic}&channel=c"
    with pytest.raises(HTTPError, match="INVALID_DEFER"):
        nsqd.pub(topic, b"x", defer=3601)
    with pytest.raises(HTTPError, match="INVALID_OPTION"):
        nsqd.get_config("no_such_option")


def test_config(site: Site) -> None:
    server = site.own_nsqd()
    with NsqdHTTP(server.http_address) as nsqd:
        assert nsqd.get_config("max_msg_size") == 1048576
        assert nsqd.get_config("broadcast_address") == "127.0.0.1"
        assert nsqd.get_config("nsqlookupd_tcp_addresses") == []
        nsqd.set_config("log_level", "debug")
        with pytest.raises(HTTPError, match="INVALID_VALUE"):
            nsqd.set_config("log_level", "loud")


# The profiler behind these is Go's.
@pytest.mark.parametrize("server_kind", ["real"])
def test_debug_commands(site: Site) -> None:
    with NsqdHTTP(site.own_nsqd().http_address) as nsqd:
        nsqd.free_memory()
        nsqd.set_block_rate(0)
        assert "goroutine" in nsqd.pprof()
        assert "heap" in nsqd.pprof("")


def test_size_limits_of_the_server(site: Site) -> None:
    server = site.nsqd("-max-msg-size=100", "-max-body-size=300")
    topic = unique()
    with NsqdHTTP(server.http_address) as nsqd:
        with pytest.raises(HTTPError, match="MSG_TOO_BIG"):
            nsqd.pub(topic, b"x" * 101)
        with pytest.raises(HTTPError, match="BODY_TOO_BIG"):
            nsqd.mpub(topic, [b"x" * 100] * 3)


def test_from_many_threads(nsqd: NsqdHTTP) -> None:
    topic = unique()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: nsqd.pub(topic, str(n)), range(200)))
    assert nsqd.stats(topic).topics[0].message_count == 200


def test_https(site: Site) -> None:
    certificates = site.certificates
    server = site.nsqd(*certificates.flags, "-tls-required=true")
    with NsqdHTTP(server.http_address, tls_ca_file=str(certificates.ca_file)) as nsqd:
        topic = unique()
        nsqd.pub(topic, b"x")
        assert nsqd.stats(topic).topics[0].message_count == 1
    with (
        NsqdHTTP(server.http_address) as nsqd,
        pytest.raises(ConnectionLost, match="trust its authority by tls_ca_file"),
    ):
        nsqd.ping()
    url = f"https://127.0.0.1:{server.https_address[1]}"
    with NsqdHTTP(url, tls_ca_file=str(certificates.ca_file)) as nsqd:
        assert nsqd.ping() == "OK"
    with NsqdHTTP(url) as nsqd, pytest.raises(ConnectionLost, match=r"(?i)certificate"):
        nsqd.ping()


def test_lookupd_without_an_nsqd(lookupd: LookupdHTTP) -> None:
    topic = unique()
    assert lookupd.ping() == "OK"
    assert lookupd.info().version
    with pytest.raises(HTTPError) as caught:
        lookupd.lookup(topic)
    assert (caught.value.status, caught.value.code) == (404, "TOPIC_NOT_FOUND")
    assert lookupd.channels(topic) == ()
    lookupd.create_channel(topic, "c")
    assert topic in lookupd.topics()
    assert lookupd.channels(topic) == ("c",)
    found = lookupd.lookup(topic)
    assert (found.channels, found.producers) == (("c",), ())
    lookupd.delete_channel(topic, "c")
    with pytest.raises(HTTPError, match="CHANNEL_NOT_FOUND"):
        lookupd.delete_channel(topic, "c")
    lookupd.delete_topic(topic)
    assert topic not in lookupd.topics()
    lookupd.create_topic(topic)
    assert topic in lookupd.topics()


def registered(site: Site) -> tuple[Server, Server]:
    lookupd = site.own_nsqlookupd()
    return lookupd, site.own_nsqd(f"-lookupd-tcp-address=127.0.0.1:{lookupd.tcp_address[1]}")


def test_discovery_and_tombstones(site: Site) -> None:
    lookupd_server, nsqd_server = registered(site)
    topic = unique()
    with NsqdHTTP(nsqd_server.http_address) as nsqd:
        nsqd.create_topic(topic)
    with LookupdHTTP(lookupd_server.http_address) as lookupd:
        site.eventually(lambda: topic in lookupd.topics())
        (producer,) = site.eventually(lambda: lookupd.lookup(topic).producers)
        assert producer.tcp_address == ("127.0.0.1", nsqd_server.tcp_address[1], "")
        assert producer.http_address == f"127.0.0.1:{nsqd_server.http_address[1]}"
        (node,) = lookupd.nodes()
        assert (node.tcp_address, node.topics, node.tombstones) == (
            producer.tcp_address,
            (topic,),
            (False,),
        )
        (registration,) = lookupd.debug()[f"topic:{topic}:"]
        assert registration.tcp_port == nsqd_server.tcp_address[1]
        assert not registration.tombstoned
        lookupd.tombstone_topic(topic, node)
        assert lookupd.lookup(topic).producers == ()
        assert lookupd.nodes()[0].tombstones == (True,)
        assert lookupd.debug()[f"topic:{topic}:"][0].tombstoned


def test_a_wrong_port_says_which_would_be_right(site: Site) -> None:
    nsqd, lookupd = site.nsqd(), site.nsqlookupd()
    answers = {}
    for client in (
        NsqdHTTP(nsqd.tcp_address),
        NsqdHTTP(lookupd.http_address),
        LookupdHTTP(lookupd.tcp_address),
        LookupdHTTP(nsqd.http_address),
    ):
        ask = client.stats if isinstance(client, NsqdHTTP) else client.nodes
        with client, pytest.raises((ConnectionLost, HTTPError)) as caught:
            ask()
        answers[client] = str(caught.value)
    right = [4151, 4151, 4161, 4161]
    for answer, port in zip(answers.values(), right, strict=True):
        assert f"{port} by default" in answer
        assert answer.isprintable(), "the frame of a TCP port has bytes of NUL"

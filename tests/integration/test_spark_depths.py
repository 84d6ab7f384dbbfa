"""The cluster as the driver of a Spark query sees it, beside running servers; no Spark needed."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gnsqsync import LookupdHTTP, NsqdHTTP, Writer
from gnsqsync.errors import ConnectionLost
from gnsqsync.spark.depths import Backlog, Depths, NoSuchTopic
from gnsqsync.spark.options import SourceOptions
from gnsqsync.spark.plan import Source
from tests.integration.conftest import address, url
from tests.support.servers import Server, Site, unique

Watch = Callable[..., Depths]


@pytest.fixture
def watch(topic: str) -> Iterator[Watch]:
    """Makes the Depths of channel "ch" with options as keywords; it is closed after the test."""
    made: list[Depths] = []

    def make(**options: Any) -> Depths:
        given = {"subscribe": topic, "channel": "ch", "walPath": "/wal", **options}
        texts = {name: str(value) for name, value in given.items()}
        made.append(Depths(SourceOptions.parse(texts, streaming=True)))
        return made[-1]

    yield make
    for depths in made:
        depths.close()


def publish(nsqd: Server, topic: str, count: int) -> None:
    with Writer([address(nsqd)]) as writer:
        writer.publish_many(topic, [b"%d" % number for number in range(count)])


def source(nsqd: Server, topic: str) -> Source:
    return Source(address(nsqd), topic)


def direct(*nsqds: Server) -> dict[str, str]:
    return {
        "nsqdTcpAddresses": ",".join(map(address, nsqds)),
        "nsqdHttpAddresses": ",".join(map(url, nsqds)),
    }


def test_channels_are_made_before_the_first_message(
    site: Site, watch: Watch, nsqd: Server, topic: str
) -> None:
    depths = watch(**direct(nsqd))
    depths.start()
    publish(nsqd, topic, 5)
    look = {source(nsqd, topic): Backlog(5, 0, 0)}
    assert site.eventually(lambda: depths.look() == look or None)
    assert depths.report() == {topic: {address(nsqd): {"depth": 5, "in_flight": 0, "deferred": 0}}}


@pytest.mark.parametrize("by_lookupd", [False, True])
def test_a_topic_that_nobody_has_is_an_error_of_a_run_with_an_end(
    site: Site, watch: Watch, nsqd: Server, topic: str, by_lookupd: bool
) -> None:
    lookupd = site.own_nsqlookupd()
    near = f"{topic}s"
    with NsqdHTTP(url(nsqd)) as http, LookupdHTTP(url(lookupd)) as lookup:
        http.create_topic(near)
        lookup.create_topic(near)
    depths = watch(**({"lookupdHttpAddresses": url(lookupd)} if by_lookupd else direct(nsqd)))
    with pytest.raises(NoSuchTopic, match=f"has the topic {topic} .near: .*{near}.*topic create"):
        depths.start(must_exist=True)
    with NsqdHTTP(url(nsqd)) as http, LookupdHTTP(url(lookupd)) as lookup:
        assert http.stats(topic).topics == ()
        assert topic not in lookup.topics()


def test_a_query_that_waits_for_such_a_topic_says_so(
    watch: Watch, nsqd: Server, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    watch(**direct(nsqd)).start()
    assert f"no nsqd has the topic {topic}" in caplog.text
    caplog.clear()
    watch(**direct(nsqd)).start(must_exist=True)
    assert "has the topic" not in caplog.text


def test_a_server_that_is_away_may_have_the_topic(watch: Watch, nsqd: Server, topic: str) -> None:
    where = direct(nsqd)
    where = {name: f"{value},127.0.0.1:1" for name, value in where.items()}
    watch(**where).start(must_exist=True)


def test_the_tcp_port_is_found_by_the_http_one(
    site: Site, watch: Watch, nsqd: Server, topic: str
) -> None:
    depths = watch(nsqdHttpAddresses=url(nsqd))
    depths.start()
    assert depths.look(whole=True) == {source(nsqd, topic): Backlog(0, 0, 0)}


def test_several_topics_are_asked_for_at_once(
    site: Site, watch: Watch, nsqd: Server, topic: str
) -> None:
    other = unique("topic")
    depths = watch(subscribe=f"{topic},{other}", **direct(nsqd))
    depths.start()
    publish(nsqd, other, 3)
    wanted = {source(nsqd, topic): Backlog(0, 0, 0), source(nsqd, other): Backlog(3, 0, 0)}
    assert site.eventually(lambda: depths.look() == wanted or None)


def test_a_paused_channel_has_nothing_to_read(
    site: Site, watch: Watch, nsqd: Server, topic: str
) -> None:
    depths = watch(**direct(nsqd))
    depths.start()
    publish(nsqd, topic, 3)
    mine = source(nsqd, topic)
    assert site.eventually(lambda: depths.look()[mine] == Backlog(3, 0, 0))
    with NsqdHTTP(url(nsqd)) as http:
        http.pause_channel(topic, "ch")
        assert depths.look(whole=True)[mine] == Backlog(0, 0, 0, behind_pause=3)
        http.unpause_channel(topic, "ch")
        # A paused topic keeps what comes now, and its channel delivers what it has.
        http.pause_topic(topic)
        assert depths.look(whole=True)[mine] == Backlog(3, 0, 0)
        http.unpause_topic(topic)


def test_a_channel_that_somebody_deletes_is_made_again(
    site: Site, watch: Watch, nsqd: Server, topic: str
) -> None:
    depths = watch(**direct(nsqd))
    depths.start()
    with NsqdHTTP(url(nsqd)) as http:
        http.delete_topic(topic)
    depths.look()
    publish(nsqd, topic, 2)
    assert site.eventually(lambda: depths.look()[source(nsqd, topic)] == Backlog(2, 0, 0))


def test_nsqds_that_get_the_topic_later_are_found_with_all_messages(
    site: Site, watch: Watch, topic: str
) -> None:
    lookupd = site.own_nsqlookupd()
    flag = f"-lookupd-tcp-address={address(lookupd)}"
    first, second = site.own_nsqd(flag), site.own_nsqd(flag)
    depths = watch(lookupdHttpAddresses=url(lookupd), lookupdPollIntervalMs=100)
    depths.start()
    assert depths.look() == {}
    for nsqd, count in ((first, 4), (second, 6)):
        publish(nsqd, topic, count)
        found = Backlog(count, 0, 0)
        # Nobody subscribed: the nsqd asked nsqlookupd which channels the topic has.
        mine = source(nsqd, topic)
        assert site.eventually(lambda mine=mine, found=found: depths.look().get(mine) == found)


def test_a_topic_that_is_drained_and_listed_no_more_is_forgotten(
    site: Site, watch: Watch, topic: str
) -> None:
    lookupd = site.own_nsqlookupd()
    nsqd = site.own_nsqd(f"-lookupd-tcp-address={address(lookupd)}")
    publish(nsqd, topic, 2)
    depths = watch(lookupdHttpAddresses=url(lookupd), lookupdPollIntervalMs=100)
    mine = source(nsqd, topic)
    assert site.eventually(lambda: mine in depths.look())
    assert site.eventually(lambda: depths.look()[mine] == Backlog(2, 0, 0))
    with LookupdHTTP(url(lookupd)) as http:
        http.tombstone_topic(topic, f"127.0.0.1:{nsqd.http_address[1]}")
    assert not http_lists(lookupd, topic)
    site.sleep(0.3)
    # Tombstoned, but it still has something for us.
    assert depths.look(whole=True)[mine] == Backlog(2, 0, 0)
    with NsqdHTTP(url(nsqd)) as http:
        http.empty_channel(topic, "ch")
    assert site.eventually(lambda: mine not in depths.look())
    assert depths.report() == {topic: {}}


def http_lists(lookupd: Server, topic: str) -> bool:
    with LookupdHTTP(url(lookupd)) as http:
        return bool(http.lookup(topic).producers)


def test_an_nsqd_that_is_away_counts_as_unknown_and_comes_back(
    site: Site, watch: Watch, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    here, away = site.nsqd(), site.own_nsqd()
    depths = watch(**direct(here, away))
    depths.start()
    away.kill()
    seen = depths.look(whole=True)
    assert seen == {source(here, topic): Backlog(0, 0, 0), source(away, topic): None}
    depths.look()
    assert caplog.text.count("cannot be asked") == 1
    away.start()
    assert site.eventually(lambda: depths.look()[source(away, topic)] is not None)
    assert caplog.text.count("answers again") == 1
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_a_silent_nsqd_keeps_no_look_from_the_others(site: Site, watch: Watch, topic: str) -> None:
    here, silent = site.nsqd(), site.own_nsqd()
    depths = watch(**direct(here, silent))
    depths.start()
    publish(here, topic, 3)
    publish(silent, topic, 4)
    mine, other = source(here, topic), source(silent, topic)
    os.kill(silent.pid, signal.SIGSTOP)
    try:
        answers = []
        began = time.monotonic()
        while not depths.silent():
            answers.append(depths.look())
            # Its own time-out is two seconds.
            assert time.monotonic() - began < 60
        assert all(seen[other] is None for seen in answers)
        # While one waits for it, the others are asked again and again.
        assert sum(seen[mine] == Backlog(3, 0, 0) for seen in answers) > 2
        assert depths.look(whole=True)[other] is None
        assert depths.look(whole=True)[mine] == Backlog(3, 0, 0)
    finally:
        os.kill(silent.pid, signal.SIGCONT)
    assert site.eventually(lambda: depths.look()[other] == Backlog(4, 0, 0))


def test_a_look_at_all_waits_for_the_slow(site: Site, watch: Watch, topic: str) -> None:
    here, slow = site.nsqd(), site.own_nsqd()
    depths = watch(**direct(here, slow))
    depths.start()
    publish(slow, topic, 4)
    other = source(slow, topic)
    os.kill(slow.pid, signal.SIGSTOP)
    awake = threading.Timer(1.0, os.kill, (slow.pid, signal.SIGCONT))
    awake.start()
    try:
        assert depths.look(whole=True)[other] == Backlog(4, 0, 0)
    finally:
        awake.join()


def test_a_query_starts_with_one_nsqd_of_two(site: Site, watch: Watch, topic: str) -> None:
    here, away = site.nsqd(), site.own_nsqd()
    options = direct(here, away)
    away.kill()
    depths = watch(**options)
    depths.start()
    assert depths.look(whole=True)[source(here, topic)] == Backlog(0, 0, 0)


def test_without_any_nsqd_the_start_says_what_to_set(site: Site, watch: Watch, topic: str) -> None:
    nsqd = site.own_nsqd()
    address_of_tcp = address(nsqd)
    nsqd.kill()
    depths = watch(nsqdTcpAddresses=address_of_tcp)
    with pytest.raises(ConnectionLost, match="'nsqdHttpAddresses' to host:port of their HTTP API"):
        depths.start()


def test_an_error_of_the_start_names_every_nsqd(site: Site, watch: Watch, topic: str) -> None:
    http = ["127.0.0.1:1", "127.0.0.1:2"]
    options = {"nsqdTcpAddresses": "a:4150,b:4150", "nsqdHttpAddresses": ",".join(http)}
    with pytest.raises(ConnectionLost) as raised:
        watch(**options).start()
    for tcp, address_of_http in zip(("a:4150", "b:4150"), http, strict=True):
        assert f"nsqd {tcp}: " in str(raised.value)
        met = f"cannot connect to {address_of_http}: Connection refused"
        assert f"GET http://{address_of_http}/stats: {met}" in str(raised.value)


def test_an_http_port_given_for_the_tcp_port_is_told(
    site: Site, watch: Watch, nsqd: Server, topic: str
) -> None:
    http = "{}:{}".format(*nsqd.http_address)
    options = {
        "nsqdTcpAddresses": f"{http},127.0.0.1:2",
        "nsqdHttpAddresses": "127.0.0.1:1,127.0.0.1:3",
    }
    with pytest.raises(ConnectionLost) as raised:
        watch(**options).start()
    hint = f"{http} is an HTTP port, and the TCP port of that nsqd is {nsqd.tcp_address[1]}"
    assert hint in str(raised.value)


def test_an_nsqd_that_cannot_be_asked_is_named(
    site: Site, watch: Watch, nsqd: Server, topic: str
) -> None:
    tcp = f"{address(nsqd)},127.0.0.1:2"
    depths = watch(nsqdTcpAddresses=tcp, nsqdHttpAddresses=f"{url(nsqd)},127.0.0.1:1")
    depths.start()
    ((name, problem),) = depths.silent().items()
    assert name == "127.0.0.1:2"
    assert "127.0.0.1:1" in problem


def test_without_any_nsqlookupd_the_start_says_what_to_set(site: Site, watch: Watch) -> None:
    lookupd = site.own_nsqlookupd()
    where = url(lookupd)
    lookupd.kill()
    with pytest.raises(ConnectionLost, match="'lookupdHttpAddresses': no nsqlookupd answers"):
        watch(lookupdHttpAddresses=where).start()


def test_nsqds_that_the_driver_cannot_reach_end_the_start(
    site: Site, watch: Watch, topic: str
) -> None:
    lookupd = site.own_nsqlookupd()
    nsqd = site.own_nsqd(f"-lookupd-tcp-address={address(lookupd)}")
    publish(nsqd, topic, 2)
    assert site.eventually(lambda: http_lists(lookupd, topic))
    os.kill(nsqd.pid, signal.SIGSTOP)
    try:
        with pytest.raises(ConnectionLost, match="--broadcast-address to a name that the driver"):
            watch(lookupdHttpAddresses=url(lookupd)).start()
    finally:
        os.kill(nsqd.pid, signal.SIGCONT)


def test_an_nsqlookupd_that_goes_takes_nothing_away(site: Site, watch: Watch, topic: str) -> None:
    lookupd, second = site.own_nsqlookupd(), site.own_nsqlookupd()
    nsqd = site.own_nsqd(f"-lookupd-tcp-address={address(lookupd)}")
    publish(nsqd, topic, 2)
    depths = watch(lookupdHttpAddresses=f"{url(lookupd)},{url(second)}", lookupdPollIntervalMs=100)
    assert site.eventually(lambda: source(nsqd, topic) in depths.look())
    lookupd.kill()
    site.sleep(0.3)
    # The other one lists nothing; who can say what the dead one would have listed?
    assert depths.look(whole=True)[source(nsqd, topic)] is not None

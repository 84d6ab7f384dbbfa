"""``gnsqsync doctor`` on clusters that were broken on purpose. It prints the command's words."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from gnsqsync import LookupdHTTP, NsqdHTTP, Reader, Requeue, Writer
from gnsqsync.cli.app import run_command
from gnsqsync.embedded import Nsqd, Nsqlookupd
from tests.support.authserver import AuthServer
from tests.support.servers import Certificates
from tests.support.waiting import eventually


class Cluster:
    """An nsqlookupd and nsqds, all of which end with the test."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.lookupd = stack.enter_context(Nsqlookupd())
        self.registered: list[Nsqd] = []

    def nsqd(self, *, registered: bool = True, **flags: Any) -> Nsqd:
        lookupds = self.lookupd.tcp_address if registered else ()
        flags.setdefault("broadcast_address", "127.0.0.1")
        nsqd = self.stack.enter_context(Nsqd(lookupd_tcp_addresses=lookupds, **flags))
        if registered:
            self.registered.append(nsqd)
            with LookupdHTTP(self.lookupd.http_address) as asked:
                port = int(nsqd.tcp_address.rpartition(":")[2])
                eventually(lambda: port in {node.tcp_port for node in asked.nodes()})
        return nsqd

    def publish(self, nsqd: Nsqd, count: int = 5, *channels: str, topic: str = "orders") -> None:
        with NsqdHTTP(nsqd.http_address) as client:
            client.create_topic(topic)
            for channel in channels:
                client.create_channel(topic, channel)
            client.mpub(topic, [b"x"] * count)
        with LookupdHTTP(self.lookupd.http_address) as asked:
            if nsqd in self.registered:
                eventually(lambda: topic in asked.topics())

    def consume(self, nsqd: Nsqd, handler: Callable[[Any], object], **options: Any) -> Reader:
        reader = Reader(
            "orders", "billing", handler, nsqd_tcp_addresses=nsqd.tcp_address, **options
        )
        reader.start(block=False)
        self.stack.callback(reader.join)
        self.stack.callback(reader.stop, 0.1)
        with NsqdHTTP(nsqd.http_address) as client:
            eventually(lambda: _ready(client) > 0)
        return reader

    def channel(self, nsqd: Nsqd) -> Any:
        with NsqdHTTP(nsqd.http_address) as client:
            return client.stats("orders", "billing").topics[0].channels[0]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack)


@pytest.fixture
def doctor(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> Callable[..., list[str]]:
    """Return a function that runs the command, shows its words, and returns the kinds."""

    def run(*words: str, lookupd: bool = True) -> list[str]:
        where = ("-l", cluster.lookupd.http_address) if lookupd else ()
        arguments = ["doctor", *words, *where]
        for option, value in (("--timeout", "20"), ("--seconds", "1")):
            if option not in words:
                arguments += [option, value]
        code = run_command(arguments)
        shown = capsys.readouterr().out
        assert run_command([*arguments, "--json"]) == code
        found = json.loads(capsys.readouterr().out)
        with capsys.disabled():
            print(f"\n--- {request.node.name}: exit code {code}\n{shown}", end="")
        assert code == (0 if found["ok"] else 1)
        return [each["kind"] for each in found["findings"]]

    return run


Doctor = Callable[..., list[str]]


def test_all_is_well(cluster: Cluster, doctor: Doctor) -> None:
    nsqd = cluster.nsqd()
    cluster.publish(nsqd, 5, "billing")
    cluster.consume(nsqd, lambda message: None)
    eventually(lambda: not cluster.channel(nsqd).depth)
    assert doctor() == []


def test_nobody_consumes(cluster: Cluster, doctor: Doctor) -> None:
    cluster.publish(cluster.nsqd(), 5, "billing")
    assert doctor("orders") == ["no_consumers"]


def test_a_paused_channel_and_a_topic_without_channels(cluster: Cluster, doctor: Doctor) -> None:
    nsqd = cluster.nsqd()
    cluster.publish(nsqd, 5, "billing")
    cluster.publish(nsqd, 3, topic="returns")
    cluster.consume(nsqd, lambda message: None)
    eventually(lambda: not cluster.channel(nsqd).depth)
    with NsqdHTTP(nsqd.http_address) as client:
        client.pause_channel("orders", "billing")
        client.mpub("orders", [b"x", b"y"])
    eventually(lambda: cluster.channel(nsqd).depth == 2)
    assert doctor() == ["no_channel", "channel_paused"]


def test_consumers_in_backoff(cluster: Cluster, doctor: Doctor) -> None:
    nsqd = cluster.nsqd()

    def fail(message: Any) -> None:
        raise ValueError("no database")

    reader = cluster.consume(
        nsqd,
        fail,
        max_in_flight=5,
        backoff="every_failure",
        # The first pause outlasts the test.
        backoff_multiplier=60,
        requeue_delay=600,
    )
    cluster.publish(nsqd, 20)

    def waits() -> bool:
        found = cluster.channel(nsqd)
        return reader.stats().backoff_level > 0 and not found.in_flight_count

    eventually(waits)
    assert doctor("orders")[0] == "rdy_zero"


def test_messages_go_round(cluster: Cluster, doctor: Doctor) -> None:
    nsqd = cluster.nsqd()

    def give_back(message: Any) -> None:
        raise Requeue(0.01)

    cluster.consume(nsqd, give_back, max_attempts=0, backoff=False)
    cluster.publish(nsqd, 3)
    eventually(lambda: cluster.channel(nsqd).requeue_count > 10)
    assert "requeue_loop" in doctor("orders", "-c", "billing")


def test_handlers_that_hang(cluster: Cluster, doctor: Doctor) -> None:
    nsqd = cluster.nsqd()
    ended = threading.Event()
    cluster.consume(nsqd, lambda message: ended.wait(60))
    # Set before the Reader stops.
    cluster.stack.callback(ended.set)
    cluster.publish(nsqd, 9)
    eventually(lambda: cluster.channel(nsqd).in_flight_count == 1)
    assert doctor("orders") == ["no_answers"]


def test_an_address_that_consumers_cannot_reach(cluster: Cluster, doctor: Doctor) -> None:
    # This nsqd listens on 127.0.0.1 only.
    nsqd = cluster.nsqd(broadcast_address="127.0.0.2")
    cluster.publish(nsqd, 5, "billing")
    kinds = doctor("-H", nsqd.http_address)
    assert kinds[:2] == ["nsqd_unreachable", "no_consumers"]


def test_an_nsqd_that_no_nsqlookupd_lists(cluster: Cluster, doctor: Doctor) -> None:
    nsqd = cluster.nsqd(registered=False)
    cluster.publish(nsqd, 5, "billing")
    kinds = doctor("-H", nsqd.http_address)
    assert sorted(kinds) == ["no_consumers", "unlisted"]


def test_an_nsqlookupd_is_away(cluster: Cluster, doctor: Doctor) -> None:
    cluster.nsqd()
    with Nsqlookupd() as other:
        away = other.http_address
    assert doctor("-l", away) == ["lookupd_away"]


def test_an_nsqd_that_hangs(cluster: Cluster, doctor: Doctor) -> None:
    nsqd = cluster.nsqd()
    cluster.publish(nsqd, 5, "billing")
    os.kill(nsqd.pid, signal.SIGSTOP)
    try:
        kinds = doctor("--timeout", "2")
    finally:
        os.kill(nsqd.pid, signal.SIGCONT)
    assert sorted(kinds) == ["http_unreachable", "nsqd_hangs"]


def test_a_secret_is_missing(cluster: Cluster, doctor: Doctor) -> None:
    with AuthServer() as auth:
        cluster.nsqd(auth_http_address=[auth.address])
        assert doctor() == ["nsqd_refuses"]


def test_an_authority_is_not_trusted(
    cluster: Cluster, doctor: Doctor, certificates: Certificates
) -> None:
    nsqd = cluster.nsqd(
        tls_cert=str(certificates.cert_file),
        tls_key=str(certificates.key_file),
        tls_required="true",
    )
    assert set(doctor("--tls")) == {"nsqd_refuses", "http_unreachable"}
    assert doctor("--tls-ca-file", str(certificates.ca_file)) == []
    assert nsqd.is_running


def test_two_nsqds_with_one_address(cluster: Cluster, doctor: Doctor) -> None:
    first = cluster.nsqd()
    tcp, http = (int(each.rpartition(":")[2]) for each in (first.tcp_address, first.http_address))
    second = cluster.nsqd(registered=False, broadcast_tcp_port=tcp, broadcast_http_port=http)
    with (
        NsqdHTTP(second.http_address) as client,
        LookupdHTTP(cluster.lookupd.http_address) as asked,
    ):
        client.set_config("nsqlookupd_tcp_addresses", [cluster.lookupd.tcp_address])
        eventually(lambda: len(asked.nodes()) == 2)
        assert doctor() == ["same_address"]


def test_a_topic_that_is_misspelt(cluster: Cluster, doctor: Doctor) -> None:
    cluster.publish(cluster.nsqd(), 1, "billing")
    assert doctor("order") == ["no_such_topic"]


def _depth(client: NsqdHTTP) -> int:
    """Return the messages that wait in the only channel of orders."""
    return sum(
        channel.depth for topic in client.stats("orders").topics for channel in topic.channels
    )


def _ready(client: NsqdHTTP) -> int:
    """Return the RDY of all consumers of orders."""
    return sum(
        consumer.ready_count
        for topic in client.stats("orders").topics
        for channel in topic.channels
        for consumer in channel.clients
    )


def test_an_ephemeral_channel_that_is_full(cluster: Cluster, doctor: Doctor) -> None:
    nsqd = cluster.nsqd(mem_queue_size=10)
    with Writer(nsqd.tcp_address) as writer, NsqdHTTP(nsqd.http_address) as client:
        ended = threading.Event()
        reader = Reader(
            "orders",
            "live#ephemeral",
            lambda message: ended.wait(60),
            nsqd_tcp_addresses=nsqd.tcp_address,
        )
        reader.start(block=False)
        # Before RDY arrives, the channel would give all messages but ten away.
        eventually(lambda: _ready(client) == 1)
        writer.publish_many("orders", [b"x"] * 200)
        try:
            eventually(lambda: _depth(client) == 10)
            assert doctor("orders")[0] == "drops"
        finally:
            ended.set()
            reader.stop(0.1)
            reader.join()

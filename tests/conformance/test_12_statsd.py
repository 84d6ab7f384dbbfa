"""What nsqd pushes to statsd; not among docs/protocol/index#rows, observed on the real one."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from tests.conformance.rows import create_channel, waiting
from tests.support.rawclient import channel_stats, get, post
from tests.support.servers import Server, Site

TIMEOUT = 60.0
# The last line of a push with memory figures.
END = b".mem.gc_runs:"

TOPIC = ["message_count|c", "message_bytes|c", "depth|g", "backend_depth|g"]
CHANNEL = [
    "message_count|c",
    "depth|g",
    "backend_depth|g",
    "in_flight_count|g",
    "deferred_count|g",
    "requeue_count|c",
    "timeout_count|c",
    "clients|g",
]
LATENCY = ["e2e_processing_latency_100|g", "e2e_processing_latency_50|g"]
MEMORY = [
    "heap_objects|g",
    "heap_idle_bytes|g",
    "heap_in_use_bytes|g",
    "heap_released_bytes|g",
    "gc_pause_usec_100|g",
    "gc_pause_usec_99|g",
    "gc_pause_usec_95|g",
    "next_gc_bytes|g",
    "gc_runs|c",
]


class Statsd:
    """A UDP socket that takes what is pushed."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.flag = f"-statsd-address=127.0.0.1:{sock.getsockname()[1]}"

    def packet(self) -> bytes:
        return self._socket.recv(65536)

    def push(self, end: bytes = END) -> list[bytes]:
        """The packets up to the one whose last line has `end` in it."""
        packets = []
        while not packets or end not in packets[-1].splitlines()[-1]:
            packets.append(self.packet())
        return packets


@contextmanager
def statsd() -> Iterator[Statsd]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(TIMEOUT)
        yield Statsd(sock)


def logged_twice(server: Server, line: str) -> bool:
    return server.log.count(line) >= 2


def host_key(server: Server) -> str:
    return f"127_0_0_1_{server.http_address[1]}"


def kinds(packets: list[bytes], prefix: str) -> list[str]:
    """`name|kind` of every line, in order."""
    lines = b"".join(packets).decode().splitlines()
    assert all(line.startswith(prefix) for line in lines)
    found = []
    for line in lines:
        name, _, value = line.removeprefix(prefix).partition(":")
        number, _, kind = value.partition("|")
        assert str(int(number)) == number
        found.append(f"{name}|{kind}")
    return found


class Counters:
    """The pushes so far put together: counters added up, gauges as they came last."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.values: Counter[str] = Counter()

    def add(self, packets: list[bytes]) -> None:
        for line in b"".join(packets).decode().splitlines():
            name, _, value = line.removeprefix(self._prefix).partition(":")
            number, _, kind = value.partition("|")
            if kind == "g":
                self.values[name] = 0
            self.values[name] += int(number)

    def of(self, stem: str) -> dict[str, int]:
        return {
            name.removeprefix(stem): value
            for name, value in self.values.items()
            if name.startswith(stem) and "latency" not in name
        }


def expect(statsd: Statsd, totals: Counters, stem: str, expected: dict[str, int]) -> None:
    """Take pushes until what they say of a topic or channel is `expected`."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        totals.add(statsd.push())
        found = {name: totals.of(stem).get(name) for name in expected}
        if found == expected:
            return
        assert time.monotonic() < deadline, found


def greedy(packets: list[bytes], size: int) -> list[bytes]:
    """The same lines, with as many as fit in each packet."""
    found = [b""]
    for line in b"".join(packets).splitlines(keepends=True):
        if found[-1] and len(found[-1] + line) > size:
            found.append(b"")
        found[-1] += line
    return found


@waiting
def test_a_push(site: Site) -> None:
    with statsd() as receiver:
        server = site.own_nsqd(
            receiver.flag,
            "-statsd-interval=1500ms",
            "-mem-queue-size=2",
            "-e2e-processing-latency-percentile=0.995,0.5",
        )
        create_channel(server, "t", "c")
        create_channel(server, "t", "a#ephemeral")
        create_channel(server, "e#ephemeral", "c")
        # The push under way began before.
        receiver.push()
        packets = receiver.push()
        expected = [f"topic.e#ephemeral.{name}" for name in TOPIC + LATENCY]
        expected += [f"topic.e#ephemeral.channel.c.{name}" for name in CHANNEL + LATENCY]
        expected += [f"topic.t.{name}" for name in TOPIC + LATENCY]
        expected += [f"topic.t.channel.a#ephemeral.{name}" for name in CHANNEL + LATENCY]
        expected += [f"topic.t.channel.c.{name}" for name in CHANNEL + LATENCY]
        expected += [f"mem.{name}" for name in MEMORY]
        assert kinds(packets, f"nsq.{host_key(server)}.") == expected
        assert max(map(len, packets)) <= 508
        assert packets == greedy(packets, 508)
        assert f"INFO: STATSD: pushing stats to {receiver.flag.partition('=')[2]}\n" in server.log
        assert server.stop() == 0
        assert "INFO: STATSD: closing\n" in server.log


@waiting
def test_counters_and_gauges(site: Site) -> None:
    with statsd() as receiver:
        server = site.own_nsqd(receiver.flag, "-statsd-interval=1100ms", "-mem-queue-size=2")
        totals = Counters(f"nsq.{host_key(server)}.")
        create_channel(server, "t", "c")
        client = site.client(server)
        client.subscribe("t", "c", msg_timeout=1000)
        producer = site.client(server)
        producer.publish("t", b"one", b"four", b"x", b"y", b"z")
        producer.command("DPUB t 600000", b"later")
        producer.ok()
        expect(
            receiver,
            totals,
            "topic.t.",
            {"message_count": 6, "message_bytes": 15, "depth": 0, "backend_depth": 0},
        )
        expect(
            receiver,
            totals,
            "topic.t.channel.c.",
            {
                "message_count": 6,
                # With two in memory the rest is on disk, also the deferred one.
                "depth": channel_stats(server.http_address, "t", "c")["depth"],
                "backend_depth": channel_stats(server.http_address, "t", "c")["backend_depth"],
                "in_flight_count": 0,
                "requeue_count": 0,
                "timeout_count": 0,
                "clients": 1,
            },
        )
        client.command("RDY 1")
        first = client.message()
        client.command(f"REQ {first.id.decode()} 500000")
        # Times out, comes again, and so on.
        client.message()
        site.eventually(lambda: channel_stats(server.http_address, "t", "c")["timeout_count"] >= 1)
        client.command("RDY 0")
        site.eventually(
            lambda: channel_stats(server.http_address, "t", "c")["in_flight_count"] == 0
        )
        found = channel_stats(server.http_address, "t", "c")
        assert (found["message_count"], found["requeue_count"]) == (6, 1)
        expected = {name: found[name] for name in ("message_count", "requeue_count")}
        expected |= {name: found[name] for name in ("timeout_count", "depth", "deferred_count")}
        expect(receiver, totals, "topic.t.channel.c.", {**expected, "in_flight_count": 0})
        client.close()
        expect(receiver, totals, "topic.t.channel.c.", {**expected, "clients": 0})
        assert post(server.http_address, "/topic/delete?topic=t").status == 200
        deadline = time.monotonic() + TIMEOUT
        while b".topic." in b"".join(receiver.push()):
            assert time.monotonic() < deadline


@waiting
def test_flags(site: Site) -> None:
    with statsd() as receiver:
        server = site.own_nsqd(
            receiver.flag,
            "-statsd-interval=1100ms",
            "-statsd-prefix=%s/%s",
            "-statsd-mem-stats=false",
            "-statsd-exclude-ephemeral",
            "-statsd-udp-packet-size=100",
        )
        prefix = f"{host_key(server)}/{host_key(server)}."
        topic = "a" * 64
        create_channel(server, "e#ephemeral", "c")
        create_channel(server, topic, "b#ephemeral")
        create_channel(server, topic, "c")
        end = f"{topic}.channel.c.clients:".encode()
        receiver.push(end)
        packets = receiver.push(end)
        expected = [f"topic.{topic}.{name}" for name in TOPIC]
        expected += [f"topic.{topic}.channel.c.{name}" for name in CHANNEL]
        assert kinds(packets, prefix) == expected
        # No line fits, and each is in a packet of its own.
        assert min(map(len, packets)) > 100
        assert packets == greedy(packets, 100)


@waiting
def test_line_that_was_begun_is_sent_at_the_end(site: Site) -> None:
    with statsd() as receiver:
        server = site.own_nsqd(
            receiver.flag, "-statsd-interval=5s", "-statsd-mem-stats=false", "-statsd-prefix="
        )
        for number in range(20):
            create_channel(server, f"t{number:02}", "c")
        # Spread over four seconds, of which the rest is cut short.
        packets = [receiver.packet()]
        assert server.stop() == 0
        end = b"topic.t19.channel.c.clients:"
        while end not in packets[-1]:
            packets.append(receiver.packet())
        expected = []
        for number in range(20):
            expected += [f"topic.t{number:02}.{name}" for name in TOPIC]
            expected += [f"topic.t{number:02}.channel.c.{name}" for name in CHANNEL]
        assert kinds(packets, "") == expected


@waiting
def test_an_invalid_address(site: Site) -> None:
    for address in ("nowhere", "127.0.0.1:99999"):
        server = site.own_nsqd(f"-statsd-address={address}", "-statsd-interval=1100ms")
        line = f"ERROR: failed to create UDP socket to statsd({address})\n"
        # The second shows that the first did not end it.
        site.eventually(partial(logged_twice, server, line), TIMEOUT)
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), "nsq.{key}."),
        (("-statsd-prefix=a.%s.b",), "a.{key}.b."),
        (("-statsd-prefix=",), ""),
        (("-broadcast-address=::1", "-broadcast-http-port=7"), "nsq.[__1]_7."),
    ],
)
def test_the_prefix_in_config(site: Site, flags: tuple[str, ...], expected: str) -> None:
    server = site.nsqd(*flags)
    reply = get(server.http_address, "/config/statsd_prefix")
    assert (reply.status, reply.text) == (200, expected.format(key=host_key(server)))
    reply = get(server.http_address, "/config/broadcast_tcp_port")
    assert reply.json == server.tcp_address[1]


def test_an_interval_of_nothing_is_no_start(site: Site) -> None:
    server = Server(site.kind, "nsqd", ["-statsd-address=127.0.0.1:1", "-statsd-interval=0"])
    try:
        # The real one crashes.
        assert server.run_to_the_end() == (2 if site.kind == "real" else 1)
    finally:
        server.discard()

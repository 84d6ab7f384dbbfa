"""What the embedded nsqd pushes to statsd: prefix, lines and packets, without a socket."""

from __future__ import annotations

from typing import Any

import pytest

from gnsqsync.daemon.options import OptionsError
from gnsqsync.embedded.broker import Broker
from gnsqsync.embedded.options import NsqdOptions
from gnsqsync.embedded.stats import gather
from gnsqsync.embedded.statsd import Meter, expand_prefix, packets

MEMORY = {"heap_objects": 7, "next_gc_bytes": 0, "gc_total_runs": 5}


class Bench:
    """A broker, and the push of the moment as {stat: "value|kind"}."""

    def __init__(self, exclude_ephemeral: bool = False, **options: Any) -> None:
        self.now = 100.0
        self.broker = Broker(
            NsqdOptions(**options), now=lambda: self.now, wall_ns=lambda: round(self.now * 1e9)
        )
        self.meter = Meter("p.", exclude_ephemeral=exclude_ephemeral)

    def push(self, memory: dict[str, int] | None = None) -> dict[str, str]:
        topics = gather(self.broker, (), include_clients=False)["topics"]
        lines = self.meter.lines(topics, memory)
        pairs = [line.decode().removesuffix("\n").split(":") for line in lines]
        assert len(dict(pairs)) == len(pairs)
        assert all(stat.startswith("p.") for stat, _ in pairs)
        return {stat.removeprefix("p."): value for stat, value in pairs}


@pytest.mark.parametrize(
    ("prefix", "host", "expanded"),
    [
        ("nsq.%s", "127.0.0.1", "nsq.127_0_0_1_4151."),
        ("nsq.%s.", "a-b.example.org", "nsq.a-b_example_org_4151."),
        ("%s-%s", "h", "h_4151-h_4151."),
        ("fixed", "h", "fixed."),
        ("nsq.%s", "::1", "nsq.[__1]_4151."),
        ("", "h", ""),
    ],
)
def test_prefix(prefix: str, host: str, expanded: str) -> None:
    assert expand_prefix(prefix, host, 4151) == expanded
    assert expand_prefix(expanded, host, 1) == expanded


def test_an_empty_channel_has_all_its_stats_in_nsqds_order() -> None:
    bench = Bench()
    bench.broker.topic("t").channel("c")
    assert list(bench.push(MEMORY).items()) == [
        ("topic.t.message_count", "0|c"),
        ("topic.t.message_bytes", "0|c"),
        ("topic.t.depth", "0|g"),
        ("topic.t.backend_depth", "0|g"),
        ("topic.t.channel.c.message_count", "0|c"),
        ("topic.t.channel.c.depth", "0|g"),
        ("topic.t.channel.c.backend_depth", "0|g"),
        ("topic.t.channel.c.in_flight_count", "0|g"),
        ("topic.t.channel.c.deferred_count", "0|g"),
        ("topic.t.channel.c.requeue_count", "0|c"),
        ("topic.t.channel.c.timeout_count", "0|c"),
        ("topic.t.channel.c.clients", "0|g"),
        ("mem.heap_objects", "7|g"),
        ("mem.next_gc_bytes", "0|g"),
        ("mem.gc_runs", "5|c"),
    ]


def test_counters_are_what_was_added_and_gauges_what_is() -> None:
    bench = Bench(mem_queue_size=2)
    topic = bench.broker.topic("t")
    topic.channel("c")
    topic.publish([b"xyz", b"12", b"."])
    topic.publish([b"later"], delay=10.0)
    first = bench.push(MEMORY)
    assert (first["topic.t.message_count"], first["topic.t.message_bytes"]) == ("4|c", "11|c")
    channel = {
        stat.rpartition(".")[2]: value for stat, value in first.items() if ".channel.c." in stat
    }
    assert channel["message_count"] == "4|c"
    assert (channel["depth"], channel["backend_depth"]) == ("3|g", "1|g")
    assert channel["deferred_count"] == "1|g"

    topic.publish([b"1"])
    second = bench.push({**MEMORY, "gc_total_runs": 8})
    assert (second["topic.t.message_count"], second["topic.t.message_bytes"]) == ("1|c", "1|c")
    assert second["topic.t.channel.c.message_count"] == "1|c"
    assert second["topic.t.channel.c.depth"] == "4|g"
    assert (second["mem.gc_runs"], second["mem.heap_objects"]) == ("3|c", "7|g")

    third = bench.push()
    assert third["topic.t.message_count"] == third["topic.t.channel.c.message_count"] == "0|c"
    assert third["topic.t.channel.c.depth"] == "4|g"
    assert not [stat for stat in third if stat.startswith("mem.")]


def test_a_topic_made_again_counts_on_from_what_was_sent() -> None:
    bench = Bench()
    bench.broker.topic("t").publish([b"1", b"2", b"3"])
    bench.push()
    bench.broker.delete_topic("t")
    bench.broker.topic("t").publish([b"1"])
    assert bench.push()["topic.t.message_count"] == "-2|c"
    bench.broker.delete_topic("t")
    assert bench.push() == {}
    bench.broker.topic("t").publish([b"1"])
    assert bench.push()["topic.t.message_count"] == "1|c"


def test_names_with_dots_keep_their_own_counts() -> None:
    bench = Bench()
    # Both topics have a stat topic.a.channel.b.message_count.
    bench.broker.topic("a").channel("b")
    bench.broker.topic("a").publish([b"1"])
    bench.broker.topic("a.channel.b").publish([b"1", b"2"])
    for expected in (["1|c", "2|c"], ["0|c", "0|c"]):
        topics = gather(bench.broker, (), include_clients=False)["topics"]
        found = [line.decode() for line in bench.meter.lines(topics, None)]
        stem = "p.topic.a.channel.b.message_count:"
        assert [
            line.removeprefix(stem).strip() for line in found if line.startswith(stem)
        ] == expected


def test_ephemeral_names_may_be_left_out() -> None:
    for exclude_ephemeral in (False, True):
        bench = Bench(exclude_ephemeral=exclude_ephemeral)
        bench.broker.topic("e#ephemeral").channel("c")
        bench.broker.topic("t").channel("c#ephemeral")
        bench.broker.topic("t").channel("c")
        found = bench.push()
        assert "topic.t.channel.c.depth" in found
        left_out = {"topic.e#ephemeral.depth", "topic.t.channel.c#ephemeral.depth"} - found.keys()
        assert len(left_out) == (2 if exclude_ephemeral else 0)


def test_latencies_have_their_percentile_in_the_name() -> None:
    bench = Bench(e2e_processing_latency_percentile=(0.5, 0.995))
    channel = bench.broker.topic("t").channel("c")
    assert channel.latency is not None
    channel.latency.add(bench.now, 1_500_000)
    found = [item for item in bench.push().items() if "latency" in item[0]]
    assert found == [
        ("topic.t.e2e_processing_latency_100", "1500000|g"),
        ("topic.t.e2e_processing_latency_50", "1500000|g"),
        ("topic.t.channel.c.e2e_processing_latency_100", "1500000|g"),
        ("topic.t.channel.c.e2e_processing_latency_50", "1500000|g"),
    ]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (8, [b"aaa\nbbb\n", b"c\n", b"long line\n", b"d\n"]),
        (7, [b"aaa\n", b"bbb\nc\n", b"long line\n", b"d\n"]),
        (1, [b"aaa\n", b"bbb\n", b"c\n", b"long line\n", b"d\n"]),
        (0, [b"aaa\nbbb\nc\nlong line\nd\n"]),
        (-1, [b"aaa\nbbb\nc\nlong line\nd\n"]),
    ],
)
def test_packets_end_with_a_line(size: int, expected: list[bytes]) -> None:
    assert packets([b"aaa\n", b"bbb\n", b"c\n", b"long line\n", b"d\n"], size) == expected


def test_nothing_is_no_packet() -> None:
    assert packets([], 508) == []


def test_an_interval_is_positive_when_there_is_something_to_push_to() -> None:
    options = NsqdOptions(statsd_interval=0.0)
    options.check()
    with pytest.raises(OptionsError, match="--statsd-interval must be positive"):
        options.replace(statsd_address="127.0.0.1:8125").check()

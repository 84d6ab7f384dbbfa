"""The embedded nsqd's topics, channels and timers: no socket, and a clock set by hand."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gnsqsync.daemon.names import go_quote, valid_name
from gnsqsync.embedded.broker import Broker
from gnsqsync.embedded.channel import NOT_IN_FLIGHT, NOT_OWNER, TooManyConsumers
from gnsqsync.embedded.guid import GuidFactory
from gnsqsync.embedded.options import NsqdOptions
from gnsqsync.embedded.queueing import QueuedMessage
from gnsqsync.embedded.topic import Topic, TopicGone

EPOCH_NS = 1_795_000_000 * 10**9


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def now(self) -> float:
        return self.seconds

    def wall_ns(self) -> int:
        return EPOCH_NS + round(self.seconds * 1e9)


class Sink:
    """A consumer that keeps what it gets. `limit` stands for RDY."""

    def __init__(self, limit: int = 1, timeout: float = 60.0, sample_rate: int = 0) -> None:
        self.limit = limit
        self.in_flight = 0
        self.delivery_timeout = self.msg_timeout = timeout
        self.sample_rate = sample_rate
        self.requeue_count = self.finish_count = 0
        self.messages: list[QueuedMessage] = []
        self.batches = 0
        self.is_closed = False

    def room(self) -> int:
        return max(0, self.limit - self.in_flight)

    def deliver(self, messages: list[QueuedMessage]) -> None:
        self.messages += messages
        self.batches += 1

    def pump_turned(self) -> None:
        pass

    def channel_closed(self) -> None:
        self.is_closed = True

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


class Bench:
    """A broker and its clock; `advance` does what the server's alarm would do."""

    def __init__(self, **options: Any) -> None:
        self.clock = Clock()
        self.broker = Broker(
            NsqdOptions(**options),
            node_id=617,
            now=self.clock.now,
            wall_ns=self.clock.wall_ns,
            rng=random.Random(1),
        )
        self.events: list[tuple[str, str, str | None]] = []
        self.broker.listeners.append(lambda *event: self.events.append(event))

    def topic(self, name: str = "t") -> Topic:
        return self.broker.topic(name)

    def consumer(self, topic: str = "t", channel: str = "c", **options: Any) -> Sink:
        sink = Sink(**options)
        self.topic(topic).channel(channel).add_consumer(sink)
        self.settle(channel=channel, topic=topic)
        return sink

    def settle(self, topic: str = "t", channel: str = "c") -> None:
        self.broker.schedule.wake(self.topic(topic).channel(channel))
        self.broker.schedule.settle()

    def publish(self, *bodies: bytes, delay: float = 0.0) -> None:
        self.topic().publish(bodies, delay)
        self.broker.schedule.settle()

    def advance(self, seconds: float) -> None:
        end = self.clock.seconds + seconds
        while (when := self.broker.schedule.next_at()) is not None and when <= end:
            self.clock.seconds = max(when, self.clock.seconds)
            self.broker.schedule.expire()
            self.broker.schedule.settle()
        self.clock.seconds = end


# -- names and ids -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [b".", b"A-b_c.9", b"a" * 64, b"a" * 54 + b"#ephemeral"])
def test_valid_names(name: bytes) -> None:
    assert valid_name(name)


@pytest.mark.parametrize(
    "name",
    [
        b"",
        b"a" * 65,
        b"a" * 55 + b"#ephemeral",
        b"#ephemeral",
        b"a#eph",
        "é".encode(),
        b"a\n",
        b"*",
    ],
)
def test_invalid_names(name: bytes) -> None:
    assert not valid_name(name)


def test_go_quote() -> None:
    assert go_quote(b'a"b\\c\t\x01\xff') == b'"a\\"b\\\\c\\t\\x01\\xff"'
    assert go_quote("é\u2028".encode()) == '"é\\u2028"'.encode()


def test_id_of_the_reference() -> None:
    """The vector of docs/protocol/commands#test-vectors: 18a203db89669000, node 617, sequence 0."""
    assert GuidFactory(617).new_id(1795187783142211584) == b"18a203db89669000"


def test_ids_rise_past_a_full_millisecond_and_a_clock_that_steps_back() -> None:
    factory = GuidFactory(1)
    ids = [factory.new_id(EPOCH_NS) for _ in range(10_000)]
    ids += [factory.new_id(EPOCH_NS - 10**9) for _ in range(10)]
    assert ids == sorted(set(ids))


# -- copying to channels -------------------------------------------------------------------------


def test_the_first_channel_gets_what_waits_and_later_ones_do_not() -> None:
    bench = Bench()
    bench.publish(b"1", b"2")
    assert bench.topic().depth == 2
    first = bench.topic().channel("first")
    second = bench.topic().channel("second")
    assert (bench.topic().depth, first.depth, second.depth) == (0, 2, 0)


def test_copies_share_id_time_and_body_but_not_attempts() -> None:
    bench = Bench()
    a, b = bench.consumer(channel="a", limit=0), bench.consumer(channel="b")
    body = bytes(100)
    bench.publish(body)
    a.limit = 1
    (mine,) = b.messages
    assert bench.topic().channel("b").requeue(mine.id, b, 0) is None
    bench.settle(channel="b")
    bench.settle(channel="a")
    assert [m.attempts for m in b.messages] == [2, 2]  # the same object, delivered twice
    (other,) = a.messages
    assert (other.id, other.timestamp, other.attempts) == (mine.id, mine.timestamp, 1)
    assert other.body is body


def test_a_paused_topic_keeps_its_messages() -> None:
    bench = Bench()
    sink = bench.consumer(limit=5)
    bench.topic().pause(True)
    bench.publish(b"1")
    assert (sink.bodies, bench.topic().depth) == ([], 1)
    bench.topic().pause(False)
    bench.broker.schedule.settle()
    assert sink.bodies == [b"1"]


def test_known_channels_exist_before_the_first_message_flows() -> None:
    bench = Bench()
    bench.broker.known_channels = lambda topic: ["a", "b#ephemeral", "c"]
    bench.publish(b"1")
    assert {name: c.depth for name, c in bench.topic().channels.items()} == {"a": 1, "c": 1}


def test_messages_wait_while_the_channels_are_asked_for() -> None:
    bench = Bench()

    def ask(topic: str) -> list[str]:
        # Another client publishes to the topic while this one's query is under way.
        bench.broker.topic("t").publish([b"other"])
        return ["a", "b"]

    bench.broker.known_channels = ask
    bench.publish(b"mine")
    depths = {name: channel.depth for name, channel in bench.topic().channels.items()}
    assert depths == {"a": 2, "b": 2}


def test_messages_flow_even_if_the_channels_could_not_be_asked_for() -> None:
    bench = Bench()

    def fail(topic: str) -> list[str]:
        raise ValueError("down")

    bench.broker.known_channels = fail
    with pytest.raises(ValueError, match="down"):
        bench.topic()
    sink = bench.consumer()
    bench.publish(b"1")
    assert sink.bodies == [b"1"]


def test_publishing_to_a_topic_that_was_deleted_meanwhile() -> None:
    bench = Bench()
    topic = bench.topic()
    bench.broker.delete_topic("t")
    with pytest.raises(TopicGone, match="exiting"):
        topic.publish([b"1"])


# -- delivery ------------------------------------------------------------------------------------


def test_no_more_than_rdy_in_order_and_the_next_after_fin() -> None:
    bench = Bench()
    sink = bench.consumer(limit=2)
    bench.publish(b"1", b"2", b"3", b"4")
    assert sink.bodies == [b"1", b"2"]
    channel = bench.topic().channel("c")
    assert channel.finish(sink.messages[0].id, sink) is None
    bench.broker.schedule.settle()
    assert sink.bodies == [b"1", b"2", b"3"]
    assert (channel.depth, len(channel.in_flight), sink.in_flight) == (1, 2, 2)


def test_one_delivery_for_a_batch_and_even_shares() -> None:
    bench = Bench()
    one, two = bench.consumer(limit=100), bench.consumer(limit=100)
    bench.publish(*[b"%d" % i for i in range(51)])
    assert (one.batches, two.batches) == (1, 1)
    assert {len(one.messages), len(two.messages)} == {25, 26}
    assert sorted(one.bodies + two.bodies) == sorted(b"%d" % i for i in range(51))


def test_single_messages_go_round() -> None:
    bench = Bench()
    one, two = bench.consumer(limit=100), bench.consumer(limit=100)
    for _ in range(10):
        bench.publish(b"x")
    assert (len(one.messages), len(two.messages)) == (5, 5)


def test_a_consumer_without_room_leaves_all_to_the_other() -> None:
    bench = Bench()
    full, free = bench.consumer(limit=0), bench.consumer(limit=10)
    bench.publish(b"1", b"2", b"3")
    assert (full.bodies, free.bodies) == ([], [b"1", b"2", b"3"])


def test_large_bodies_come_in_several_batches() -> None:
    bench = Bench()
    sink = bench.consumer(limit=100)
    bench.publish(*[bytes(200_000)] * 6)
    assert (len(sink.messages), sink.batches) == (6, 3)


def test_a_paused_channel_holds_and_releases() -> None:
    bench = Bench()
    sink = bench.consumer(limit=5)
    bench.topic().channel("c").pause(True)
    bench.publish(b"1")
    assert sink.bodies == []
    bench.topic().channel("c").pause(False)
    bench.broker.schedule.settle()
    assert sink.bodies == [b"1"]


def test_sampling_destroys_the_rest() -> None:
    bench = Bench()
    sink = bench.consumer(limit=3000, sample_rate=1)
    bench.publish(*[b"x"] * 2000)
    channel = bench.topic().channel("c")
    assert 10 <= len(sink.messages) <= 90
    assert (channel.depth, len(channel.in_flight)) == (0, len(sink.messages))
    assert channel.message_count == 2000


def test_answers_of_a_stranger_and_for_nothing() -> None:
    bench = Bench()
    owner, stranger = bench.consumer(), bench.consumer(limit=0)
    bench.publish(b"1")
    channel = bench.topic().channel("c")
    id = owner.messages[0].id
    for answer in (channel.finish, channel.touch, lambda id, c: channel.requeue(id, c, 0)):
        assert answer(id, stranger) == NOT_OWNER
        assert answer(b"0" * 16, owner) == NOT_IN_FLIGHT
    assert (len(channel.in_flight), owner.in_flight) == (1, 1)


def test_attempts_wrap_as_on_the_wire() -> None:
    bench = Bench()
    channel = bench.topic().channel("c")
    channel.put(QueuedMessage(b"0" * 16, 1, b"x", attempts=65535))
    sink = bench.consumer()
    assert sink.messages[0].attempts == 0


def test_the_limit_of_consumers() -> None:
    bench = Bench(max_channel_consumers=2)
    bench.consumer()
    bench.consumer()
    with pytest.raises(TooManyConsumers):
        bench.consumer()


# -- time ----------------------------------------------------------------------------------------


def test_a_timeout_returns_the_message_to_the_tail() -> None:
    bench = Bench()
    sink = bench.consumer(timeout=1.0)
    bench.publish(b"1", b"2")
    bench.advance(0.99)
    assert sink.bodies == [b"1"]
    bench.advance(0.02)
    channel = bench.topic().channel("c")
    assert sink.bodies == [b"1", b"2"]
    assert (channel.timeout_count, channel.requeue_count, channel.depth) == (1, 0, 1)
    assert channel.finish(sink.messages[0].id, sink) == NOT_IN_FLIGHT
    bench.advance(1.0)
    assert (sink.bodies[2], sink.messages[2].attempts) == (b"1", 2)


def test_finished_messages_do_not_time_out() -> None:
    bench = Bench()
    sink = bench.consumer(limit=100, timeout=1.0)
    bench.publish(*[b"x"] * 50)
    channel = bench.topic().channel("c")
    for message in sink.messages[:49]:
        channel.finish(message.id, sink)
    bench.advance(2.5)
    assert channel.timeout_count == 2
    assert len(sink.messages) == 52


def test_messages_of_a_consumer_that_left_stay_until_they_time_out() -> None:
    bench = Bench()
    gone = bench.consumer(timeout=2.0)
    bench.publish(b"1")
    channel = bench.topic().channel("c")
    channel.remove_consumer(gone)
    other = bench.consumer()
    bench.advance(1.9)
    assert (len(channel.in_flight), other.bodies) == (1, [])
    bench.advance(0.2)
    assert (other.bodies, other.messages[0].attempts) == ([b"1"], 2)


def test_touch_extends_up_to_the_cap() -> None:
    bench = Bench(max_msg_timeout=3.0)
    sink = bench.consumer(timeout=1.0)
    bench.publish(b"1")
    channel = bench.topic().channel("c")
    for _ in range(3):
        bench.advance(0.9)
        assert channel.touch(sink.messages[0].id, sink) is None
    bench.advance(0.2)
    assert channel.timeout_count == 0  # 2.9 s after the delivery
    bench.advance(0.2)
    assert channel.timeout_count == 1


def test_requeue_with_a_delay_is_deferred() -> None:
    bench = Bench()
    sink = bench.consumer()
    bench.publish(b"1")
    channel = bench.topic().channel("c")
    assert channel.requeue(sink.messages[0].id, sink, 0.5) is None
    assert (len(channel.deferred), channel.depth, channel.requeue_count) == (1, 0, 1)
    bench.advance(0.49)
    assert len(sink.messages) == 1
    bench.advance(0.02)
    assert sink.messages[1].attempts == 2


def test_the_delay_of_a_publish_starts_when_a_channel_gets_it() -> None:
    bench = Bench()
    bench.publish(b"1", delay=2.0)
    bench.advance(3.0)
    sink = bench.consumer()
    channel = bench.topic().channel("c")
    assert (len(channel.deferred), channel.depth, channel.message_count) == (1, 0, 1)
    bench.advance(1.9)
    assert sink.bodies == []
    bench.advance(0.2)
    assert (sink.bodies, sink.messages[0].attempts) == ([b"1"], 1)


def test_a_delay_is_lost_beyond_the_memory_queue() -> None:
    bench = Bench(mem_queue_size=1)
    for body in (b"1", b"2"):
        bench.publish(body, delay=60.0)
    sink = bench.consumer(limit=5)
    assert sink.bodies == [b"2"]


def test_nothing_is_planned_when_nothing_is_due() -> None:
    bench = Bench()
    sink = bench.consumer(timeout=1.0)
    bench.publish(b"1")
    bench.topic().channel("c").finish(sink.messages[0].id, sink)
    bench.advance(5.0)
    assert bench.broker.schedule.next_at() is None


def test_earlier_plans_are_told() -> None:
    bench = Bench()
    told: list[float] = []
    bench.broker.schedule.on_plan = told.append
    bench.topic().channel("c")
    for delay in (5.0, 10.0, 1.0):
        bench.publish(b"x", delay=delay)
    assert told == [105.0, 101.0]


# -- overflow, ephemeral, empty, delete ----------------------------------------------------------


def test_overflow_is_counted_as_backend() -> None:
    bench = Bench(mem_queue_size=5)
    bench.topic().channel("c")
    bench.publish(*[b"x"] * 20)
    channel = bench.topic().channel("c")
    assert (channel.depth, channel.backend_depth) == (20, 15)


@pytest.mark.parametrize("size", [0, 5])
def test_ephemeral_queues_drop_what_does_not_fit(size: int) -> None:
    bench = Bench(mem_queue_size=size)
    topic = bench.broker.topic("t#ephemeral")
    topic.publish([b"x"] * 20)
    assert (topic.depth, topic.backend_depth, topic.message_count) == (size, 0, 20)
    channel = bench.topic().channel("c#ephemeral")
    bench.publish(*[b"x"] * 20)
    assert (channel.depth, channel.backend_depth, channel.message_count) == (size, 0, 20)


@pytest.mark.parametrize("size", [0, 5])
def test_an_ephemeral_channel_drops_nothing_that_a_consumer_takes(size: int) -> None:
    bench = Bench(mem_queue_size=size)
    sink = bench.consumer(channel="c#ephemeral", limit=15)
    bench.publish(*[b"%d" % i for i in range(20)])
    assert len(sink.messages) == 15
    assert bench.topic().channel("c#ephemeral").depth == size


def test_an_ephemeral_channel_and_topic_go_with_the_last_consumer() -> None:
    bench = Bench()
    sink = bench.consumer(topic="e#ephemeral", channel="c#ephemeral")
    bench.broker.topics["e#ephemeral"].channels["c#ephemeral"].remove_consumer(sink)
    assert bench.broker.topics == {}
    assert bench.events[-2:] == [
        ("channel deleted", "e#ephemeral", "c#ephemeral"),
        ("topic deleted", "e#ephemeral", None),
    ]


def test_an_ephemeral_topic_stays_with_a_normal_channel_or_none() -> None:
    bench = Bench()
    bench.broker.topic("a#ephemeral").publish([b"1"])
    sink = bench.consumer(topic="b#ephemeral", channel="c")
    bench.broker.topics["b#ephemeral"].channels["c"].remove_consumer(sink)
    assert set(bench.broker.topics) == {"a#ephemeral", "b#ephemeral"}


def test_empty_drops_everything_and_frees_the_consumers() -> None:
    bench = Bench()
    sink = bench.consumer()
    bench.publish(b"1", b"2")
    bench.publish(b"3", delay=1.0)
    channel = bench.topic().channel("c")
    channel.empty()
    assert (channel.depth, len(channel.in_flight), len(channel.deferred)) == (0, 0, 0)
    assert channel.finish(sink.messages[0].id, sink) == NOT_IN_FLIGHT
    bench.publish(b"4")
    assert sink.bodies == [b"1", b"4"]
    bench.advance(120.0)
    assert channel.message_count == 4


def test_deleting_a_topic_closes_its_consumers_and_a_new_one_starts_empty() -> None:
    bench = Bench()
    sink = bench.consumer()
    bench.publish(b"1", b"2")
    assert bench.broker.delete_topic("t")
    assert sink.is_closed
    assert not bench.broker.delete_topic("t")
    bench.advance(120.0)
    assert bench.topic().depth == 0


def test_a_deleted_channel_leaves_the_topic_collecting() -> None:
    bench = Bench()
    sink = bench.consumer()
    assert bench.broker.delete_channel("t", "c")
    assert sink.is_closed
    bench.publish(b"1")
    assert bench.topic().depth == 1
    assert not bench.broker.delete_channel("t", "c")


def test_everything_for_a_clean_stop() -> None:
    bench = Bench()
    bench.consumer()
    bench.publish(b"1", b"2")
    bench.publish(b"3", delay=60.0)
    kept = list(bench.topic().channel("c").unsaved())
    assert [(m.body, m.attempts) for m in kept] == [(b"2", 0), (b"1", 1), (b"3", 0)]


def test_messages_in_memory_only_are_counted_by_queue() -> None:
    bench = Bench()
    assert bench.broker.in_memory_only() == {}
    bench.consumer()
    bench.publish(b"1", b"2")
    bench.publish(b"3", delay=60.0)
    bench.broker.topic("waits").publish([b"4"])
    for name in ("t#ephemeral", "with"):
        bench.broker.topic(name).channel("c#ephemeral")
        bench.broker.topic(name).publish([b"5"])
    bench.broker.schedule.settle()
    assert bench.broker.in_memory_only() == {f"{bench.topic().name}/c": 3, "waits": 1}


def test_latencies_of_half_a_window_to_a_whole_one() -> None:
    from gnsqsync.embedded.latency import LatencyWindow, latency_figures

    window = LatencyWindow((0.5,), 10.0, 100.0)
    for now in (100.0, 104.9, 105.0):
        window.add(now, 1)
    counts = [latency_figures([window], now)["count"] for now in (109.9, 110.0, 114.9, 115.0)]
    assert counts == [3, 1, 1, 0]
    window.add(131.0, 1)
    assert latency_figures([window], 139.0) == {
        "count": 1,
        "percentiles": [{"quantile": 0.5, "value": 1}],
    }
    assert latency_figures([window], 500.0)["count"] == 0


def test_latency_quantiles() -> None:
    from gnsqsync.embedded.stats import gather

    bench = Bench(e2e_processing_latency_percentile=(0.5, 1.0))
    sink = bench.consumer(limit=10)
    bench.publish(b"1", b"2")
    channel = bench.topic().channel("c")
    for message in sink.messages:
        bench.advance(1.0)
        channel.finish(message.id, sink)
    channel.consumers.clear()
    (topic,) = gather(bench.broker, [])["topics"]
    figures = topic["channels"][0]["e2e_processing_latency"]
    assert figures == topic["e2e_processing_latency"]
    assert figures["count"] == 2
    assert [p["quantile"] for p in figures["percentiles"]] == [1.0, 0.5]
    assert figures["percentiles"][0]["value"] == pytest.approx(2e9)

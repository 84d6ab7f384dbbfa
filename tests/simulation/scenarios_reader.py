"""Readers, in what takes seconds or hours by the clock: here it jumps. See ``scenario.World``.

Each function is called on threads and on greenlets; an AssertionError in it is a failure.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import Any

from gnsqsync import Message, Observer, Reader, ReaderGroup
from tests.simulation.scenario import World


def scenario_auto_touch_keeps_a_message_longer_than_its_timeout(world: World) -> None:
    seen: list[int] = []

    def handler(message: Message) -> None:
        seen.append(message.attempts)
        world.sleep(8)

    nsqd = world.nsqd(msg_timeout=60.0)
    world.writer(nsqd).publish("t", b"slow")
    reader = world.reader(handler, nsqd, msg_timeout=3, auto_touch=True)
    world.eventually(lambda: reader.stats().finished == 1)
    assert seen == [1]


def scenario_without_auto_touch_it_comes_again(world: World) -> None:
    seen: list[int] = []

    def handler(message: Message) -> None:
        seen.append(message.attempts)
        if message.attempts == 1:
            world.sleep(8)

    nsqd = world.nsqd()
    world.writer(nsqd).publish("t", b"slow")
    world.reader(handler, nsqd, msg_timeout=3, concurrency=2, max_in_flight=2)
    world.eventually(lambda: seen == [1, 2])


def scenario_touch_ends_at_the_limit_of_nsqd(world: World) -> None:
    """--max-msg-timeout: what is touched longer than that comes again."""
    seen: list[float] = []

    def handler(message: Message) -> None:
        seen.append(world.now)
        if message.attempts == 1:
            world.sleep(60)

    nsqd = world.nsqd(max_msg_timeout=20.0)
    world.writer(nsqd).publish("t", b"slow")
    world.reader(handler, nsqd, msg_timeout=3, auto_touch=True, concurrency=2, max_in_flight=2)
    world.eventually(lambda: len(seen) == 2)
    assert 19.5 < seen[1] - seen[0] < 24.0


def scenario_a_message_that_fails_comes_again_after_its_delay(world: World) -> None:
    """requeue_delay times the attempts, at most max_requeue_delay, and up to a tenth more."""
    times: list[float] = []

    def handler(message: Message) -> None:
        times.append(world.now)
        if message.attempts < 5:
            raise ValueError("the work failed")

    nsqd = world.nsqd()
    world.writer(nsqd).publish("t", b"x")
    world.reader(
        handler, nsqd, requeue_delay=90, max_requeue_delay=200, max_backoff_duration=0,
        max_attempts=0,
    )  # fmt: skip
    world.eventually(lambda: len(times) == 5, 3600)
    pauses = [after - before for before, after in pairwise(times)]
    for pause, expected in zip(pauses, (90, 180, 200, 200), strict=True):
        assert expected - 0.01 < pause < expected * 1.1 + 1, pauses


def scenario_backoff_doubles_and_each_success_halves_it(world: World) -> None:
    """2, 4, 8 ... 64, 120 and 120 seconds; then as many successes as there are levels."""
    fails = True
    times: list[float] = []

    def handler(message: Message) -> None:
        times.append(world.now)
        world.sleep(0.01)
        if fails:
            raise ValueError("the work failed")

    nsqd = world.nsqd()
    writer = world.writer(nsqd)
    reader = world.reader(
        handler,
        nsqd,
        max_backoff_duration=120,
        backoff="every_failure",
        requeue_delay=1,
        max_requeue_delay=1,
        max_attempts=0,
    )
    writer.publish("t", b"x")
    world.eventually(lambda: len(times) == 9, 3600)
    world.sleep(0.5)
    pauses = [after - before for before, after in pairwise(times)]
    for pause, expected in zip(pauses, (2, 4, 8, 16, 32, 64, 120, 120), strict=True):
        assert expected <= pause < expected + 0.5, pauses
    fails = False
    for number in range(20):
        writer.publish("t", b"%d" % number)
    times.clear()
    world.eventually(lambda: len(times) == 21, 3600)
    pauses = [after - before for before, after in pairwise(times)]
    for pause, expected in zip(pauses[:6], (64, 32, 16, 8, 4, 2), strict=True):
        assert expected <= pause < expected + 0.5, pauses
    assert not reader.is_in_backoff


def scenario_in_a_pause_no_nsqd_may_send_and_a_test_is_one_message(world: World) -> None:
    nsqds = [world.nsqd() for _ in range(3)]
    works = False
    noted: list[tuple[int, float]] = []

    class Levels(Observer):
        def backoff(self, level: int, seconds: float) -> None:
            noted.append((level, seconds))

    def handler(message: Message) -> None:
        if not works:
            raise ValueError("the work failed")

    reader = world.reader(
        handler, *nsqds, max_in_flight=9, requeue_delay=3600, backoff_multiplier=0.75,
        latency="throughput", observer=Levels(), backoff="every_failure",
    )  # fmt: skip
    world.eventually(lambda: world.rdy() == [3, 3, 3])
    world.writer(nsqds[1]).publish("t", b"x")
    world.eventually(lambda: world.rdy() == [0, 0, 0])
    began = world.now
    assert noted == [(1, 1.5)]
    world.eventually(lambda: sum(world.rdy()) == 1)
    assert 1.4 < world.now - began < 1.7
    with world.watched(1):
        # Nothing is there to test with: the test goes on, from one nsqd to the next.
        tested = set()
        for _ in range(500):
            tested.update(number for number, level in enumerate(world.rdy()) if level)
            world.sleep(0.01)
        assert tested == {0, 1, 2}
        # The connection under test goes, the test and the level stay.
        world.eventually(lambda: sum(world.rdy()) == 1)
        gone = world.rdy().index(1)
        nsqds[gone].kill()
        world.eventually(lambda: len(reader.stats().connections) == 2)
        world.eventually(lambda: sum(world.rdy()) == 1)
        assert reader.is_in_backoff
        assert reader.stats().backoff_level == 1
    # One success on each level ends it.
    works = True
    for nsqd in nsqds:
        if nsqd.is_up:
            world.writer(nsqd).publish("t", b"x")
    world.eventually(lambda: not reader.is_in_backoff)
    world.eventually(lambda: sum(world.rdy()) == 9)
    assert noted[-1] == (0, 0.0)


def scenario_more_nsqds_than_max_in_flight_take_turns(world: World) -> None:
    count, limit, work = 20, 5, 0.5
    first: dict[str, float] = {}
    nsqds = [world.nsqd() for _ in range(count)]
    for nsqd in nsqds:
        # More than what is handled within the bound below if nobody has to give way.
        world.writer(nsqd).publish_many("t", [b"x"] * 1000)

    def handler(message: Message) -> None:
        first.setdefault(message.nsqd_address, world.now)
        world.sleep(work)

    with world.watched(limit, handed_on=1):
        reader = world.reader(handler, *nsqds, max_in_flight=limit, concurrency=limit)
        world.eventually(lambda: len(reader.stats().connections) == count)
        connected = world.now
        world.eventually(lambda: len(first) == count, 600)
    bound = math.ceil(count / limit) * (work + 0.1)
    assert max(first.values()) - connected <= bound
    assert all(connection.rdy <= 1 for connection in reader.stats().connections)


def _waits(world: World, rates: list[float], seconds: float, **options: Any) -> list[float]:
    """Seconds from publish to handler, sorted, of nsqds with these rates and one slot."""
    waits: list[float] = []
    sent: dict[bytes, float] = {}
    nsqds = [world.nsqd() for _ in rates]

    def handler(message: Message) -> None:
        waits.append(world.now - sent[message.body])

    def publish(nsqd: Any, rate: float) -> None:
        writer, until = world.writer(nsqd), world.now + seconds
        world.sleep(0.37 / rate)
        while world.now < until:
            body = b"%s %d" % (nsqd.address.encode(), len(sent))
            sent[body] = world.now
            writer.publish("t", body)
            world.sleep(1.0 / rate)

    reader = world.reader(handler, *nsqds, max_in_flight=1, **options)
    world.eventually(lambda: len(reader.stats().connections) == len(rates))
    for nsqd, rate in zip(nsqds, rates, strict=True):
        if rate:
            world.spawn(publish, nsqd, rate)
    world.sleep(seconds)
    world.eventually(lambda: len(waits) == len(sent) > 0)
    return sorted(waits)


def scenario_three_nsqds_with_messages_and_one_slot(world: World) -> None:
    waits = _waits(world, [5.0, 4.9, 5.1], world.size(30, 60))
    assert waits[len(waits) // 2] <= 0.06
    assert waits[len(waits) * 99 // 100] <= 0.25


def scenario_ten_nsqds_of_which_one_has_messages_and_one_slot(world: World) -> None:
    waits = _waits(world, [5.0] + [0.0] * 9, world.size(30, 60))
    assert waits[len(waits) * 99 // 100] <= 1.0


def scenario_one_slot_drains_full_nsqds_evenly(world: World) -> None:
    nsqds = [world.nsqd() for _ in range(4)]
    for nsqd in nsqds:
        world.writer(nsqd).publish_many("t", [b"x"] * 1000)
    counts: Counter[str] = Counter()
    at_work, most = 0, 0

    def handler(message: Message) -> None:
        nonlocal at_work, most
        counts[message.nsqd_address] += 1
        at_work += 1
        most = max(most, at_work)
        world.sleep(0.001)
        at_work -= 1

    world.reader(handler, *nsqds, max_in_flight=1, concurrency=2)
    world.eventually(lambda: counts.total() >= 1000)
    assert len(counts) == 4 and most == 1
    assert max(counts.values()) <= 1.2 * min(counts.values())


def scenario_a_long_job_in_the_only_slot_is_waited_for_and_nothing_else(world: World) -> None:
    nsqds = [world.nsqd() for _ in range(3)]
    ended: list[float] = []
    begun: list[float] = []

    def handler(message: Message) -> None:
        begun.append(world.now)
        if message.body == b"long":
            world.sleep(50.0)
            ended.append(world.now)

    reader = world.reader(handler, *nsqds, max_in_flight=1, concurrency=2)
    world.eventually(lambda: len(reader.stats().connections) == 3)
    world.writer(nsqds[0]).publish("t", b"long")
    world.eventually(lambda: begun)
    for nsqd in nsqds[1:]:
        world.writer(nsqd).publish("t", b"short")
    world.eventually(lambda: len(begun) == 3, 120)
    assert ended[0] <= sorted(begun)[1] and max(begun) - ended[0] <= 0.25


def _group(world: World, handler: Any, nsqd: Any, topics: list[str]) -> ReaderGroup:
    """Start a group with one slot for all topics."""
    readers = [
        Reader(topic, "c", handler, nsqd_tcp_addresses=nsqd.address, runtime=world.runtime)
        for topic in topics
    ]
    group = ReaderGroup(readers, max_in_flight=1, runtime=world.runtime)
    group.start(block=False)
    world.eventually(lambda: all(reader.stats().connections for reader in readers))
    return group


def scenario_five_topics_of_a_group_and_one_slot(world: World) -> None:
    nsqd, topics, seconds, rate = world.nsqd(), list("abcde"), world.size(20, 60), 5.0
    waits: list[float] = []
    sent: dict[bytes, float] = {}

    def handler(message: Message) -> None:
        waits.append(world.now - sent[message.body])

    def publish(topic: str) -> None:
        writer, until = world.writer(nsqd), world.now + seconds
        world.sleep(ord(topic) * 0.37 / rate % 1.0)
        while world.now < until:
            body = b"%s %d" % (topic.encode(), len(sent))
            sent[body] = world.now
            writer.publish(topic, body)
            world.sleep(1.0 / rate)

    group = _group(world, handler, nsqd, topics)
    for topic in topics:
        world.spawn(publish, topic)
    world.sleep(seconds)
    world.eventually(lambda: len(waits) == len(sent) > 0)
    group.stop()
    group.join()
    waits.sort()
    assert waits[len(waits) * 99 // 100] <= 0.5


def scenario_one_slot_of_a_group_drains_full_topics_evenly(world: World) -> None:
    nsqd, topics = world.nsqd(), list("abcde")
    for topic in topics:
        world.writer(nsqd).publish_many(topic, [topic.encode()] * 1000)
    counts: Counter[bytes] = Counter()
    at_work, most = 0, 0

    def handler(message: Message) -> None:
        nonlocal at_work, most
        counts[message.body] += 1
        at_work += 1
        most = max(most, at_work)
        world.sleep(0.001)
        at_work -= 1

    began = world.now
    group = _group(world, handler, nsqd, topics)
    world.eventually(lambda: counts.total() >= 1000)
    took = world.now - began
    group.stop()
    group.join()
    assert len(counts) == 5 and most == 1
    assert max(counts.values()) <= 1.2 * min(counts.values())
    # Half of what the handler allows, and two seconds to start.
    assert took <= 2.0 + 2 * 1000 * 0.001


def scenario_a_message_in_spite_of_rdy_0_is_handled_and_holds_up_the_others(world: World) -> None:
    """nsqd empties the channel, so that it forgets what is in flight, and sends one more."""
    one, other = world.nsqd(), world.nsqd()
    at_work, most, handled = 0, 0, []

    def handler(message: Message) -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        world.sleep(2.0)
        at_work -= 1
        handled.append(message.body)

    world.reader(handler, one, other, max_in_flight=1, concurrency=2)
    first = world.writer(one)
    first.publish("t", b"first")
    world.eventually(lambda: at_work == 1)
    channel = one.broker.topics["t"].channels["c"]
    channel.empty()
    first.publish("t", b"rare")
    world.writer(other).publish("t", b"third")
    world.eventually(lambda: len(handled) == 3)
    assert handled[-1] == b"third" and most == 2


def scenario_an_nsqd_that_comes_back_is_consumed_from_again(world: World) -> None:
    """However long it was away, within the longest pause between two dials and its jitter."""
    handled: list[bytes] = []
    nsqd = world.nsqd()
    world.reader(lambda message: handled.append(message.body), nsqd)
    world.eventually(lambda: world.rdy() == [1])
    nsqd.kill()
    world.sleep(3600)
    nsqd.start()
    world.writer(nsqd).publish("t", b"x")
    world.eventually(lambda: handled == [b"x"], 5.1)


def scenario_a_silent_nsqd_is_left_after_two_heartbeats(world: World) -> None:
    """By Readers and by Writers, which go on with another one meanwhile."""
    silent, busy = world.nsqd(), world.nsqd()
    reasons: list[str] = []

    class Noting(Observer):
        def lost(self, nsqd_address: str, reason: Exception) -> None:
            reasons.append(str(reason))

    reader = world.reader(print, silent, heartbeat_interval=30, observer=Noting())
    writer = world.writer(silent, busy, heartbeat_interval=30)
    writer.connect()
    world.eventually(lambda: world.rdy() == [1])
    silent.freeze(200)
    world.sleep(59)
    assert reader.stats().connections
    assert len(writer.stats().connections) == 2
    world.sleep(2)
    assert not reader.stats().connections
    assert [connection.address for connection in writer.stats().connections] == [busy.address]
    assert reasons == [f"{silent.address} was silent for 60 s"]
    assert [
        line for line in world.logged("WARNING") if f"lost {silent.address}: {reasons[0]}" in line
    ]
    world.sleep(240)
    # Dialled again, and not only noticed.
    assert reader.stats().connections
    writer.publish_many("t", [b"x"] * 2)
    writer.publish("t", b"x")
    world.eventually(lambda: len(writer.stats().connections) == 2)


def scenario_an_outage_that_many_readers_see_is_one_line_at_each_end(world: World) -> None:
    lost: Counter[str] = Counter()
    nsqd = world.nsqd()

    class Noting(Observer):
        def __init__(self, channel: str) -> None:
            self._channel = channel

        def lost(self, nsqd_address: str, reason: Exception) -> None:
            lost[self._channel] += 1

    for channel in ("shop", "mail", "count"):
        world.reader(
            print, nsqd, channel=channel, observer=Noting(channel), dead_letter_topic="dead"
        )
    world.eventually(lambda: world.rdy() == [1, 1, 1])
    world.writer(nsqd).connect()
    nsqd.kill()
    # Each tries again and again, and tells its Observer.
    world.eventually(lambda: len(lost) == 3 and min(lost.values()) >= 3)
    (begin,) = world.logged("WARNING")
    assert "3 consumers of this process use it: t/shop, t/mail, t/count" in begin
    nsqd.start()
    world.eventually(lambda: world.rdy() == [1, 1, 1])
    _, end = world.logged("WARNING")
    assert f"{nsqd.address} is back after" in end
    assert "3 consumers of this process use it" in end
    assert not world.logged("ERROR")


def _most_in(times: list[float], seconds: float) -> int:
    """The most messages in any time of that length."""
    most = begin = 0
    for end, time in enumerate(times):
        while time - times[begin] > seconds:
            begin += 1
        most = max(most, end - begin + 1)
    return most


def _limited(world: World, rate: float, nsqds: int, seconds: float, **options: Any) -> list[float]:
    """When messages came, for so long, with enough of them at each of the nsqds."""
    came: list[float] = []
    servers = [world.nsqd() for _ in range(nsqds)]
    for nsqd in servers:
        bodies = [b"x"] * (int(rate * seconds * 1.2) + 50)
        world.writer(nsqd).publish_many("t", bodies)
    options = {"max_in_flight": 100, "concurrency": 4, **options}
    world.reader(lambda message: came.append(world.now), *servers, rate_limit=rate, **options)
    world.sleep(seconds)
    return came


def _holds(
    world: World, rate: float, burst: int, nsqds: int, seconds: float, **options: Any
) -> None:
    came = _limited(world, rate, nsqds, seconds, **options)
    # From each nsqd one message more may be on its way.
    slack = burst + nsqds
    for length in (0.1, 1.0, 10.0, seconds / 2):
        assert _most_in(came, length) <= rate * length + slack + 1, (length, _most_in(came, length))
    assert len(came) >= 0.95 * rate * seconds - 1, len(came)


def scenario_a_rate_limit_holds_and_is_reached(world: World) -> None:
    _holds(world, 50, 50, 1, world.size(30, 60))


def scenario_a_high_rate_limit_holds_and_is_reached(world: World) -> None:
    _holds(world, 1000, 20, 1, 5, rate_burst=20)


def scenario_a_slow_rate_limit_holds_and_is_reached(world: World) -> None:
    _holds(world, 0.5, 1, 1, 200)


def scenario_a_rate_limit_over_three_nsqds(world: World) -> None:
    _holds(world, 10, 3, 3, 60, rate_burst=3)


def scenario_a_slow_rate_limit_over_three_nsqds(world: World) -> None:
    _holds(world, 0.2, 1, 3, 400)


def scenario_one_busy_nsqd_of_five_gets_the_whole_rate(world: World) -> None:
    came: list[float] = []
    busy, *idle = [world.nsqd() for _ in range(5)]
    world.writer(busy).publish_many("t", [b"x"] * 1000)
    world.reader(
        lambda message: came.append(world.now), busy, *idle, rate_limit=5, max_in_flight=50
    )
    world.sleep(60)
    assert 285 <= len(came) <= 315, len(came)


def scenario_what_a_rate_limit_leaves_is_for_others(world: World) -> None:
    nsqd = world.nsqd()
    world.writer(nsqd).publish_many("t", [b"x"] * 400)
    counts: Counter[str] = Counter()

    def limited(message: Message) -> None:
        counts["limited"] += 1
        # Whoever takes long takes no more for that.
        world.sleep(0.05)

    def other(message: Message) -> None:
        counts["other"] += 1
        world.sleep(0.1)

    world.reader(limited, nsqd, rate_limit=1, max_in_flight=20)
    world.reader(other, nsqd)
    world.eventually(lambda: sum(counts.values()) == 400)
    assert counts["limited"] <= 50, counts


def scenario_a_rate_limit_allows_a_burst_after_a_quiet_time(world: World) -> None:
    nsqd = world.nsqd()
    writer = world.writer(nsqd)
    came: list[float] = []
    world.reader(
        lambda message: came.append(world.now), nsqd, rate_limit=2, rate_burst=10, max_in_flight=50
    )
    world.sleep(60)
    published = world.now
    writer.publish_many("t", [b"x"] * 30)
    world.eventually(lambda: len(came) == 30)
    assert came[9] - published < 0.5
    assert came[-1] - published > 9.0


def scenario_a_rate_limit_with_backoff_and_failures(world: World) -> None:
    came: list[float] = []
    nsqd = world.nsqd()
    world.writer(nsqd).publish_many("t", [b"x"] * 50)

    def handler(message: Message) -> None:
        came.append(world.now)
        if len(came) < 4:
            raise ValueError

    reader = world.reader(
        handler, nsqd, rate_limit=5, requeue_delay=0, max_in_flight=10, max_attempts=0
    )
    world.eventually(lambda: reader.stats().finished == 50, 120)
    assert _most_in(came, 1.0) <= 5 + 5 + 2


def scenario_lists_are_limited_too(world: World) -> None:
    nsqd = world.nsqd()
    world.writer(nsqd).publish_many("t", [b"x"] * 100)
    reader = world.reader(None, nsqd, rate_limit=10, rate_burst=5, max_in_flight=50)
    came: list[float] = []
    for batch in reader.batches(max_messages=50, max_wait=0.1):
        came += [world.now] * len(batch)
        reader.finish(batch)
        if len(came) == 100:
            break
    assert _most_in(came, 1.0) <= 10 + 5 + 2
    assert came[-1] - came[0] < 12


def scenario_a_handler_that_takes_longer_than_its_limit_has_failed(world: World) -> None:
    ended: list[str] = []

    def handler(message: Message) -> None:
        try:
            world.sleep(3600 if message.attempts == 1 else 29.9)
            ended.append("returned")
        finally:
            ended.append(f"{message.attempts} ended")

    nsqd = world.nsqd()
    world.writer(nsqd).publish("t", b"slow")
    reader = world.reader(
        handler, nsqd, time_limit=30, requeue_delay=5, max_backoff_duration=0, concurrency=2
    )
    world.eventually(lambda: reader.stats().finished == 1, 90)
    assert ended == ["1 ended", "returned", "2 ended"]
    assert reader.stats().requeued == 1


def scenario_the_reading_thread_reads_again_when_a_second_nsqd_joins(world: World) -> None:
    """A message that nobody reads would use a slot that another nsqd has, too."""
    lent: list[bool] = []

    def is_lent() -> bool:
        connections: Any = reader._running().subscription.connections()
        return any(c.messages._turn.is_lent for c in connections)

    def handler(message: Message) -> None:
        if message.body == b"19":
            lent.append(is_lent())
            reader.add_nsqd(second.address)
            world.eventually(lambda: len(reader._running().subscription.connections()) == 2)
            lent.append(is_lent())

    first, second = world.nsqd(), world.nsqd()
    world.writer(first).publish_many("t", [str(number).encode() for number in range(20)])
    reader = world.reader(handler, first, concurrency=1, max_in_flight=1)
    world.eventually(lambda: len(lent) == 2)
    assert lent == [True, False]

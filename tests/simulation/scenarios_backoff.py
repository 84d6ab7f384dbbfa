"""Poison messages and outages, in virtual time: who waits, and how often handlers are called.

Each function is called on threads and on greenlets; an AssertionError in it is a failure.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from gnsqsync import Message, Observer, Reader, ReaderGroup, Requeue, Writer
from tests.simulation.scenario import World

# Seconds that a healthy message may wait: 99 % of them.
_HEALTHY_SECONDS = 0.1


class Levels(Observer):
    """Notes each pause of a Reader, and its end as (0, 0.0)."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.noted: list[tuple[int, float]] = []
        self.at: list[float] = []

    def backoff(self, level: int, seconds: float) -> None:
        self.noted.append((level, seconds))
        self.at.append(self._world.now)

    @property
    def pauses(self) -> list[float]:
        return [seconds for level, seconds in self.noted if level]


class Calls:
    """A handler, and when it was called with what. ``fails`` decides by the message."""

    def __init__(self, world: World, fails: Callable[[Message], bool], work: float = 0.002) -> None:
        self._world = world
        self._fails = fails
        self._work = work
        self.times: list[float] = []
        self.done: dict[bytes, float] = {}
        # Moments at which a message failed, by body.
        self.failed: dict[bytes, list[float]] = {}
        self.attempts: Counter[bytes] = Counter()

    def __call__(self, message: Message) -> None:
        self.times.append(self._world.now)
        self.attempts[message.body] = message.attempts
        fails = self._fails(message)
        self._world.sleep(self._work)
        if fails:
            self.failed.setdefault(message.body, []).append(self._world.now)
            raise ValueError("the work failed")
        self.done[message.body] = self._world.now


class Publisher:
    """Publishes numbered messages at a steady rate, for so many seconds."""

    def __init__(self, world: World, writer: Writer, rate: float, seconds: float) -> None:
        self.at: dict[bytes, float] = {}
        self._world, self._writer = world, writer
        self.task = world.spawn(self._run, rate, seconds)

    def _run(self, rate: float, seconds: float) -> None:
        begun = self._world.now
        for number in range(int(rate * seconds)):
            self._world.sleep(max(0.0, begun + number / rate - self._world.now))
            body = b"%d" % number
            self.at[body] = self._world.now
            self._writer.publish("t", body)


def _waits(publisher: Publisher, calls: Calls) -> list[float]:
    """Sorted seconds from the publish to the end of the handler of healthy messages."""
    return sorted(done - publisher.at[body] for body, done in calls.done.items())


def _poison(world: World, share: float, rate: int, seconds: int, **options: Any) -> None:
    """Healthy messages do not wait for poison ones, which come again and again."""
    rng = random.Random(f"poison {share}")
    count = rate * seconds
    poison = {b"%d" % number for number in range(count) if rng.random() < share}
    calls = Calls(world, lambda message: message.body in poison)
    nsqd = world.nsqd()
    reader = world.reader(calls, nsqd, max_attempts=5, on_giving_up="discard", **options)
    world.eventually(lambda: world.rdy())
    publisher = Publisher(world, world.writer(nsqd), rate, seconds)
    publisher.task.join()
    world.eventually(lambda: len(calls.done) == count - len(poison))
    waits = _waits(publisher, calls)
    assert waits[int(len(waits) * 0.99)] <= _HEALTHY_SECONDS, waits[-100::10]
    assert not reader.is_in_backoff
    assert "backs off" not in world.log()


def scenario_poison_of_two_percent_makes_nobody_wait(world: World) -> None:
    _poison(world, 0.02, 20, 120)


def scenario_poison_of_two_percent_that_comes_again_at_once(world: World) -> None:
    _poison(world, 0.02, 20, world.size(60, 120), requeue_delay=1)


def scenario_poison_of_a_fifth_makes_nobody_wait(world: World) -> None:
    # The first ones come again after 90 seconds.
    _poison(world, 0.2, world.size(8, 20), 120)


def scenario_poison_of_a_fifth_that_comes_again_at_once_with_workers(world: World) -> None:
    seconds = world.size(30, 120)
    _poison(world, 0.2, 20, seconds, requeue_delay=1, concurrency=4, max_in_flight=8)


def scenario_a_process_that_starts_beside_poison_does_not_pause(world: World) -> None:
    """A fifth of what it meets first has failed elsewhere."""
    calls = Calls(world, lambda message: message.body.startswith(b"poison"))
    nsqd = world.nsqd()
    writer = world.writer(nsqd)
    options: dict[str, Any] = {"requeue_delay": 10, "max_requeue_delay": 10, "max_attempts": 0}
    first = world.reader(calls, nsqd, **options)
    seconds = world.size(45, 90)
    publisher = Publisher(world, writer, 20.0, seconds)
    for number in range(50):
        writer.publish("t", b"poison %d" % number)
        world.sleep(0.5)
    world.reader(calls, nsqd, **options)
    world.sleep(1.0)
    first.stop()
    publisher.task.join()
    world.eventually(lambda: len(calls.done) == 20 * seconds)
    waits = _waits(publisher, calls)
    assert waits[int(len(waits) * 0.99)] <= _HEALTHY_SECONDS, waits[-100::10]
    assert "backs off" not in world.log()


def _four_in_a_row(world: World, **options: Any) -> float:
    """Seconds until the good messages behind four bad ones are handled."""
    calls = Calls(world, lambda message: message.body.startswith(b"bad"))
    nsqd = world.nsqd()
    writer = world.writer(nsqd)
    world.reader(calls, nsqd, requeue_delay=1, max_attempts=0, **options)
    for number in range(4):
        writer.publish("t", b"bad %d" % number)
    world.eventually(lambda: len(calls.failed) == 4, 60)
    world.sleep(0.5)
    begun = world.now
    for number in range(10):
        writer.publish("t", b"good %d" % number)
    world.eventually(lambda: len(calls.done) == 10, 3600)
    return world.now - begun


def scenario_four_bad_messages_in_a_row_hold_no_good_one_up(world: World) -> None:
    assert _four_in_a_row(world) < 5.0


def scenario_by_the_guide_four_bad_messages_in_a_row_hold_all_up(world: World) -> None:
    assert _four_in_a_row(world, backoff="every_failure") > 60.0


def scenario_sixteen_bad_messages_in_a_row_hold_good_ones_up_for_seconds(world: World) -> None:
    calls = Calls(world, lambda message: message.body.startswith(b"bad"))
    nsqd = world.nsqd()
    writer = world.writer(nsqd)
    world.reader(calls, nsqd, max_attempts=0)
    for number in range(15):
        writer.publish("t", b"bad %d" % number)
    writer.publish_many("t", [b"good %d" % number for number in range(100)])
    begun = world.now
    world.eventually(lambda: len(calls.done) == 100, 5.0)
    assert world.now - begun > 1.5, "it did not pause"


def _outage(world: World, **options: Any) -> None:
    """Expect one call between two pauses, pauses up to 25 s, and the full rate after the end."""
    down = True
    calls = Calls(world, lambda message: down)
    levels = Levels(world)
    nsqds = [world.nsqd() for _ in range(options.pop("nsqds", 1))]
    writers = [world.writer(nsqd) for nsqd in nsqds]
    reader = world.reader(calls, *nsqds, observer=levels, max_attempts=0, **options)
    for writer in writers:
        writer.publish_many("t", [b"waits"] * (4000 // len(nsqds)))
    world.sleep(600.0)
    pauses = levels.pauses
    for pause, full in zip(pauses, (2, 4, 8, 16, *[25] * len(pauses)), strict=False):
        assert 0.8 * full - 0.01 <= pause <= full + 0.01, pauses
    assert len(pauses) >= 20, pauses
    # Between the end of a pause and the next one.
    for (before, pause), at in zip(pairwise(levels.at), levels.pauses, strict=False):
        called = sum(before + at - 0.01 <= time <= pause + 0.01 for time in calls.times)
        assert called <= 1, called
    workers = options.get("concurrency", 1)
    assert sum(time < levels.at[0] + 0.001 for time in calls.times) <= 15 + workers
    (warning,) = [line for line in world.logged("WARNING") if "backs off" in line]
    assert "all its messages wait" in warning
    assert reader.is_in_backoff
    assert reader.stats().backoff_level == 5
    down = False
    world.eventually(lambda: not reader.is_in_backoff, 30.0)
    # The full rate: as many as the workers can do.
    world.sleep(1.0)
    recent = sum(time > world.now - 1.0 for time in calls.times)
    assert recent > 0.7 * workers / (calls._work + 0.004), recent


def scenario_an_outage_is_tested_with_one_message_a_pause(world: World) -> None:
    _outage(world)


def scenario_an_outage_with_many_messages_in_flight(world: World) -> None:
    _outage(world, max_in_flight=2500)


def scenario_an_outage_with_several_workers(world: World) -> None:
    _outage(world, max_in_flight=64, concurrency=8)


def scenario_an_outage_with_three_nsqds(world: World) -> None:
    _outage(world, nsqds=3, max_in_flight=9)


def scenario_what_waits_when_a_pause_begins_goes_back_unhandled(world: World) -> None:
    """Another consumer can handle it. nsqd counts an attempt more."""
    calls = Calls(world, lambda message: True, work=0.01)
    nsqd = world.nsqd()
    world.writer(nsqd).publish_many("t", [b"%d" % number for number in range(500)])
    reader = world.reader(calls, nsqd, max_in_flight=200, latency="throughput")
    world.eventually(lambda: reader.is_in_backoff)
    world.eventually(lambda: reader.stats().in_flight == 0, 0.5)
    called = len(calls.times)
    assert called <= 17
    well = Calls(world, lambda message: False)
    world.reader(well, nsqd, max_in_flight=50)
    world.eventually(lambda: len(well.done) >= 500 - called - 2, 60)
    seen = Counter(well.attempts.values())
    # Messages that had waited in the client of the first one.
    assert 100 < seen[2] < 200, seen


def scenario_what_went_back_unhandled_has_its_tries_yet(world: World) -> None:
    """Each message fails once in an outage of a minute, and none is given up."""
    down = True
    calls = Calls(world, lambda message: down, work=0.01)
    nsqd = world.nsqd()
    world.writer(nsqd).publish_many("t", [b"%d" % number for number in range(200)])
    reader = world.reader(
        calls, nsqd, max_in_flight=200, max_attempts=2, on_giving_up="discard",
        latency="throughput", backoff_multiplier=0.1,
    )  # fmt: skip
    world.sleep(60.0)
    down = False
    world.eventually(lambda: len(calls.done) == 200, 300.0)
    assert max(map(len, calls.failed.values())) == 1
    # With the deliveries by which they went back.
    assert max(calls.attempts.values()) >= 3
    assert reader.stats().gave_up == 0


def scenario_after_an_outage_a_quiet_channel_has_its_whole_limit_in_seconds(world: World) -> None:
    down = True
    calls = Calls(world, lambda message: down)
    nsqds = [world.nsqd() for _ in range(2)]
    writer = world.writer(nsqds[0])
    writer.publish_many("t", [b"%d" % number for number in range(18)])
    reader = world.reader(
        calls, *nsqds, max_in_flight=100, max_attempts=0, latency="throughput", requeue_delay=3600
    )
    world.eventually(lambda: reader.is_in_backoff)
    down = False
    world.eventually(lambda: bool(calls.done), 5.0)
    world.eventually(lambda: not reader.is_in_backoff, 5.5)
    world.eventually(lambda: world.rdy() == [50, 50], 0.1)


def _half(world: World, seconds: int, **options: Any) -> tuple[int, int, list[list[float]], int]:
    """A downstream that fails half of the time: successes, failures, when by message, handed."""
    rng = random.Random("half")
    calls = Calls(world, lambda message: rng.random() < 0.5)
    nsqd = world.nsqd()
    bodies = [b"%d" % number for number in range(seconds * 25)]
    world.writer(nsqd).publish_many("t", bodies)
    reader = world.reader(calls, nsqd, max_attempts=0, **options)
    world.sleep(seconds)
    failures = sum(map(len, calls.failed.values()))
    returned = reader.stats().requeued - failures
    return len(calls.done), failures, list(calls.failed.values()), returned


def scenario_a_downstream_that_fails_half_of_the_time(world: World) -> None:
    """The Reader goes on, and no message burns its attempts faster than its delays allow."""
    # The first minutes cost more attempts than those behind them.
    done, failures, by_message, returned = _half(world, 3600, max_in_flight=10)
    assert done > 300, done
    assert failures < 2 * done
    # Attempts without a handler, of what waited when a pause began.
    assert returned < done, (returned, done)
    for times in by_message:
        for number, (before, after) in enumerate(pairwise(times), 1):
            assert after - before >= number * 90.0 - 1.0, times


def scenario_by_the_guide_a_downstream_that_fails_half_of_the_time(world: World) -> None:
    seconds = world.size(1200, 3600)
    done, failures, _, _ = _half(world, seconds, max_in_flight=10, backoff="every_failure")
    assert done > seconds / 72, done
    assert failures < 3 * done


def scenario_a_flapping_database(world: World) -> None:
    """Ten seconds up, ten seconds down: it works in each up time that it meets."""
    calls = Calls(world, lambda message: world.now % 20.0 >= 10.0, work=0.02)
    levels = Levels(world)
    nsqd = world.nsqd()
    world.writer(nsqd).publish_many("t", [b"%d" % number for number in range(10_000)])
    reader = world.reader(
        calls, nsqd, observer=levels, max_in_flight=20, max_attempts=0, requeue_delay=600
    )
    seconds = world.size(300, 600)
    world.sleep(seconds)
    failures = sum(map(len, calls.failed.values()))
    assert len(calls.done) > 5 * seconds, len(calls.done)
    assert failures < 0.1 * len(calls.done), failures
    # Each outage is over before the next one begins, so no pause outlasts an up time.
    assert max(levels.pauses) <= 8.0
    assert reader.stats().connections


def scenario_a_message_an_hour_that_fails_pauses_nobody(world: World) -> None:
    calls = Calls(world, lambda message: True)
    nsqd = world.nsqd()
    writer = world.writer(nsqd)
    reader = world.reader(calls, nsqd, max_attempts=3, on_giving_up="discard")
    for number in range(world.size(6, 8)):
        writer.publish("t", b"%d" % number)
        world.sleep(3600.0)
        assert not reader.is_in_backoff
    assert "backs off" not in world.log()
    (warning,) = [line for line in world.logged("WARNING") if "one after the other" in line]
    assert "5 different messages failed" in warning
    assert "goes on without a pause" in warning


def scenario_a_burst_of_poison_is_worked_off(world: World) -> None:
    """200 messages of one burst are as an outage: one test a pause. Good ones behind them wait."""
    calls = Calls(world, lambda message: message.body.startswith(b"bad"))
    nsqd = world.nsqd()
    writer = world.writer(nsqd)
    writer.publish_many("t", [b"bad %d" % number for number in range(200)])
    writer.publish_many("t", [b"good %d" % number for number in range(100)])
    levels = Levels(world)
    world.reader(
        calls, nsqd, observer=levels, max_attempts=2, on_giving_up="discard", requeue_delay=3600,
        max_requeue_delay=3600,
    )  # fmt: skip
    world.eventually(lambda: len(calls.done) == 100, 185 * 25.0)
    assert len(calls.failed) == 200


def scenario_a_burst_of_poison_that_is_rejected_holds_nobody_up(world: World) -> None:
    """A handler that knows that a message can never succeed says so."""
    calls = Calls(world, lambda message: message.body.startswith(b"bad"))
    nsqd = world.nsqd()
    writer = world.writer(nsqd)
    writer.publish_many("t", [b"bad %d" % number for number in range(200)])
    writer.publish_many("t", [b"good %d" % number for number in range(100)])
    world.reader(calls, nsqd, reject_on=ValueError, on_giving_up="discard")
    world.eventually(lambda: len(calls.done) == 100, 5.0)


def scenario_a_burst_that_failed_together_comes_again_spread(world: World) -> None:
    calls = Calls(world, lambda message: message.attempts == 1, work=0.0)
    nsqd = world.nsqd()
    world.reader(calls, nsqd, max_in_flight=100, concurrency=4, max_backoff_duration=0)
    world.writer(nsqd).publish_many("t", [b"%d" % number for number in range(100)])
    world.eventually(lambda: len(calls.done) == 100, 120.0)
    done = sorted(calls.done.values())
    first = min(calls.times)
    assert done[0] - first >= 90.0
    assert done[-1] - first <= 99.5
    assert done[-1] - done[0] > 7.0


def scenario_requeues_without_backoff_are_no_failures(world: World) -> None:
    """Handlers and calls may put a message off. It may wait in this way before it fails."""
    down = False

    def handler(message: Message) -> None:
        if message.attempts == 1:
            raise Requeue(0.1, backoff=False)
        if message.attempts == 2:
            message.requeue(0.1, backoff=False)
        elif down:
            raise ValueError("the work failed")

    nsqd = world.nsqd()
    writer = world.writer(nsqd)
    reader = world.reader(handler, nsqd, max_in_flight=4, max_attempts=0)
    writer.publish_many("t", [b"x"] * 100)
    world.eventually(lambda: reader.stats().finished == 100)
    assert "backs off" not in world.log()
    down = True
    writer.publish_many("t", [b"x"] * 100)
    world.eventually(lambda: reader.is_in_backoff)


def scenario_messages_that_are_answered_by_a_call_are_judged_the_same(world: World) -> None:
    nsqd = world.nsqd()
    world.writer(nsqd).publish_many("t", [b"x"] * 100)
    works = False
    left: list[Message] = []
    reader = world.reader(None, nsqd, max_in_flight=30, max_attempts=0)
    taken = 0

    def take() -> None:
        nonlocal taken
        for messages in reader.batches(10, 0.2):
            for message in messages:
                taken += 1
                message.finish() if works else message.requeue(1.0)

    world.spawn(take)
    world.eventually(lambda: reader.is_in_backoff)
    world.sleep(60.0)
    assert taken < 60, taken
    works = True
    world.eventually(lambda: not reader.is_in_backoff, 30.0)
    world.eventually(lambda: reader.stats().finished == 100, 30.0)
    assert not left


def scenario_members_of_a_group_pause_alone(world: World) -> None:
    """A topic whose handler is in an outage gives the shared limit to the others."""
    nsqd = world.nsqd()
    writer = world.writer(nsqd)
    well = Calls(world, lambda message: False)
    ill = Calls(world, lambda message: True)
    readers = [
        Reader(
            "t", channel, calls, nsqd_tcp_addresses=nsqd.address, runtime=world.runtime,
            max_attempts=0,
        )
        for channel, calls in (("well", well), ("ill", ill))
    ]  # fmt: skip
    with ReaderGroup(readers, max_in_flight=4, runtime=world.runtime):
        world.eventually(lambda: len(world.rdy()) == 2)
        seconds = world.size(60, 120)
        publisher = Publisher(world, writer, 20.0, seconds)
        publisher.task.join()
        world.eventually(lambda: len(well.done) == 20 * seconds, 10.0)
        assert len(ill.times) < 15 + 40
        assert readers[1].is_in_backoff and not readers[0].is_in_backoff
        waits = _waits(publisher, well)
        assert waits[int(len(waits) * 0.99)] <= _HEALTHY_SECONDS, waits[-100::10]


def scenario_a_pause_keeps_the_limit(world: World) -> None:
    """The sum of max(RDY, in flight) is never above it, not even while it grows again."""
    down = True
    calls = Calls(world, lambda message: down, work=0.02)
    nsqds = [world.nsqd() for _ in range(3)]
    for nsqd in nsqds:
        world.writer(nsqd).publish_many("t", [b"x"] * 3000)
    with world.watched(30):
        reader = world.reader(
            calls, *nsqds, max_in_flight=30, concurrency=10, max_attempts=0,
            max_backoff_duration=2, latency="throughput",
        )  # fmt: skip
        world.eventually(lambda: reader.is_in_backoff)
        times = world.size(2, 5)
        for _ in range(times):
            down = True
            world.sleep(8.0)
            down = False
            world.sleep(8.0)
    assert reader.stats().finished > 400 * times

"""What takes seconds or minutes by the clock: here the clock jumps. See ``scenario.World``.

Each function is called on threads and on greenlets; an AssertionError in it is a failure.
"""

from __future__ import annotations

from itertools import pairwise

from gnsqsync import Message
from gnsqsync.errors import NotSent
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
    """requeue_delay times the attempts, at most max_requeue_delay."""
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
        assert expected - 0.01 < pause < expected + 1, pauses


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

    def handler(message: Message) -> None:
        if not works:
            raise ValueError("the work failed")

    reader = world.reader(
        handler, *nsqds, max_in_flight=9, requeue_delay=3600, backoff_multiplier=0.75,
        latency="throughput",
    )  # fmt: skip
    world.eventually(lambda: world.rdy() == [3, 3, 3])
    world.writer(nsqds[1]).publish("t", b"x")
    world.eventually(lambda: world.rdy() == [0, 0, 0])
    began = world.now
    world.eventually(lambda: sum(world.rdy()) == 1)
    assert 1.4 < world.now - began < 1.7
    # Nothing is there to test with: the test goes on, from one nsqd to the next.
    tested = set()
    for _ in range(500):
        levels = world.rdy()
        assert sum(levels) <= 1, levels
        tested.update(number for number, level in enumerate(levels) if level)
        world.sleep(0.01)
    assert tested == {0, 1, 2}
    # The connection under test goes; another one is tested.
    gone = world.rdy().index(1)
    nsqds[gone].kill()
    world.eventually(lambda: len(reader.stats().connections) == 2)
    world.eventually(lambda: sum(world.rdy()) == 1)
    assert reader.stats().backoff_level == 1
    works = True
    for nsqd in nsqds:
        if nsqd.is_up:
            world.writer(nsqd).publish("t", b"x")
    world.eventually(lambda: not reader.is_in_backoff)
    world.eventually(lambda: sum(world.rdy()) == 9)


def scenario_more_nsqds_than_max_in_flight_take_turns(world: World) -> None:
    handled: list[str] = []
    nsqds = [world.nsqd() for _ in range(5)]
    for nsqd in nsqds:
        world.writer(nsqd).publish_many("t", [b"%d" % n for n in range(200)])
    world.reader(
        lambda message: (handled.append(message.nsqd_address), world.sleep(0.5)), *nsqds,
        max_in_flight=2, low_rdy_timeout=30,
    )  # fmt: skip
    # ceil(5 / 2) turns of 30 s, and what is at work at their ends.
    world.sleep(3 * 31)
    assert {nsqd.address for nsqd in nsqds} == set(handled)


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
    world.eventually(lambda: handled == [b"x"], 61)


def scenario_a_silent_nsqd_is_left_after_two_heartbeats(world: World) -> None:
    nsqd = world.nsqd()
    reader = world.reader(print, nsqd, heartbeat_interval=30)
    world.eventually(lambda: reader.stats().connections)
    nsqd.freeze(1e6)
    world.sleep(40)
    assert reader.stats().connections
    world.sleep(50)
    assert not reader.stats().connections


def scenario_an_idle_writer_keeps_its_connection_for_hours(world: World) -> None:
    nsqd = world.nsqd()
    writer = world.writer(nsqd)
    writer.publish("t", b"x")
    world.sleep(4 * 3600)
    assert len(writer.stats().connections) == 1
    writer.publish("t", b"x")
    assert len(nsqd.clients) == 1


def scenario_an_outage_fails_at_once_and_ends_by_itself(world: World) -> None:
    nsqd = world.nsqd()
    writer = world.writer(nsqd, outage="fail")
    writer.publish("t", b"x")
    nsqd.kill()
    world.sleep(120)
    for _ in range(3):
        began = world.now
        try:
            writer.publish("t", b"x")
        except NotSent:
            pass
        else:
            raise AssertionError("it was published")
        world.sleep(60)
    assert world.now - began < 61, "the outage is known"
    nsqd.start()
    world.sleep(61)
    writer.publish("t", b"x")

"""Writers, in what takes seconds or hours by the clock: here it jumps. See ``scenario.World``.

Each function is called on threads and on greenlets; an AssertionError in it is a failure.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gnsqsync.errors import NotSent, OutcomeUnknown, PublishError
from gnsqsync.wire.frames import encode_response
from tests.simulation.scenario import World

POLICIES = ("round_robin", "failover")


def failure(
    world: World, publish: Callable[[], object], kind: type[PublishError] = NotSent
) -> tuple[float, str]:
    """How long it took (seconds), and the text of the error."""
    began = world.now
    try:
        publish()
    except kind as error:
        return world.now - began, str(error)
    raise AssertionError("it was published")


def fails_at_once(world: World, publish: Callable[[], object], words: str) -> None:
    """But for the 5 ms in which others may run, or less when a dial ends."""
    began = world.now
    for _ in range(7):
        took, text = failure(world, publish)
        assert took < 0.01, took
        assert words in text
    assert world.now - began > 0.02, "others cannot run"


def works_again(world: World, publish: Callable[[], object]) -> float:
    """Publish in a loop until that succeeds; the seconds it took."""
    began = world.now
    for _ in range(10_000):
        try:
            publish()
        except NotSent:
            continue
        return world.now - began
    raise AssertionError(f"it does not work again within {world.now - began:g} s")


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


def scenario_a_port_that_refuses_is_an_outage_after_a_second(world: World) -> None:
    nsqd = world.nsqd()
    nsqd.kill()
    writer = world.writer(nsqd)
    took, text = failure(world, lambda: writer.publish("t", b"x"))
    assert 0.99 < took < 1.6, took
    assert re.match(r"no nsqd can be reached for 1\.\d s: ", text)
    assert "Connection refused" in text
    fails_at_once(world, lambda: writer.publish("t", b"x", timeout=60), "Connection refused")
    world.sleep(1)
    assert 2.0 < writer.stats().outage_seconds < 2.8
    nsqd.start()
    assert works_again(world, lambda: writer.publish("t", b"y")) < 2
    assert writer.stats().outage_seconds == 0
    assert world.bodies(nsqd) == [b"y"]


def scenario_one_task_dials_in_an_outage_however_many_publish(world: World) -> None:
    writer = world.writer("n9:4150")
    failure(world, lambda: writer.publish("t", b"x"))
    before = len(world.dials)
    until = world.now + 2

    def publish() -> None:
        while world.now < until:
            fails_at_once(world, lambda: writer.publish("t", b"x"), "Connection refused")

    tasks = [world.spawn(publish) for _ in range(8)]
    while world.now < until:
        assert len(world.tasks("nsq-read n9:4150")) == 1
        world.sleep(0.1)
    for task in tasks:
        task.join()
    assert 1 <= len(world.dials) - before <= 8
    # Also when nobody publishes, and 3 s after the last dial at most.
    before = len(world.dials)
    world.sleep(600)
    assert 200 <= len(world.dials) - before <= 420
    began = world.now
    writer.close()
    assert world.now - began < 0.1
    assert not world.tasks("nsq-read n9:4150")


def scenario_who_publishes_in_a_loop_lets_the_dial_run(world: World) -> None:
    """On greenlets nothing else would: an error that comes at once is no wait."""
    nsqd = world.nsqd()
    nsqd.kill()
    writer = world.writer(nsqd)
    failure(world, lambda: writer.publish("t", b"x"))
    world.scheduler.after(0.5, nsqd.start)
    assert works_again(world, lambda: writer.publish("t", b"x")) < 3


def scenario_it_is_an_outage_only_when_none_is_there(world: World) -> None:
    world.network.off["n9"] = None
    for policy in POLICIES:
        only_when_none_is_there(world, policy)


def only_when_none_is_there(world: World, policy: str) -> None:
    one, two = world.nsqd(), world.nsqd()
    writer = world.writer(
        one, two, "n9:4150", policy=policy, publish_timeout=1.5, connect_timeout=0.2
    )
    one.kill()
    for _ in range(5):
        writer.publish("t", b"x")
    assert len(world.bodies(two)) == 5
    two.kill()
    world.eventually(lambda: not writer.is_connected)
    failure(world, lambda: writer.publish("t", b"x"))
    world.eventually(lambda: writer.stats().outage_seconds)
    fails_at_once(world, lambda: writer.publish("t", b"x"), "Connection refused")
    one.start()
    works_again(world, lambda: writer.publish("t", b"y"))
    assert world.bodies(one) == [b"y"]


def scenario_who_waits_has_the_whole_timeout(world: World) -> None:
    nsqd = world.nsqd()
    nsqd.kill()
    writer = world.writer(nsqd, outage="wait", publish_timeout=1.5)
    for _ in range(2):
        took, text = failure(world, lambda: writer.publish("t", b"x"))
        assert 1.49 < took < 1.6, took
        assert "no nsqd could be reached within 1.5 s" in text
    task = world.spawn(writer.publish, "t", b"y", timeout=30)
    world.sleep(20)
    assert not task.done
    nsqd.start()
    task.join()
    assert world.bodies(nsqd) == [b"y"]


def scenario_publishes_that_wait_go_on_when_any_nsqd_is_back(world: World) -> None:
    """And dial none themselves."""
    one, two = world.nsqd(), world.nsqd()
    one.kill()
    two.kill()
    writer = world.writer(one, two, outage="wait")
    bodies = [b"%02d" % number for number in range(20)]
    tasks = [world.spawn(writer.publish, "t", body, timeout=60) for body in bodies]
    world.sleep(2.5)
    assert not any(task.done for task in tasks)
    # Twice as many in the first second as if each pause were the longest of its kind.
    assert len(world.dials) <= 2 * (20 + 4)
    two.start()
    for task in tasks:
        task.join()
    assert sorted(world.bodies(two)) == bodies


def scenario_behind_a_black_hole_the_next_nsqd_is_tried(world: World) -> None:
    world.network.off["n9"] = None
    good = world.nsqd()
    for policy in POLICIES:
        for _ in range(2):  # round robin may begin with either
            writer = world.writer("n9:4150", good, policy=policy, connect_timeout=60)
            writer.publish("t", b"x", timeout=4)
    assert world.bodies(good) == [b"x"] * 4
    assert "n9:4150" in world.dials


def scenario_an_nsqd_that_stops_reading_costs_each_publish_its_timeout(world: World) -> None:
    """Long before the connection ends."""
    nsqd = world.nsqd()
    writer = world.writer(nsqd)
    writer.connect()
    nsqd.freeze(4)
    # More than the kernels hold.
    large = bytes(500_000)

    def publish_large() -> None:
        took, text = failure(world, lambda: writer.publish("t", large, timeout=3.0), OutcomeUnknown)
        assert 2.99 < took < 3.1, took
        assert "did not answer the publish within 3 s" in text

    task = world.spawn(publish_large)
    world.eventually(lambda: writer.stats().connections[0].unanswered)
    took, _ = failure(world, lambda: writer.publish("t", b"not begun", timeout=0.1))
    assert 0.09 < took < 0.2, took
    assert not task.done
    task.join()
    # It reads again before the next one gives up.
    writer.publish("t", b"next", timeout=3.0)
    assert world.bodies(nsqd) == [large, b"next"]
    assert len(world.dials) == 1


def scenario_an_nsqd_that_stops_reading_is_left(world: World) -> None:
    """The connection ends after two heartbeat intervals without a heartbeat."""
    nsqd = world.nsqd()
    writer = world.writer(nsqd, heartbeat_interval=1)
    writer.connect()
    began = world.now
    nsqd.freeze(2.5)
    failure(world, lambda: writer.publish("t", bytes(500_000), timeout=0.5), OutcomeUnknown)
    world.eventually(lambda: not writer.is_connected)
    assert 1.9 < world.now - began < 2.2
    writer.publish("t", b"hello")
    # Of the other one nsqd got the beginning.
    assert world.bodies(nsqd) == [b"hello"]


def scenario_who_finds_no_nsqd_asks_before_its_time(world: World) -> None:
    lookupd = world.lookupd()
    writer = world.writer(lookupd_http_addresses=lookupd.url, lookupd_poll_interval=3600)
    publish = world.spawn(
        writer.publish,
        "t",
        b"x",
        timeout=20,
    )
    world.eventually(lambda: lookupd.asked)
    assert not publish.done
    one = world.nsqd()
    publish.join(2)
    # All that were listed are gone, and there is another one.
    one.kill()
    world.eventually(lambda: not writer.is_connected)
    two = world.nsqd()
    writer.publish("t", b"y", timeout=20)
    assert world.bodies(two) == [b"y"]
    assert len(lookupd.asked) < 10


def scenario_a_connection_that_was_slow_and_is_lost_is_no_outage_for_hours(world: World) -> None:
    """Nobody dials, as nobody publishes: the next publish does."""
    nsqd = world.nsqd()
    writer = world.writer(nsqd)
    writer.publish("t", b"x")
    nsqd.freeze(1e6)
    failure(world, lambda: writer.publish("t", b"x", timeout=0.5), OutcomeUnknown)
    nsqd.kill()
    world.sleep(1)
    nsqd.start()
    world.sleep(3 * 3600)
    assert not writer.stats().outage_seconds
    writer.publish("t", b"x")


def scenario_who_was_slow_and_falls_silent_is_dialled_by_the_next_publish(world: World) -> None:
    nsqd = world.nsqd()
    writer = world.writer(nsqd)
    writer.publish("t", b"x")
    nsqd.freeze(90)
    failure(world, lambda: writer.publish("t", b"x", timeout=0.5), OutcomeUnknown)
    world.eventually(lambda: not writer.stats().connections, 100)
    assert not writer.stats().outage_seconds
    took, _ = failure(world, lambda: writer.publish("t", b"x", timeout=2))
    assert took > 1.9
    world.sleep(60)
    writer.publish("t", b"x")


def scenario_a_heartbeat_does_not_extend_the_wait_for_an_answer(world: World) -> None:
    """Answers to others, too, come while the publisher that reads waits for its own."""
    nsqd = world.nsqd()
    writer = world.writer(nsqd)
    writer.publish("t", b"x")
    nsqd.freeze(10)
    (client,) = nsqd.clients
    world.scheduler.after(3.5, lambda: client.send_raw(encode_response(b"_heartbeat_")))
    took, text = failure(world, lambda: writer.publish("t", b"y", timeout=4.0), OutcomeUnknown)
    assert 3.9 < took < 4.1, took
    assert "did not answer the publish within 4 s" in text

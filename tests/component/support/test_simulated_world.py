"""The simulated world: virtual time, the same turns in each run, and nothing left behind."""

from __future__ import annotations

import logging
import random
import time

import greenlet
import pytest

from gnsqsync import Reader, Writer
from gnsqsync.errors import NotSent
from tests.simulation.world import SimWorld, simulated
from tests.support.counting import CountingRuntime
from tests.support.ground import black_hole, silent, unused
from tests.support.scripted import ScriptedNsqd

KINDS = ("threads", "gevent")


def history(kind: str, seed: str) -> list[object]:
    """Return what an nsqd saw of a Reader and a Writer, and when it was over."""
    with simulated(kind, seed) as world, ScriptedNsqd() as nsqd:
        where = "{}:{}".format(*nsqd.address)
        bodies: list[bytes] = []
        reader = Reader(
            "t",
            "c",
            lambda message: bodies.append(message.body),
            nsqd_tcp_addresses=where,
            runtime=world.runtime,
        )
        reader.start(block=False)
        writer = Writer(where, runtime=world.runtime)
        tasks = [world.spawn(writer.publish, "t", f"{n}") for n in range(5)]
        for task in tasks:
            task.join()
        world.eventually(lambda: nsqd.received("RDY"))
        (consumer,) = [c for c in nsqd.connections if any(x.name == "SUB" for x in c.commands)]
        consumer.message(b"x")
        world.eventually(lambda: bodies)
        reader.stop(1.0)
        reader.join()
        writer.close()
        return [(c.name, c.body) for c in nsqd.commands if c.name == "PUB"] + [world.now]


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_repeats_itself(kind: str) -> None:
    assert history(kind, "one") == history(kind, "one")


def test_another_seed_is_another_order_of_threads() -> None:
    assert len({str(history("threads", f"{n}")) for n in range(5)}) > 1


def test_a_world_gives_the_same_addresses_whatever_ran_before_it() -> None:
    found = []
    for _ in range(2):
        with simulated("threads", "ports"), ScriptedNsqd() as nsqd, unused() as nobody:
            found.append((nsqd.address, nobody))
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_silent_server_accepts_and_an_unused_address_refuses(kind: str) -> None:
    with simulated(kind, "addresses") as world, silent() as deaf, unused() as nobody:
        for (host, port), words in ((deaf, "within 3 s"), (nobody, "refused")):
            writer = Writer(f"{host}:{port}", runtime=world.runtime, connect_timeout=3)
            with pytest.raises(NotSent, match=words):
                writer.publish("t", b"x", timeout=4)
            writer.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_counting_runtime_has_the_virtual_clock(kind: str) -> None:
    with simulated(kind, "clock") as world:
        runtime = CountingRuntime(world.runtime)
        world.sleep(1800)
        assert runtime.now() == pytest.approx(world.now, abs=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_tasks_of_the_package_run_in_the_world_by_their_names(kind: str) -> None:
    with simulated(kind, "tasks") as world, ScriptedNsqd() as nsqd:
        where = "{}:{}".format(*nsqd.address)
        with Writer(where, runtime=world.runtime) as writer:
            writer.publish("t", b"x")
            assert world.running() == [f"nsq-read {where}"]
        world.eventually(lambda: not world.running())


@pytest.mark.parametrize("kind", KINDS)
def test_an_hour_takes_no_time(kind: str) -> None:
    now = time.process_time()
    with simulated(kind, "hour") as world:
        before, wall = time.monotonic(), time.time()
        time.sleep(1800)
        world.sleep(1800)
        assert time.monotonic() - before == pytest.approx(3600, abs=0.1)
        assert time.time() - wall == pytest.approx(3600, abs=0.1)
        assert world.now == pytest.approx(time.monotonic(), abs=0.1)
    assert time.process_time() - now < 60


@pytest.mark.parametrize("kind", KINDS)
def test_a_dial_into_a_black_hole_ends_by_its_timeout(kind: str) -> None:
    with simulated(kind, "hole") as world, black_hole() as (host, port):
        writer = Writer(f"{host}:{port}", runtime=world.runtime)
        before = world.now
        with pytest.raises(NotSent, match="within 3 s"):
            writer.publish("t", b"x", timeout=3)
        assert world.now - before == pytest.approx(3, abs=0.1)
        writer.close()


def test_a_hanging_task_fails_the_test() -> None:
    with simulated("threads", "hangs") as world:
        event = world.runtime.event()
        with pytest.raises(AssertionError, match="nothing ends the wait for an event"):
            event.wait()


def test_a_task_left_behind_fails_the_test() -> None:
    with pytest.raises(AssertionError, match="left behind: forgotten"):
        with simulated("threads", "left") as world:
            world.runtime.spawn("forgotten", world.runtime.event().wait)


def test_error_of_a_task_is_logged_and_that_of_a_spawned_one_is_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise KeyError("nobody foresaw this")

    with simulated("gevent", "fails") as world:
        world.runtime.spawn("a task", fail)
        world.sleep(1)
        task = world.spawn(fail)
        with pytest.raises(KeyError):
            task.join()
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert record.getMessage() == "a task ended by an unexpected exception"


@pytest.mark.parametrize("name", KINDS)
def test_an_exception_is_thrown_into_a_task(name: str) -> None:
    with simulated(name, "throw") as world:
        ended: list[BaseException] = []

        def wait() -> None:
            try:
                world.sleep(60)
            except LookupError as error:
                ended.append(error)

        handle = world.start(wait)
        world.sleep(1)
        world.throw(handle, LookupError)
        world.eventually(lambda: ended, 2)


def test_the_process_is_as_it_was() -> None:
    clocks = (time.monotonic, time.time, time.sleep, random.Random)
    with simulated("threads", "leaves") as world:
        assert isinstance(world, SimWorld)
        assert time.monotonic is not clocks[0]
    assert (time.monotonic, time.time, time.sleep, random.Random) == clocks


def test_a_finalizer_after_the_end_of_a_world_switches_to_no_greenlet() -> None:
    with simulated("threads", "a finalizer") as world:
        scheduler = world.scheduler
    finalizer = greenlet.greenlet(scheduler.give_way)
    finalizer.switch()
    assert finalizer.dead

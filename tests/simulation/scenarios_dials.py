"""Redials and questions to nsqlookupds: how soon a server that comes back is used, at what cost."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

from gnsqsync import Message
from tests.simulation.scenario import World


def scenario_an_nsqd_that_refuses_is_dialled_each_five_seconds(world: World) -> None:
    """However long it was away; and consumed from within five seconds of its return."""
    handled: list[bytes] = []
    nsqd = world.nsqd()
    world.reader(lambda message: handled.append(message.body), nsqd)
    world.eventually(lambda: world.rdy() == [1])
    nsqd.kill()
    times: list[float] = []
    while len(times) < world.size(120, 400):
        before = len(world.dials)
        world.eventually(lambda before=before: len(world.dials) > before, 5.1)  # type: ignore[misc]
        times.append(world.now)
    pauses = [after - before for before, after in pairwise(times[6:])]
    assert 2.4 < min(pauses) < 2.7 and 4.8 < max(pauses) < 5.1, (min(pauses), max(pauses))
    nsqd.start()
    world.writer(nsqd).publish("t", b"x")
    world.eventually(lambda: handled == [b"x"], 5.1)


def scenario_an_nsqd_that_is_silent_is_dialled_each_half_minute(world: World) -> None:
    """Each dial waits for its time-out, and then for at most 30 s."""
    nsqd = world.nsqd()
    world.reader(print, nsqd)
    world.eventually(lambda: world.rdy() == [1])
    nsqd.power_off()
    world.sleep(600)
    before = len(world.dials)
    world.sleep(3600)
    # Dials of 5 s, and pauses of 15 to 30 s.
    assert 3600 / 35 <= len(world.dials) - before <= 3600 / 20
    nsqd.start()
    world.eventually(lambda: world.rdy() == [1], 36)


def scenario_an_nsqd_that_ends_each_connection_is_dialled_each_minute(world: World) -> None:
    nsqd = world.nsqd()
    world.network.listeners[nsqd.name, nsqd.port] = lambda end: end.close()
    world.reader(print, nsqd)
    world.sleep(600)
    before = len(world.dials)
    world.sleep(3600)
    assert 60 <= len(world.dials) - before <= 120


def scenario_many_readers_that_lose_one_nsqd_spread_their_dials(world: World) -> None:
    """The nsqd is never dialled by all at once: after the loss, in the outage, at its return."""
    # The rule knows nothing of threads and greenlets, and a thousand take 15 s of a processor.
    readers, outage = world.size(200, 1000 if world.name == "threads" else 200), 60.0
    nsqd = world.nsqd()

    def never(message: Message) -> None:
        raise AssertionError("nothing was published")

    for _ in range(readers):
        world.reader(never, nsqd)
    world.eventually(lambda: len(world.rdy()) == readers)
    nsqd.kill()
    lost = world.now
    slots: Counter[int] = Counter()
    while world.now < lost + outage:
        before = len(world.dials)
        world.sleep(0.1)
        slots[math.floor((world.now - lost) * 10)] += len(world.dials) - before
    # The first dials lie in a quarter of a second; later ones in seconds.
    assert max(slots.values()) <= readers / 2, slots
    late = [count for slot, count in slots.items() if slot >= 200]
    # With few readers, a larger part of them meets by chance.
    assert max(late) <= readers / 15 + 5, late
    assert sum(late) <= readers * (outage - 20) / 2.5
    nsqd.start()
    world.eventually(lambda: len(world.rdy()) == readers, 5.5)


def _handle(message: Message) -> None:
    """Do nothing."""


def scenario_a_topic_that_is_created_later_is_consumed_within_four_seconds(world: World) -> None:
    """In the first five minutes; after them within the interval and its jitter."""
    for wait, goal in ((0.0, 4.0), (10.0, 4.0), (290.0, 4.0), (1000.0, 17.5)):
        lookupd, handled = world.lookupd(), list[float]()
        nsqd = world.nsqd()
        reader = world.reader(
            lambda message, handled=handled: handled.append(world.now),  # type: ignore[misc]
            lookupd_http_addresses=lookupd.url,
        )
        world.sleep(wait)
        published = world.now
        world.writer(nsqd).publish("t", b"x")
        world.eventually(lambda handled=handled: handled, goal)  # type: ignore[misc]
        assert handled[0] - published < goal
        reader.stop()
        reader.join()
        nsqd.kill()
        lookupd.kill()
        world.lookupds.clear()


def scenario_an_nsqd_that_joins_is_consumed_from_within_the_interval(world: World) -> None:
    lookupd = world.lookupd()
    world.writer(world.nsqd()).publish("t", b"x")
    reader = world.reader(_handle, lookupd_http_addresses=lookupd.url)
    world.eventually(lambda: reader.stats().connections)
    for count in (2, 3, 4):
        world.sleep(60)
        world.writer(world.nsqd()).publish("t", b"x")
        world.eventually(lambda count=count: len(reader.stats().connections) == count, 17.5)  # type: ignore[misc]


def scenario_the_first_nsqlookupd_that_returns_is_asked_within_five_seconds(world: World) -> None:
    """The nsqlookupds refuse, or are silent."""
    lookupds = [world.lookupd(), world.lookupd()]
    reader = world.reader(_handle, lookupd_http_addresses=[one.url for one in lookupds])
    world.sleep(5)
    for ends in ("refuses", "is silent"):
        for lookupd in lookupds:
            lookupd.kill()
            if ends == "is silent":
                world.network.off[lookupd.name] = None
        world.sleep(world.size(300, 1800))
        assert len(reader._run._discovery.failures) == 2  # type: ignore[union-attr]
        asked = len(lookupds[1].asked)
        lookupds[1].start()
        world.eventually(lambda asked=asked: len(lookupds[1].asked) > asked, 5.0)  # type: ignore[misc]
        lookupds[0].start()
        world.sleep(60)
    # An answer of one is enough: the other one is asked at the interval.
    lookupds[0].kill()
    world.sleep(60)
    before = len(lookupds[1].asked)
    world.sleep(150)
    assert 8 <= len(lookupds[1].asked) - before <= 12


def scenario_readers_that_ask_the_same_share_one_thread(world: World) -> None:
    """Each is told at its start; the last one that stops ends the thread."""
    lookupd = world.lookupd()
    world.writer(world.nsqd()).publish("t", b"x")
    readers = [
        world.reader(_handle, channel=f"c{number}", lookupd_http_addresses=lookupd.url)
        for number in range(20)
    ]
    world.eventually(lambda: all(reader.stats().connections for reader in readers), 2.0)
    assert len(world.tasks(f"nsq-lookup {lookupd.url}")) == 1
    assert len(lookupd.asked) <= 3
    before = len(lookupd.asked)
    world.sleep(150)
    assert 8 <= len(lookupd.asked) - before <= 12
    # Another interval is the same question, another token is not.
    late = world.reader(_handle, lookupd_http_addresses=lookupd.url, lookupd_poll_interval=1.0)
    other = world.reader(_handle, lookupd_http_addresses=lookupd.url, lookupd_authorization="x")
    world.eventually(lambda: late.stats().connections and other.stats().connections, 2.0)
    assert len(world.tasks(f"nsq-lookup {lookupd.url}")) == 2
    for reader in (other, *readers):
        reader.stop()
        reader.join()
    assert len(world.tasks(f"nsq-lookup {lookupd.url}")) == 1
    before = len(lookupd.asked)
    world.sleep(60)
    assert 50 <= len(lookupd.asked) - before <= 72
    late.stop()
    late.join()
    assert not world.tasks(f"nsq-lookup {lookupd.url}")


def scenario_one_that_leaves_during_a_question_does_not_cut_it_for_others(world: World) -> None:
    lookupd = world.lookupd()
    world.writer(world.nsqd()).publish("t", b"x")
    lookupd.answer_seconds = 1.0
    leaving = world.reader(_handle, channel="leaves", lookupd_http_addresses=lookupd.url)
    world.eventually(lambda: lookupd.asked)
    staying = world.reader(_handle, channel="stays", lookupd_http_addresses=lookupd.url)
    began = world.now
    leaving.stop()
    leaving.join()
    assert world.now - began < 0.5
    world.eventually(lambda: staying.stats().connections, 1.5)
    assert not [line for line in world.logged("WARNING") if "lookup" in line]


def scenario_an_nsqlookupd_that_is_added_without_threads_is_asked_later(world: World) -> None:
    """The call returns, and the Reader tries again, as with an nsqd whose dial finds no thread."""
    lookupd = world.lookupd()
    nsqd = world.nsqd()
    got: list[bytes] = []
    reader = world.reader(lambda message: got.append(message.body), world.nsqd())
    world.writer(nsqd).publish("t", b"x")
    until = world.now + 5
    world.scheduler.refuses_thread = lambda name: world.now < until and "nsq-lookup" in name
    reader.add_lookupd(lookupd.url)
    world.sleep(4)
    assert not got
    world.eventually(lambda: got == [b"x"], 5)

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
    while len(times) < 400:
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


def scenario_a_thousand_readers_that_lose_one_nsqd_spread_their_dials(world: World) -> None:
    """The nsqd is never dialled by all at once: after the loss, in the outage, at its return."""
    readers, outage = 1000, 60.0
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
    assert max(late) <= readers / 15, late
    assert sum(late) <= readers * (outage - 20) / 2.5
    nsqd.start()
    world.eventually(lambda: len(world.rdy()) == readers, 5.5)

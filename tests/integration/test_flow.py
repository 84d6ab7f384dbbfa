"""Who holds how much RDY, as nsqd's own /stats tell it: shares, turns, losses, backoff, pauses."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from gnsqsync import Message, NsqdHTTP, Observer
from gnsqsync.errors import NSQError
from tests.integration.conftest import Client, address, url
from tests.support.servers import Server, Site
from tests.support.waiting import LIMIT
from tests.support.worlds import World

# Two looks that are further apart than this may fall on both sides of a change. A slot is handed
# on 0.1 s after it was taken away.
ONE_MOMENT = 0.05


class Watch:
    """Looks at the consumers of a topic in the /stats of nsqds."""

    def __init__(self, world: World, topic: str, *servers: Server) -> None:
        self._topic = topic
        self._world = world
        self._apis: list[NsqdHTTP] = []
        for server in servers:
            self.add(server)

    def add(self, server: Server) -> None:
        self._apis.append(NsqdHTTP(url(server), runtime=self._world.runtime))

    def close(self) -> None:
        for api in self._apis:
            api.close()

    def channels(self) -> list[Any]:
        """The channel at each nsqd; None where there is none, or no nsqd."""
        found: list[Any] = []
        for api in self._apis:
            channel = None
            with suppress(NSQError):
                for topic in api.stats(self._topic).topics:
                    channel = next(iter(topic.channels), None)
            found.append(channel)
        return found

    def rdy(self) -> list[int]:
        """RDY of all consumers, per nsqd."""
        return [sum(c.ready_count for c in ch.clients) if ch else 0 for ch in self.channels()]

    def moment(self) -> list[int] | None:
        """max(RDY, in flight) per nsqd, if all were seen at nearly one moment."""
        started = time.monotonic()
        channels = self.channels()
        if time.monotonic() - started > ONE_MOMENT:
            return None
        return [
            sum(max(c.ready_count, c.in_flight_count) for c in ch.clients) if ch else 0
            for ch in channels
        ]

    def becomes(self, *rdy: int, timeout: float = LIMIT) -> None:
        """Wait until RDY is this, in any order of nsqds."""
        seen: list[int] = []

        def look() -> bool:
            seen[:] = self.rdy()
            return sorted(seen) == sorted(rdy)

        try:
            self._world.eventually(look, timeout)
        except AssertionError:
            raise AssertionError(f"RDY is {seen}, not {rdy}, after {timeout} s") from None


@pytest.fixture
def watch(world: World, topic: str) -> Iterator[Callable[..., Watch]]:
    made: list[Watch] = []

    def make(*servers: Server) -> Watch:
        made.append(Watch(world, topic, *servers))
        return made[-1]

    yield make
    for each in made:
        each.close()


class Sampler:
    """Notes the largest sum over all nsqds that lasted for three looks while a test goes on.

    A single look may fall between a RDY on its way and an nsqd that is slow to read it.
    """

    def __init__(self, world: World, watch: Watch) -> None:
        self.largest = 0
        self.looks = 0
        self._last = [0, 0, 0]
        self._ended = False
        self._watch = watch
        self._world = world
        self._task = world.spawn(self._run)

    def _run(self) -> None:
        while not self._ended:
            moment = self._watch.moment()
            if moment is not None:
                self.looks += 1
                self._last = [*self._last[1:], sum(moment)]
                self.largest = max(self.largest, min(self._last))
            self._world.sleep(0.005)

    def looked(self, more: int = 10) -> None:
        """Wait for so many looks."""
        wanted = self.looks + more
        self._world.eventually(lambda: self.looks >= wanted)

    def stop(self) -> int:
        self._ended = True
        self._task.join()
        return self.largest


class Feeder:
    """Keeps messages waiting at nsqds."""

    def __init__(self, client: Client, topic: str, *servers: Server) -> None:
        self._ended = False
        self._topic = topic
        self._world = client.world
        self._tasks = [client.world.spawn(self._run, client.writer(server)) for server in servers]

    def _run(self, writer: Any) -> None:
        while not self._ended:
            with suppress(NSQError):
                writer.publish_many(self._topic, [b"x"] * 100, timeout=1.0)
            self._world.sleep(0.1)

    def stop(self) -> None:
        self._ended = True
        for task in self._tasks:
            task.join()


# Shares


def test_the_survivor_holds_the_whole_limit(
    client: Client, site: Site, world: World, topic: str, watch: Callable[..., Watch]
) -> None:
    stays, leaves = site.nsqd(), site.own_nsqd()
    feeder = Feeder(client, topic, stays, leaves)
    client.consume(
        topic,
        lambda m: world.sleep(0.005),
        stays,
        leaves,
        max_in_flight=11,
        concurrency=4,
        # At once, and not in the next round.
        rdy_redistribute_interval=60.0,
        latency="throughput",
    )
    look = watch(stays, leaves)
    look.becomes(5, 6)
    leaves.kill()
    look.becomes(11, 0)
    feeder.stop()


def test_an_idle_nsqd_lends_and_gets_back(
    client: Client, site: Site, world: World, topic: str, watch: Callable[..., Watch]
) -> None:
    busy, idle = site.nsqds(2)
    feeder = Feeder(client, topic, busy)
    handled: Counter[str] = Counter()

    def handler(message: Message) -> None:
        handled[message.nsqd_address] += 1
        world.sleep(0.002)

    client.consume(
        topic,
        handler,
        busy,
        idle,
        max_in_flight=10,
        low_rdy_idle_timeout=0.5,
        rdy_redistribute_interval=0.2,
        latency="throughput",
    )
    look = watch(busy, idle)
    world.eventually(lambda: look.rdy() == [9, 1])
    # One that wakes up is served although the other could use all, and has its share soon.
    other = Feeder(client, topic, idle)
    world.eventually(lambda: handled[address(idle)])
    world.eventually(lambda: look.rdy() == [5, 5])
    other.stop()
    feeder.stop()


def test_the_servers_max_rdy_count_is_kept(
    client: Client, site: Site, world: World, topic: str, watch: Callable[..., Watch]
) -> None:
    small, large = site.nsqd("-max-rdy-count=10"), site.nsqd()
    lost: list[str] = []

    class Noting(Observer):
        def lost(self, nsqd_address: str, reason: Exception) -> None:
            lost.append(str(reason))

    reader = client.consume(
        topic,
        print,
        small,
        large,
        max_in_flight=100,
        latency="throughput",
        observer=Noting(),
    )
    look = watch(small, large)
    world.eventually(lambda: look.rdy() == [10, 90])
    reader.set_max_in_flight(1000)
    world.eventually(lambda: look.rdy() == [10, 990])
    assert not lost


def test_the_sum_is_never_above_the_limit(
    client: Client, site: Site, world: World, topic: str, watch: Callable[..., Watch]
) -> None:
    one, two = site.nsqds(2)
    three = site.own_nsqd()
    look = watch(one, two, three)
    feeder = Feeder(client, topic, one, two, three)
    limit = 20
    reader = client.consume(
        topic,
        lambda m: world.sleep(0.002),
        one,
        max_in_flight=limit,
        concurrency=4,
        rdy_redistribute_interval=0.2,
        latency="throughput",
    )
    sampler = Sampler(world, look)
    look.becomes(20, 0, 0)
    reader.add_nsqd(address(two))
    look.becomes(10, 10, 0)
    reader.add_nsqd(address(three))
    look.becomes(7, 7, 6)
    three.kill()
    look.becomes(10, 10, 0)
    three.start()
    look.becomes(7, 7, 6)
    reader.remove_nsqd(address(two))
    look.becomes(10, 0, 10)
    sampler.looked()
    assert sampler.stop() == limit
    feeder.stop()


# Backoff


class Levels(Observer):
    """Notes what the backoff does."""

    def __init__(self) -> None:
        self.noted: list[tuple[int, float]] = []

    def backoff(self, level: int, seconds: float) -> None:
        self.noted.append((level, seconds))


class Downstream:
    """A handler that fails until it is told to work."""

    def __init__(self) -> None:
        self.works = False
        self.handled = 0
        self.failed = 0

    def __call__(self, message: Message) -> None:
        if not self.works:
            self.failed += 1
            raise ConnectionError("downstream is away")
        self.handled += 1


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Failing handlers are on purpose here."""
    caplog.set_level("ERROR", "gnsqsync")


def test_a_handler_that_is_too_slow_does_not_fill_the_memory(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    """For each message that times out nsqd would send another one."""
    client.writer(nsqd).publish_many(topic, [b"x"] * 20)
    over: list[bool] = []
    reader = client.consume(
        topic, lambda m: world.eventually(lambda: over), nsqd, max_in_flight=2, msg_timeout=1.0
    )
    world.eventually(lambda: reader.stats().in_flight == 4)
    world.sleep(4.0)
    assert reader.stats().in_flight == 4
    over.append(True)
    world.eventually(lambda: reader.stats().finished >= 20 and not reader.stats().in_flight)


@pytest.mark.parametrize(
    ("options", "low", "high"),
    [
        ({"backoff_strategy": lambda level: 0.05 + level / 1000}, 0.051, 0.06),
        ({"backoff_strategy": "full_jitter", "backoff_multiplier": 0.05}, 0.0, 0.4),
        ({"max_backoff_duration": 0.07}, 0.07, 0.07),
    ],
    ids=["callable", "full_jitter", "ceiling"],
)
def test_strategies(
    client: Client,
    nsqd: Server,
    world: World,
    topic: str,
    quiet: None,
    options: dict[str, Any],
    low: float,
    high: float,
) -> None:
    handler, levels = Downstream(), Levels()
    client.writer(nsqd).publish_many(topic, [b"x"] * 20)
    reader = client.consume(
        topic,
        handler,
        nsqd,
        requeue_delay=0,
        max_attempts=0,
        observer=levels,
        backoff="every_failure",
        **{"max_backoff_duration": 0.4, **options},
    )
    world.eventually(lambda: len(levels.noted) >= 6)
    handler.works = True
    world.eventually(lambda: handler.handled == 20 and not reader.is_in_backoff)
    pauses = [seconds for level, seconds in levels.noted if level]
    assert all(low - 1e-6 <= pause <= high + 1e-6 for pause in pauses)
    if options.get("backoff_strategy") == "full_jitter":
        assert len(set(pauses)) == len(pauses)


def test_without_backoff_nothing_slows_down(
    client: Client,
    nsqd: Server,
    world: World,
    topic: str,
    watch: Callable[..., Watch],
    quiet: None,
) -> None:
    handler, levels = Downstream(), Levels()
    client.writer(nsqd).publish_many(topic, [b"x"] * 20)
    look = watch(nsqd)
    reader = client.consume(
        topic,
        handler,
        nsqd,
        requeue_delay=0,
        max_attempts=0,
        max_in_flight=10,
        max_backoff_duration=0,
        latency="throughput",
        observer=levels,
    )
    seen = set()

    def failed_often() -> bool:
        seen.update(look.rdy())
        return handler.failed >= 200

    look.becomes(10)
    world.eventually(failed_often)
    assert seen == {10}
    assert not reader.is_in_backoff
    assert not levels.noted


# Pauses


def test_a_pause_outlives_reconnects_and_holds_for_new_connections(
    client: Client, site: Site, world: World, topic: str, watch: Callable[..., Watch]
) -> None:
    old, new = site.own_nsqd(), site.nsqd()
    look = watch(old, new)
    got: list[Message] = []
    reader = client.consume(topic, got.append, old, max_in_flight=8, latency="throughput")
    look.becomes(8, 0)
    reader.pause()
    look.becomes(0, 0)
    old.kill()
    world.eventually(lambda: not reader.stats().connections)
    old.start()
    reader.add_nsqd(address(new))
    for nsqd in (old, new):
        client.writer(nsqd).publish(topic, b"x")
    world.eventually(lambda: len(reader.stats().connections) == 2)
    world.eventually(lambda: all(c and c.depth == 1 and c.clients for c in look.channels()))
    # Longer than any round trip; nothing is to happen.
    world.sleep(0.3)
    assert look.rdy() == [0, 0]
    assert not got
    reader.set_max_in_flight(4)
    assert reader.stats().is_paused
    reader.resume()
    look.becomes(2, 2)
    world.eventually(lambda: len(got) == 2)

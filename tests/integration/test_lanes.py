"""Order by key in one process: lanes. In every world, on both nsqds."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

import pytest

from gnsqsync import Message, NsqdHTTP, Reader, Reject
from gnsqsync.errors import ConfigError
from tests.integration.conftest import Client, url
from tests.support.servers import Server, Site
from tests.support.worlds import World


def lane_of(message: Message) -> str:
    """The letter before its number."""
    return message.body[:1].decode()


class Seen:
    """What a handler has met; who ran beside whom."""

    def __init__(self, world: World) -> None:
        self.order: dict[str, list[int]] = defaultdict(list)
        self.running: set[str] = set()
        self.beside = 0
        self.broken: list[str] = []
        self._world = world

    def handle(self, message: Message) -> None:
        lane = lane_of(message)
        if lane in self.running:
            self.broken.append(message.body.decode())
        self.running.add(lane)
        self.beside = max(self.beside, len(self.running))
        self._world.sleep(0.002)
        self.order[lane].append(int(message.body[1:]))
        self.running.discard(lane)

    @property
    def count(self) -> int:
        return sum(map(len, self.order.values()))


def test_one_after_another_and_side_by_side(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    seen = Seen(world)
    bodies = [f"{lane}{number}" for number in range(40) for lane in "abcde"]
    client.writer(nsqd).publish_many(topic, bodies)
    reader = client.consume(
        topic, seen.handle, nsqd, lanes=lane_of, concurrency=4, max_in_flight=200
    )
    world.eventually(lambda: seen.count == 200)
    assert seen.broken == []
    assert seen.beside > 1
    # One nsqd on its own mostly keeps the order, and here it is as it was delivered.
    assert all(sorted(numbers) == list(range(40)) for numbers in seen.order.values())
    world.eventually(lambda: reader.stats().finished == 200)
    lanes = reader._run.workers._chunks.lanes
    assert (lanes._holders, lanes._parked) == ({}, {})


def test_messages_of_a_lane_keep_their_order_of_arrival(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    arrived: list[bytes] = []
    handled: list[bytes] = []

    def lane(message: Message) -> str:
        arrived.append(message.body)
        return "one"

    client.writer(nsqd).publish_many(topic, [str(number) for number in range(300)])
    client.consume(
        topic,
        lambda message: handled.append(message.body),
        nsqd,
        lanes=lane,
        concurrency=4,
        max_in_flight=100,
    )
    world.eventually(lambda: len(handled) == 300)
    assert handled == arrived


def test_a_failure_lets_the_next_one_go(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    handled: list[tuple[bytes, int]] = []

    def handle(message: Message) -> None:
        handled.append((message.body, message.attempts))
        if message.body == b"a0" and message.attempts == 1:
            raise ValueError("not yet")

    client.writer(nsqd).publish_many(topic, ["a0", "a1", "a2"])
    client.consume(
        topic,
        handle,
        nsqd,
        lanes=lane_of,
        max_in_flight=10,
        concurrency=2,
        requeue_delay=0.2,
        backoff=False,
    )
    world.eventually(lambda: len(handled) == 4)
    assert handled[-1] == (b"a0", 2)


def test_a_message_whose_lane_cannot_be_told_is_rejected_at_once(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    handled: list[bytes] = []
    given_up: list[tuple[bytes, str]] = []

    def give_up(message: Message, error: BaseException | None) -> None:
        assert isinstance(error, Reject)
        given_up.append((message.body, error.reason))

    def lane(message: Message) -> Any:
        if message.body == b"raises":
            raise KeyError("customer")
        if message.body == b"exits":
            raise SystemExit(3)  # it would end the reading thread
        return [] if message.body == b"unhashable" else None

    client.writer(nsqd).publish_many(topic, ["raises", "exits", "unhashable", "good"])
    client.consume(
        topic,
        lambda message: handled.append(message.body),
        nsqd,
        lanes=lane,
        max_in_flight=10,
        on_giving_up=give_up,
    )
    world.eventually(lambda: len(given_up) == 3 and handled)
    assert handled == [b"good"]
    assert sorted(given_up) == [
        (b"exits", "its lane could not be told: SystemExit: 3"),
        (b"raises", "its lane could not be told: KeyError: 'customer'"),
        (b"unhashable", "its lane could not be told: TypeError: unhashable type: 'list'"),
    ]


def test_a_stop_gives_back_what_waits(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    release: list[bool] = []
    begun: list[bytes] = []

    def handle(message: Message) -> None:
        begun.append(message.body)
        world.eventually(lambda: release)

    client.writer(nsqd).publish_many(topic, [f"a{number}" for number in range(20)])
    reader = client.consume(topic, handle, nsqd, lanes=lane_of, concurrency=2, max_in_flight=20)
    world.eventually(lambda: begun)
    stopper = world.spawn(reader.stop)
    # The others are at nsqd again while the first one is still handled.
    other: list[bytes] = []
    client.consume(topic, lambda message: other.append(message.body), nsqd, max_in_flight=50)
    world.eventually(lambda: len(other) == 19)
    release.append(True)
    stopper.join(60)
    assert len(begun) == 1


def waiting(server: Server, topic: str) -> int:
    """Return the messages of the topic's channels that nsqd has not handed out."""
    with NsqdHTTP(url(server)) as http:
        return sum(c.depth for t in http.stats(topic).topics for c in (t, *t.channels))


def test_a_lost_connection_leaves_no_lane_behind(
    client: Client, site: Site, world: World, topic: str
) -> None:
    server = site.own_nsqd()
    seen = Seen(world)
    client.writer(server).publish_many(topic, [f"{lane}{n}" for n in range(50) for lane in "ab"])
    reader = client.consume(
        topic, seen.handle, server, lanes=lane_of, concurrency=2, max_in_flight=100
    )
    # A message that nsqd hands out at the moment of its end would be lost.
    world.eventually(lambda: seen.count > 10 and waiting(server, topic) == 0)
    server.restart()
    world.eventually(lambda: len({*seen.order["a"]}) == 50 == len({*seen.order["b"]}))
    assert seen.broken == []
    world.eventually(lambda: not reader._run.workers._chunks.lanes._parked)


def test_a_worker_that_is_killed_frees_its_lane(
    nsqd: Server, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exception ends its thread, as GreenletExit ends a greenlet."""
    handled: list[bytes] = []
    done = threading.Event()

    class Killed(BaseException):
        """Not an Exception."""

    monkeypatch.setattr(
        "gnsqsync.reader.workers.ends_worker", lambda error: isinstance(error, Killed)
    )

    def handle(message: Message) -> None:
        handled.append(message.body)
        if handled == [b"a0"]:
            raise Killed
        if len(handled) == 4:
            done.set()

    from gnsqsync import Writer
    from tests.integration.conftest import address

    with Writer(address(nsqd)) as writer:
        writer.publish_many(topic, ["a0", "a1", "a2"])
    hook = threading.excepthook
    threading.excepthook = lambda _: None
    try:
        with Reader(
            topic,
            "ch",
            handle,
            nsqd_tcp_addresses=address(nsqd),
            lanes=lane_of,
            max_in_flight=10,
            requeue_delay=0,
        ):
            assert done.wait(60), handled
    finally:
        threading.excepthook = hook


def test_wrong_options_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="lanes is 5; it must be a callable that takes a message"):
        Reader("t", "c", print, nsqd_tcp_addresses="x", lanes=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="lanes is for handlers; this Reader has none"):
        Reader("t", "c", nsqd_tcp_addresses="x", lanes=lane_of)

"""TopicGroup: which topics get a Reader, till when, and that all end together."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gnsqsync import Message, Reader, TopicGroup
from gnsqsync.errors import BadTopic, ClosedError, ConfigError
from gnsqsync.stats import StopResult
from tests.component.conftest import address
from tests.support import scripted
from tests.support.ports import REFUSED_PORT
from tests.support.scripted import Command, ScriptedNsqd, automatic
from tests.support.serving import FakeServer, fake_server
from tests.support.worlds import World

OFTEN = 0.05


def rdy(nsqd: ScriptedNsqd) -> dict[str, int]:
    """By topic, the last one told, -1 for none."""
    told = {}
    for connection in nsqd.connections:
        topics = [c.parameters[0] for c in connection.commands if c.name == "SUB"]
        counts = [c.parameters[0] for c in connection.commands if c.name == "RDY"]
        if topics:
            told[topics[0]] = int(counts[-1]) if counts else -1
    return told


@pytest.fixture
def nsqd() -> Iterator[ScriptedNsqd]:
    with ScriptedNsqd() as nsqd:
        yield nsqd


@pytest.fixture
def lookupd() -> Iterator[FakeServer]:
    with fake_server() as server:
        lists(server)
        yield server


@pytest.fixture
def other_lookupd() -> Iterator[FakeServer]:
    with fake_server() as server:
        lists(server)
        yield server


def lists(lookupd: FakeServer, *topics: str) -> None:
    lookupd.answer({"topics": topics})


def rounds(world: World, *lookupds: FakeServer) -> None:
    """Wait until each has been asked, and its answer looked at."""
    for lookupd in lookupds:
        asked = len(lookupd.requests)
        world.eventually(lambda at=lookupd, n=asked: len(at.requests) >= n + 3)


class Groups:
    """Makes TopicGroups whose Readers are at one nsqd, and ends them with the test."""

    def __init__(self, world: World, nsqd: ScriptedNsqd) -> None:
        self.world = world
        self.nsqd = nsqd
        self.made: list[str] = []
        self.got: list[tuple[str, bytes]] = []
        self._groups: list[TopicGroup] = []

    def reader(self, topic: str, **options: Any) -> Reader:
        self.made.append(topic)

        def handle(message: Message) -> None:
            self.got.append((topic, message.body))

        options.setdefault("nsqd_tcp_addresses", address(self.nsqd))
        # RDY is then the whole share.
        options.setdefault("latency", "throughput")
        return Reader(topic, "ch", handle, runtime=self.world.runtime, **options)

    def __call__(
        self,
        pattern: Any,
        *lookupds: FakeServer,
        make: Callable[[str], Reader] | None = None,
        **options: Any,
    ) -> TopicGroup:
        group = TopicGroup(
            pattern,
            make or self.reader,
            lookupd_http_addresses=[lookupd.address for lookupd in lookupds],
            lookupd_poll_interval=OFTEN,
            runtime=self.world.runtime,
            **options,
        )
        self._groups.append(group)
        return group

    def start(self, pattern: Any, *lookupds: FakeServer, **options: Any) -> TopicGroup:
        group = self(pattern, *lookupds, **options)
        group.start(block=False)
        return group

    def sharing_four(self, lookupd: FakeServer, one: str, other: str) -> TopicGroup:
        """Two topics, each with half of the limit."""
        lists(lookupd, one, other)
        group = self.start(".", lookupd, max_in_flight=4)
        self.world.eventually(lambda: sorted(rdy(self.nsqd).values()) == [2, 2])
        return group

    def close(self) -> None:
        for group in self._groups:
            if group._members is not None:
                group.stop(0.0)
                if not group._members._errors:
                    group.join()


@pytest.fixture
def groups(world: World, nsqd: ScriptedNsqd) -> Iterator[Groups]:
    groups = Groups(world, nsqd)
    yield groups
    groups.close()


def topics_of(group: TopicGroup) -> list[str]:
    return [reader.topic for reader in group.readers]


def test_topics_that_match_get_a_reader_when_they_appear(
    groups: Groups,
    world: World,
    nsqd: ScriptedNsqd,
    lookupd: FakeServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lists(lookupd, "orders", "refunds", "not/valid", "old_orders")
    group = groups.start("orders", lookupd)
    world.eventually(lambda: sorted(rdy(nsqd)) == ["old_orders", "orders"])
    lists(lookupd, "orders", "refunds", "old_orders", "orders_eu")
    # Not before all have told theirs: a message that nobody asked for ends its connection.
    world.eventually(lambda: len(rdy(nsqd)) == 3 and min(rdy(nsqd).values()) > 0)
    for connection in nsqd.connections:
        connection.message(b"x")
    world.eventually(lambda: len(groups.got) == 3)
    assert sorted(groups.got) == [(t, b"x") for t in ("old_orders", "orders", "orders_eu")]
    # Once for each, however often they are listed.
    rounds(world, lookupd)
    assert groups.made == topics_of(group) == ["old_orders", "orders", "orders_eu"]
    # The warning about their options is one for the group.
    assert caplog.text.count("(max_attempts) or later") == 1
    assert {request["path"] for request in lookupd.requests} == {"/topics"}


@pytest.mark.parametrize("pattern", ["^orders$", re.compile("^ORDERS$", re.I)])
def test_anchors_and_flags(
    groups: Groups, world: World, lookupd: FakeServer, pattern: object
) -> None:
    lists(lookupd, "old_orders", "orders", "orders_eu")
    group = groups.start(pattern, lookupd)
    world.eventually(lambda: topics_of(group) == ["orders"])
    rounds(world, lookupd)
    assert groups.made == ["orders"]


def test_a_topic_that_any_nsqlookupd_lists_counts(
    groups: Groups,
    world: World,
    nsqd: ScriptedNsqd,
    lookupd: FakeServer,
    other_lookupd: FakeServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that fails changes nothing: its last answer stands."""
    lists(lookupd, "a", "both")
    lists(other_lookupd, "b", "both")
    group = groups.start("", lookupd, other_lookupd)
    world.eventually(lambda: sorted(rdy(nsqd)) == ["a", "b", "both"])
    lookupd.answer({"message": "INTERNAL_ERROR"}, 500)
    # So that it would be dropped, if it were not listed.
    nsqd.refuse_connections()
    nsqd.drop_connections()
    world.eventually(lambda: "lookup of topics at" in caplog.text)
    rounds(world, other_lookupd)
    assert sorted(topics_of(group)) == ["a", "b", "both"]
    assert sorted(groups.made) == ["a", "b", "both"]


def test_a_topic_that_vanished_is_kept_while_it_lives(
    groups: Groups, world: World, nsqd: ScriptedNsqd, lookupd: FakeServer
) -> None:
    group = groups.sharing_four(lookupd, "gone", "stays")
    lists(lookupd, "stays")
    rounds(world, lookupd)
    assert topics_of(group) == ["gone", "stays"]
    gone, _ = group.readers
    (connection,) = [c for c in nsqd.connections if "gone" in str(c.commands)]
    connection.message(b"still")
    world.eventually(lambda: groups.got == [("gone", b"still")])
    # Its nsqd ends, and nobody lists the topic: the Reader goes, and with it its redials.
    nsqd.refuse_connections()
    connection.shutdown()
    world.eventually(lambda: topics_of(group) == ["stays"])
    assert gone.join(15.0) == StopResult(0, 0)
    nsqd.accept_connections()
    # What it had of the limit is the other's now.
    world.eventually(lambda: rdy(nsqd).get("stays") == 4)
    # It is a new Reader if it comes back.
    lists(lookupd, "gone", "stays")
    world.eventually(lambda: topics_of(group) == ["stays", "gone"])
    assert groups.made == ["gone", "stays", "gone"]
    group.stop()
    assert group.join() == [StopResult(0, 0)] * 2


def test_a_reader_that_is_stopped_elsewhere_leaves_the_group(
    groups: Groups, world: World, nsqd: ScriptedNsqd, lookupd: FakeServer
) -> None:
    group = groups.sharing_four(lookupd, "stays", "stopped")
    group.readers[1].stop()
    world.eventually(lambda: topics_of(group) == ["stays"])
    # What it had of the limit is the other's now.
    world.eventually(lambda: rdy(nsqd).get("stays") == 4)
    # It is not replaced while the topic is listed, but when that comes back.
    rounds(world, lookupd)
    assert groups.made == ["stays", "stopped"]
    lists(lookupd, "stays")
    rounds(world, lookupd)
    lists(lookupd, "stays", "stopped")
    world.eventually(lambda: topics_of(group) == ["stays", "stopped"])
    assert len(groups.made) == 3
    group.stop()
    assert group.join() == [StopResult(0, 0)] * 2


def test_a_reader_that_was_stopped_before_its_start_leaves_at_once(
    groups: Groups, world: World, nsqd: ScriptedNsqd, lookupd: FakeServer
) -> None:
    def make(topic: str) -> Reader:
        reader = groups.reader(topic)
        if topic == "ended":
            reader.stop()
        return reader

    lists(lookupd, "ended", "stays")
    group = groups.start(".", lookupd, make=make, max_in_flight=4)
    world.eventually(lambda: topics_of(group) == ["stays"])
    world.eventually(lambda: rdy(nsqd).get("stays") == 4)


def test_the_limit_is_shared_by_topics_that_come_later(
    groups: Groups, world: World, nsqd: ScriptedNsqd, lookupd: FakeServer
) -> None:
    lists(lookupd, "a")
    group = groups.start(".", lookupd, max_in_flight=10)
    world.eventually(lambda: rdy(nsqd) == {"a": 10})
    lists(lookupd, "a", "b")
    world.eventually(lambda: rdy(nsqd) == {"a": 5, "b": 5})
    assert sum(reader.stats().max_in_flight for reader in group.readers) == 10


def test_more_topics_than_the_limit_take_turns(
    groups: Groups, world: World, lookupd: FakeServer
) -> None:
    lists(lookupd, "a", "b", "c")
    group = groups.start(".", lookupd, max_in_flight=2)
    world.eventually(lambda: len(group.readers) == 3)
    shares = [0, 1, 1]
    world.eventually(lambda: sorted(r.stats().max_in_flight for r in group.readers) == shares)


# -- ends -----------------------------------------------------------------------------------------


def not_a_reader(topic: str) -> Any:
    return topic


def of_another_topic(topic: str) -> Reader:
    return Reader("other", "ch", print, nsqd_tcp_addresses="h")


def broken(topic: str) -> Reader:
    raise LookupError("no handler for it")


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (not_a_reader, ConfigError, "must be a Reader of that topic"),
        (of_another_topic, ConfigError, "must be a Reader of that topic"),
        (broken, LookupError, "no handler for it"),
    ],
)
def test_a_reader_that_cannot_be_made_ends_all(
    groups: Groups, world: World, nsqd: ScriptedNsqd, lookupd: FakeServer, make: Any,
    kind: type[Exception], text: str,
) -> None:  # fmt: skip
    lists(lookupd, "good")
    group = groups("", lookupd, make=lambda t: groups.reader(t) if t == "good" else make(t))
    task = world.spawn(group.start)
    world.eventually(lambda: rdy(nsqd))
    lists(lookupd, "good", "bad")
    with pytest.raises(kind, match=text):
        task.join()
    (good,) = group.readers
    assert good.join(0) == StopResult(0, 0)


def test_a_reader_that_is_refused_ends_all(
    groups: Groups, world: World, nsqd: ScriptedNsqd, lookupd: FakeServer
) -> None:
    def refuse(connection: scripted.Connection, command: Command) -> None:
        connection.error("E_BAD_TOPIC SUB topic name is not valid")
        scripted.close()(connection)

    with ScriptedNsqd([automatic(hooks={"SUB": refuse})]) as strict:
        nsqds = {"good": address(nsqd), "bad": address(strict)}
        lists(lookupd, *nsqds)
        group = groups("", lookupd, make=lambda t: groups.reader(t, nsqd_tcp_addresses=nsqds[t]))
        with pytest.raises(BadTopic):
            group.start()
        assert [reader.join(0) for reader in group.readers if reader.topic == "good"] in (
            [StopResult(0, 0)],
            [],
        )


def test_a_stop_while_a_reader_is_made(
    groups: Groups, world: World, nsqd: ScriptedNsqd, lookupd: FakeServer
) -> None:
    """It is stopped as well, and those behind it are not made."""
    begun, go_on = threading.Event(), threading.Event()

    def slow(topic: str) -> Reader:
        begun.set()
        world.eventually(go_on.is_set)
        return groups.reader(topic)

    lists(lookupd, "a", "b")
    group = groups.start("", lookupd, make=slow)
    world.eventually(begun.is_set)
    group.stop()
    go_on.set()
    assert group.join() == [StopResult(0, 0)]
    assert groups.made == ["a"]


def test_a_stop_before_the_start(groups: Groups, world: World, lookupd: FakeServer) -> None:
    lists(lookupd, "a")
    group = groups("", lookupd)
    group.stop()
    assert world.spawn(group.start).join() == []
    assert groups.made == []


def test_a_stop_from_a_handler(
    groups: Groups, world: World, nsqd: ScriptedNsqd, lookupd: FakeServer
) -> None:
    stopping: list[None] = []

    def make(topic: str) -> Reader:
        return Reader(
            topic,
            "ch",
            lambda message: stopping.append(group.stop()),
            nsqd_tcp_addresses=address(nsqd),
            runtime=world.runtime,
        )

    lists(lookupd, "a", "b")
    group = groups("", lookupd, make=make)
    task = world.spawn(group.start)
    world.eventually(lambda: sorted(rdy(nsqd).values()) == [1, 1])
    nsqd.connections[0].message(b"x")
    assert task.join() == [StopResult(0, 0)] * 2
    assert len(stopping) == 1


def test_a_stop_does_not_wait_for_the_next_round(
    groups: Groups, world: World, lookupd: FakeServer
) -> None:
    group = groups("", lookupd)
    with pytest.raises(ClosedError, match="the TopicGroup is not started"):
        group.join()
    with group:
        world.eventually(lambda: lookupd.requests)
        with pytest.raises(ClosedError, match="a TopicGroup is started once"):
            group.start()
        assert group.readers == ()
    assert group.join() == []


# -- options ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"pattern": "("}, "is not a regular expression"),
        ({"pattern": None}, "is not a regular expression"),
        ({"pattern": b"x"}, "matches bytes"),
        ({"make_reader": "x"}, "must be a function from a topic to a Reader"),
        ({"lookupd_http_addresses": ()}, "at least one address"),
        ({"lookupd_http_addresses": "ftp://h"}, "write http://host:port"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"lookupd_poll_interval": 0}, "lookupd_poll_interval"),
        ({"lookupd_poll_jitter": 2}, "lookupd_poll_jitter"),
        ({"lookupd_authorization": ""}, "must be a token"),
        ({"lookupd_session": 7}, "lookupd_session is a int"),
    ],
)
def test_options(changes: dict[str, Any], text: str) -> None:
    options: dict[str, Any] = {
        "pattern": "x",
        "make_reader": of_another_topic,
        "lookupd_http_addresses": "h",
        **changes,
    }
    with pytest.raises(ConfigError, match=text):
        TopicGroup(**options)


def test_a_token_is_sent(groups: Groups, world: World, lookupd: FakeServer) -> None:
    groups.start("", lookupd, lookupd_authorization="geheim")
    world.eventually(lambda: lookupd.requests)
    assert lookupd.requests[0]["headers"]["Authorization"] == "Bearer geheim"


def test_an_nsqlookupd_that_is_down_is_asked_again(
    groups: Groups, world: World, lookupd: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    lists(lookupd, "a")
    down = f"127.0.0.1:{REFUSED_PORT}"
    group = TopicGroup(
        "",
        groups.reader,
        lookupd_http_addresses=[down, lookupd.address],
        lookupd_poll_interval=OFTEN,
        runtime=world.runtime,
    )
    with group:
        world.eventually(lambda: topics_of(group) == ["a"])
        world.eventually(lambda: f"lookup of topics at http://{down} failed" in caplog.text)

"""A Writer that finds its nsqds by nsqlookupds: who is asked, and who gets publishes till when."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from gnsqsync import Writer
from gnsqsync.errors import ClosedError, ConfigError, ConnectionLost, NotSent
from gnsqsync.runtime import Lock, choose
from tests.component.conftest import Client, address
from tests.support import ground
from tests.support.interpreter import run_script
from tests.support.scripted import ScriptedNsqd
from tests.support.serving import FakeServer, fake_server
from tests.support.worlds import World

OFTEN = 0.05


def nodes(*nsqds: ScriptedNsqd, **changes: Any) -> dict[str, Any]:
    """What /nodes answers."""
    entries = []
    for nsqd in nsqds:
        host, port = nsqd.address
        entry = {"broadcast_address": host, "tcp_port": port, "http_port": 1, "topics": []}
        entries.append({**entry, "tombstones": [], **changes})
    return {"producers": entries}


@pytest.fixture
def lookupd() -> Iterator[FakeServer]:
    with fake_server() as server:
        server.answer(nodes())
        yield server


@pytest.fixture
def two_nsqds() -> Iterator[tuple[ScriptedNsqd, ScriptedNsqd]]:
    with ScriptedNsqd() as one, ScriptedNsqd() as two:
        yield one, two


class Finding:
    """Makes Writers that poll all the time."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def __call__(self, *lookupds: FakeServer | str, given: Any = None, **options: Any) -> Writer:
        urls = [at if isinstance(at, str) else at.address for at in lookupds]
        options.setdefault("lookupd_poll_interval", OFTEN)
        options.setdefault("runtime", self.client.world.runtime)
        writer = Writer(given, lookupd_http_addresses=urls, **options)
        self.client._open.append(writer)
        return writer

    def rounds(self, lookupd: FakeServer, more: int = 3) -> None:
        """Wait until it has been asked so many times more."""
        asked = len(lookupd.requests)
        self.client.world.eventually(lambda: len(lookupd.requests) >= asked + more)


@pytest.fixture
def find(client: Client) -> Finding:
    return Finding(client)


def count(nsqd: ScriptedNsqd) -> int:
    return len(nsqd.received("PUB"))


def spread(writer: Writer, publishes: int, *nsqds: ScriptedNsqd) -> list[int]:
    """How many of so many publishes each got."""
    before = [count(nsqd) for nsqd in nsqds]
    for _ in range(publishes):
        writer.publish("t", "x")
    return [count(nsqd) - was for nsqd, was in zip(nsqds, before, strict=True)]


def poll_tasks(world: World) -> list[str]:
    return [name for name in world.running() if name.startswith("nsq-lookup")]


@pytest.fixture
def dead(world: World) -> Iterator[str]:
    """Address of an nsqlookupd that does not run."""
    with ground.unused() as (host, port):
        yield f"{host}:{port}"


# -- where it publishes to ------------------------------------------------------------------------


def test_nsqlookupds_alone_are_enough(
    find: Finding,
    world: World,
    lookupd: FakeServer,
    two_nsqds: tuple[ScriptedNsqd, ScriptedNsqd],
) -> None:
    one, two = two_nsqds
    lookupd.answer(nodes(one, two))
    writer = find(lookupd)
    world.sleep(3 * OFTEN)
    assert not lookupd.requests
    assert sum(spread(writer, 2, one, two)) == 2
    world.eventually(lambda: len(writer.stats().connections) == 2)
    assert spread(writer, 6, one, two) == [3, 3]
    assert {request["path"] for request in lookupd.requests} == {"/nodes"}
    if world.is_simulated or world.name == "threads":
        assert poll_tasks(world) == [f"nsq-lookup http://{lookupd.address}"]
    writer.close()
    assert poll_tasks(world) == []
    asked = len(lookupd.requests)
    world.sleep(3 * OFTEN)
    assert len(lookupd.requests) == asked
    with pytest.raises(ClosedError):
        writer.publish("t", "x")


def test_given_and_found_nsqds_are_both_used(
    find: Finding,
    world: World,
    lookupd: FakeServer,
    two_nsqds: tuple[ScriptedNsqd, ScriptedNsqd],
) -> None:
    given, found = two_nsqds
    lookupd.answer(nodes(given, found))
    writer = find(lookupd, given=address(given))
    world.eventually(lambda: writer.publish("t", "x") or count(found))
    assert spread(writer, 6, given, found) == [3, 3]
    assert len(given.connections) == len(found.connections) == 1


def test_given_ones_need_no_answer(
    find: Finding, dead: str, two_nsqds: tuple[ScriptedNsqd, Any]
) -> None:
    writer = find(dead, given=address(two_nsqds[0]))
    assert spread(writer, 3, two_nsqds[0]) == [3]


def test_all_that_any_nsqlookupd_lists_are_used(
    find: Finding, world: World, dead: str, two_nsqds: tuple[ScriptedNsqd, ScriptedNsqd]
) -> None:
    one, two = two_nsqds
    with fake_server() as first, fake_server() as second:
        first.answer(nodes(one))
        second.answer(nodes(two))
        writer = find(first, second, dead)
        world.eventually(lambda: writer.publish("t", "x") or (count(one) and count(two)))


def test_an_nsqd_that_vanishes_gets_nothing_new_and_is_not_cut(
    find: Finding,
    world: World,
    lookupd: FakeServer,
    two_nsqds: tuple[ScriptedNsqd, ScriptedNsqd],
) -> None:
    one, two = two_nsqds
    lookupd.answer(nodes(one))
    writer = find(lookupd)
    writer.publish("t", "x")
    # One that appears is used.
    lookupd.answer(nodes(one, two))
    world.eventually(lambda: writer.publish("t", "x") or count(two))
    assert spread(writer, 6, one, two) == [3, 3]
    lookupd.answer(nodes(two))
    find.rounds(lookupd)
    assert spread(writer, 6, one, two) == [0, 6]
    assert len(writer.stats().connections) == 2
    # It ends: nobody dials it again.
    one.drop_connections()
    world.eventually(lambda: len(writer.stats().connections) == 1)
    assert spread(writer, 6, one, two) == [0, 6]
    find.rounds(lookupd)
    assert len(one.connections) == 1
    # Listed again, it is one like the others.
    lookupd.answer(nodes(one, two))
    world.eventually(lambda: writer.publish("t", "x") or len(one.connections) == 2)


def test_an_nsqlookupd_that_forgets_everything_stops_no_publish(
    find: Finding, lookupd: FakeServer, two_nsqds: tuple[ScriptedNsqd, ScriptedNsqd]
) -> None:
    nsqd, _ = two_nsqds
    lookupd.answer(nodes(nsqd))
    writer = find(lookupd)
    writer.publish("t", "x")
    for answer, status in ((nodes(), 200), (b"<html>", 500)):
        lookupd.answer(answer, status)
        find.rounds(lookupd)
        assert spread(writer, 3, nsqd) == [3]
    assert len(nsqd.connections) == 1


def test_an_nsqd_with_only_tombstoned_topics_gets_nothing_new(
    find: Finding,
    world: World,
    lookupd: FakeServer,
    two_nsqds: tuple[ScriptedNsqd, ScriptedNsqd],
) -> None:
    one, two = two_nsqds

    def listed(*tombstones: bool) -> None:
        leaving = nodes(one, topics=["a", "b"], tombstones=list(tombstones))["producers"]
        lookupd.answer({"producers": leaving + nodes(two)["producers"]})

    listed(True, False)
    writer = find(lookupd)
    world.eventually(lambda: writer.publish("t", "x") or (count(one) and count(two)))
    listed(True, True)
    find.rounds(lookupd)
    assert spread(writer, 6, one, two) == [0, 6]
    assert len(writer.stats().connections) == 2


def test_failover_prefers_what_is_given(
    find: Finding,
    world: World,
    lookupd: FakeServer,
    two_nsqds: tuple[ScriptedNsqd, ScriptedNsqd],
) -> None:
    given, found = two_nsqds
    lookupd.answer(nodes(found))
    writer = find(lookupd, given=address(given), policy="failover")
    assert spread(writer, 3, given, found) == [3, 0]
    find.rounds(lookupd)
    given.refuse_connections()
    given.drop_connections()
    world.eventually(lambda: not writer.is_connected)
    assert spread(writer, 3, given, found) == [0, 3]
    given.accept_connections()
    world.eventually(lambda: sum(spread(writer, 1, given)))


def test_an_address_map_leads_to_where_it_listens(
    find: Finding, lookupd: FakeServer, two_nsqds: tuple[ScriptedNsqd, Any]
) -> None:
    nsqd, _ = two_nsqds
    lookupd.answer(nodes(nsqd, broadcast_address="inside.example"))
    inside = f"inside.example:{nsqd.address[1]}"
    writer = find(lookupd, address_map={inside: address(nsqd)})
    writer.publish("t", "x")
    assert [c.address for c in writer.stats().connections] == [inside]


# -- waiting for it -------------------------------------------------------------------------------


def test_a_publish_waits_for_the_first_answer(
    find: Finding, world: World, lookupd: FakeServer, two_nsqds: tuple[ScriptedNsqd, Any]
) -> None:
    nsqd, _ = two_nsqds
    lookupd.answer(nodes(nsqd))
    lookupd.serves.clear()
    writer = find(lookupd)
    publish = world.spawn(lambda: writer.publish("t", "x", timeout=20))
    world.sleep(0.3)
    assert lookupd.connections and not publish.done
    lookupd.serves.set()
    publish.join()
    assert count(nsqd) == 1


def test_not_sent_says_who_could_not_be_asked(find: Finding, dead: str) -> None:
    writer = find(f"http://user:secret@{dead}", lookupd_poll_interval=60)
    with pytest.raises(
        NotSent, match=f"within 0.5 s: GET http://{dead}/nodes: .*refused"
    ) as caught:
        writer.publish("t", "x", timeout=0.5)
    (cause,) = caught.value.causes
    assert isinstance(cause, ConnectionLost)
    assert "secret" not in f"{caught.value} {writer!r} {writer.__dict__}"
    assert repr(writer) == f"<Writer to what http://{dead} lists>"


def test_not_sent_says_that_none_is_listed(find: Finding, lookupd: FakeServer) -> None:
    with pytest.raises(NotSent, match="no nsqlookupd lists one"):
        find(lookupd).publish("t", "x", timeout=0.3)
    with pytest.raises(NotSent, match="no nsqlookupd lists one"):
        find(lookupd).connect(timeout=0.3)


def test_connect_waits_for_the_first_answer(
    find: Finding, world: World, lookupd: FakeServer, two_nsqds: tuple[ScriptedNsqd, ScriptedNsqd]
) -> None:
    lookupd.answer(nodes(*two_nsqds))
    writer = find(lookupd)
    writer.connect()
    assert len(writer.stats().connections) == 2


def test_close_ends_a_publish_that_waits(find: Finding, world: World, lookupd: FakeServer) -> None:
    writer = find(lookupd)
    publish = world.spawn(lambda: writer.publish("t", "x", timeout=60))
    world.eventually(lambda: lookupd.requests)
    writer.close()
    with pytest.raises(ClosedError):
        publish.join()


# -- the end of it --------------------------------------------------------------------------------


def test_a_forgotten_writer_asks_no_more(
    find: Finding, client: Client, world: World, lookupd: FakeServer, two_nsqds: Any
) -> None:
    lookupd.answer(nodes(*two_nsqds))
    writer = find(lookupd)
    writer.publish("t", "x")
    client.forget(writer)
    del writer
    gc.collect()
    world.eventually(lambda: not poll_tasks(world))
    asked = len(lookupd.requests)
    world.sleep(3 * OFTEN)
    assert len(lookupd.requests) <= asked + 1


def test_a_writer_that_is_closed_while_it_begins_asks_no_more(
    find: Finding, world: World, lookupd: FakeServer
) -> None:
    runtime = choose(world.runtime)
    new_lock = runtime.lock

    def close_meanwhile() -> Lock:
        # As another thread does, which finds nothing to close yet.
        runtime.lock = new_lock  # type: ignore[method-assign]
        writer.close()
        return new_lock()

    runtime.lock = close_meanwhile  # type: ignore[method-assign]
    writer = find(lookupd, runtime=runtime)
    with pytest.raises(ClosedError):
        writer.publish("t", "x")
    asked = len(lookupd.requests)
    world.sleep(3 * OFTEN)
    assert len(lookupd.requests) <= asked + 1


def test_no_thread_can_be_started(lookupd: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the interpreter ends."""

    def spawn(*args: Any) -> Any:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr("gnsqsync.runtime.threads.ThreadRuntime.spawn", spawn)
    writer = Writer(lookupd_http_addresses=lookupd.address, runtime="threads")
    with pytest.raises(
        NotSent, match=r"no thread asks for nsqds: http:.*: can't create new thread"
    ):
        writer.publish("t", "x")
    writer.close()


@pytest.mark.parametrize("runtime", ["threads", "gevent"])
def test_a_child_asks_for_itself(lookupd: FakeServer, two_nsqds: Any, runtime: str) -> None:
    lookupd.answer(nodes(two_nsqds[0]))
    out = run_script(f"""
        import os, sys
        from gnsqsync import Writer
        writer = Writer(lookupd_http_addresses="{lookupd.address}", runtime="{runtime}")
        writer.publish("t", "parent")
        pid = os.fork()
        if not pid:
            writer.publish("t", "child")
            writer.close()
            sys.exit(7)
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if "{runtime}" == "gevent":
                import gevent
                gevent.sleep(0.01)
        writer.publish("t", "parent again")
        print("done")
    """)
    assert out == "done"
    assert [c.body for c in two_nsqds[0].received("PUB")] == [b"parent", b"child", b"parent again"]
    assert len(lookupd.requests) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, None),
        ({"nsqd_tcp_addresses": ()}, "at least one address"),
        ({"lookupd_http_addresses": "ftp://x"}, "HTTP address"),
        ({"lookupd_poll_interval": 0}, "lookupd_poll_interval"),
        ({"lookupd_poll_jitter": 2}, "lookupd_poll_jitter"),
        (
            {"lookupd_http_addresses": "http://u:p@h", "lookupd_authorization": "t"},
            "authorization and user info",
        ),
    ],
)
def test_options(options: dict[str, Any], words: str | None) -> None:
    if words is None:
        assert repr(Writer(**options)) == "<Writer to 127.0.0.1:4150>"
        return
    with pytest.raises(ConfigError, match=words):
        Writer(**options)


def test_a_token_is_sent(find: Finding, lookupd: FakeServer, two_nsqds: Any) -> None:
    lookupd.answer(nodes(two_nsqds[0]))
    find(lookupd, lookupd_authorization="token").publish("t", "x")
    assert lookupd.requests[0]["headers"]["Authorization"] == "Bearer token"

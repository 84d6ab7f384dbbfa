"""Which nsqd takes a publish, what is sent again, and what all of it costs in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gnsqsync import Writer
from gnsqsync.errors import ClosedError, ConfigError, NotSent, OutcomeUnknown, Refused
from tests.component.conftest import Client, address
from tests.support import ground, scripted
from tests.support.scripted import Command, Hook, ScriptedNsqd, automatic
from tests.support.worlds import World


def nothing(connection: scripted.Connection, command: Command) -> None:
    """Answer nothing."""


def cut(connection: scripted.Connection, command: Command) -> None:
    """Take the message and be gone."""
    scripted.reset()(connection)


def first_then_ok(hook: Hook, times: int = 1) -> Hook:
    """``hook`` for the first ``times`` commands, then an OK for each."""
    seen: list[Command] = []

    def choose(connection: scripted.Connection, command: Command) -> None:
        seen.append(command)
        if len(seen) <= times:
            hook(connection, command)
        else:
            connection.response()

    return choose


@contextmanager
def black_hole() -> Iterator[str]:
    """An address that answers no SYN."""
    with ground.black_hole() as (host, port):
        yield f"{host}:{port}"


def bodies(nsqd: ScriptedNsqd) -> list[bytes]:
    return [command.body or b"" for command in nsqd.received("PUB")]


# -- unknown outcomes -----------------------------------------------------------------------------


def test_an_unknown_outcome_is_not_sent_again(client: Client, world: World) -> None:
    with ScriptedNsqd([automatic(hooks={"PUB": cut})]) as one, ScriptedNsqd() as two:
        writer = client.writer(one, two)
        writer.connect()
        outcomes = []
        for _ in range(2):
            try:
                writer.publish("t", "x")
                outcomes.append("OK")
            except OutcomeUnknown:
                outcomes.append("unknown")
        assert sorted(outcomes) == ["OK", "unknown"]
        assert len(bodies(one)) == len(bodies(two)) == 1
        assert writer.stats().outcome_unknown == 1


def test_retry_unknown_sends_it_elsewhere(client: Client, world: World) -> None:
    with ScriptedNsqd([automatic(hooks={"PUB": cut})]) as one, ScriptedNsqd() as two:
        writer = client.writer(one, two, retry_unknown=True)
        writer.connect()
        for n in range(2):
            writer.publish("t", f"{n}")
        # One of them arrived twice; that is the price.
        assert len(bodies(one)) == 1
        assert sorted(bodies(two)) == [b"0", b"1"]
        stats = writer.stats()
        assert (stats.published, stats.outcome_unknown) == (2, 0)


def test_retry_unknown_sends_it_on_a_new_connection(client: Client, world: World) -> None:
    hook = first_then_ok(cut, 2)
    with ScriptedNsqd([automatic(hooks={"PUB": hook})]) as nsqd:
        writer = client.writer(nsqd, retry_unknown=True)
        writer.publish("t", "x", timeout=15)
        assert bodies(nsqd) == [b"x", b"x", b"x"]
        assert len(nsqd.connections) == 3


def test_retry_unknown_of_publish_many_is_by_chunk(client: Client, world: World) -> None:
    hook = first_then_ok(cut, 1)
    with ScriptedNsqd([automatic(hooks={"MPUB": hook})]) as nsqd:
        writer = client.writer(nsqd, retry_unknown=True, max_body_size=4 + 10 * 14)
        writer.publish_many("t", [b"%010d" % n for n in range(30)], timeout=15)
        sent = [command.body for command in nsqd.received("MPUB")]
        assert len(sent) == 4
        assert sent[0] == sent[1]
        assert writer.stats().published == 30


def test_an_unknown_outcome_stays_unknown_after_a_retry(client: Client, world: World) -> None:
    """NotSent would say that publishing again is safe."""
    with ScriptedNsqd([automatic(hooks={"PUB": cut})]) as nsqd:
        writer = client.writer(nsqd, retry_unknown=True)
        writer.connect()
        nsqd.refuse_connections()
        with pytest.raises(OutcomeUnknown, match="sending it again failed: no nsqd could be"):
            writer.publish("t", "x", timeout=1)
        stats = writer.stats()
        assert (stats.not_sent, stats.outcome_unknown) == (0, 1)


def test_retry_unknown_is_a_bool() -> None:
    with pytest.raises(ConfigError, match="retry_unknown is 'yes'; it must be True or False"):
        Writer(retry_unknown="yes")  # type: ignore[arg-type]


# -- one deadline ---------------------------------------------------------------------------------


def within(seconds: float, error: type[Exception], call: Any, *args: Any, **options: Any) -> Any:
    """``call`` raises ``error`` about when it should, with room for a busy machine."""
    started = time.monotonic()
    with pytest.raises(error) as caught:
        call(*args, **options)
    assert seconds * 0.9 <= time.monotonic() - started < seconds + 5
    return caught.value


def test_a_black_hole_costs_the_deadline_and_no_more(client: Client, world: World) -> None:
    with black_hole() as where:
        writer = Writer(where, runtime=world.runtime, connect_timeout=60)
        error = within(0.5, NotSent, writer.publish, "t", "x", timeout=0.5)
        assert "no nsqd could be reached within 0.5 s" in str(error)
        writer.close()


def test_close_cuts_a_dial_short(client: Client, world: World) -> None:
    with black_hole() as where:
        writer = Writer(where, runtime=world.runtime, connect_timeout=60)
        publish = world.spawn(lambda: writer.publish("t", "x", timeout=60))
        world.sleep(0.1)
        writer.close()
        with pytest.raises(ClosedError):
            publish.join(5)


def test_a_handshake_that_hangs_costs_the_deadline(client: Client, world: World) -> None:
    with ScriptedNsqd([automatic(hooks={"IDENTIFY": nothing})]) as nsqd:
        writer = client.writer(nsqd, connect_timeout=60)
        error = within(0.5, NotSent, writer.publish, "t", "x", timeout=0.5)
        assert "waiting for the answer to IDENTIFY" in str(error)


def test_an_nsqd_that_does_not_answer_costs_the_deadline(client: Client, world: World) -> None:
    """Also with retry_unknown: there is no time left for another try."""
    with ScriptedNsqd([automatic(hooks={"PUB": nothing})]) as nsqd:
        writer = client.writer(nsqd, retry_unknown=True)
        writer.connect()
        error = within(0.5, OutcomeUnknown, writer.publish, "t", "x", timeout=0.5)
        assert "did not answer the publish within 0.5 s" in str(error)
        assert bodies(nsqd) == [b"x"]


def test_an_nsqd_that_reads_nothing_costs_the_deadline(client: Client, world: World) -> None:
    steps = [automatic(until="IDENTIFY"), scripted.silence()]
    with ScriptedNsqd(steps) as nsqd:
        writer = client.writer(nsqd, max_msg_size=64 << 20, max_body_size=65 << 20)
        writer.connect()
        big = b"x" * (32 << 20)
        # Torn: nsqd has not got all of it, so it stores nothing of it; but we go on sending.
        within(0.5, OutcomeUnknown, writer.publish, "t", big, timeout=0.5)
        # Nobody began to write that one.
        error = within(0.5, NotSent, writer.publish, "t", "x", timeout=0.5)
        assert "took no bytes within 0.5 s" in str(error)
        assert writer.stats().not_sent == 1


def test_a_publish_with_more_time_goes_on_where_another_stopped(
    client: Client, world: World
) -> None:
    """The writer of a shared send gives up; what it left is written when there is room."""
    go_on = threading.Event()
    steps = [automatic(until="IDENTIFY"), scripted.wait_until(go_on), automatic()]
    with ScriptedNsqd(steps) as nsqd:
        writer = client.writer(nsqd, max_msg_size=64 << 20, max_body_size=65 << 20)
        writer.connect()
        big = b"x" * (16 << 20)
        first = world.spawn(
            lambda: within(0.5, OutcomeUnknown, writer.publish, "t", big, timeout=0.5)
        )
        send_queue = writer._publisher().pool.table.connections()[0].send_queue
        world.eventually(lambda: send_queue.pending)
        second = world.spawn(lambda: writer.publish("t", "second", timeout=30))
        first.join()
        go_on.set()
        second.join()
        assert len(nsqd.received("PUB")) == 2


# -- abandoned slots ------------------------------------------------------------------------------


def test_a_late_answer_is_not_taken_for_another_publish(client: Client, world: World) -> None:
    answers = [threading.Event(), threading.Event()]
    seen: list[Command] = []

    def hold(connection: scripted.Connection, command: Command) -> None:
        seen.append(command)
        if len(seen) <= 2:
            scripted.wait_until(answers[len(seen) - 1])(connection)
        connection.response()

    with ScriptedNsqd([automatic(hooks={"PUB": hold})]) as nsqd:
        writer = client.writer(nsqd)
        writer.connect()
        with pytest.raises(OutcomeUnknown):
            writer.publish("t", "slow", timeout=0.2)
        second = world.spawn(lambda: writer.publish("t", "second", timeout=30))
        answers[0].set()
        world.eventually(lambda: len(seen) == 2)
        # That OK was for the one that nobody waits for any more.
        world.sleep(0.1)
        assert not second.done
        answers[1].set()
        second.join()
        stats = writer.stats()
        assert (stats.published, stats.outcome_unknown) == (2, 1)
        assert stats.connections[0].unanswered == 0


def test_too_many_abandoned_publishes_end_the_connection(client: Client, world: World) -> None:
    with ScriptedNsqd([automatic(hooks={"PUB": nothing})], [automatic()]) as nsqd:
        writer = client.writer(nsqd)
        writer.connect()

        def publish() -> None:
            with pytest.raises(OutcomeUnknown):
                writer.publish("t", "x", timeout=1)

        tasks = [world.spawn(publish) for _ in range(110)]
        for task in tasks:
            task.join()
        world.eventually(lambda: not writer.is_connected)
        writer.publish("t", "y", timeout=15)
        assert len(nsqd.connections) == 2


# -- benches and fail-back ------------------------------------------------------------------------


def test_failover_comes_back_to_the_first(client: Client, world: World) -> None:
    with ScriptedNsqd() as first, ScriptedNsqd() as second:
        writer = client.writer(first, second, policy="failover")
        writer.publish("t", "1")
        assert bodies(first) == [b"1"]
        first.refuse_connections()
        first.drop_connections()
        world.eventually(lambda: not writer.is_connected)
        writer.publish("t", "2")
        assert bodies(second) == [b"2"]
        first.accept_connections()

        def is_back() -> bool:
            before = len(bodies(first))
            writer.publish("t", "again")
            return len(bodies(first)) > before

        world.eventually(is_back)
        count = len(bodies(second))
        for _ in range(5):
            writer.publish("t", "x")
        assert len(bodies(second)) == count


def test_round_robin_leaves_the_lost_one_out_and_takes_it_back(
    client: Client, world: World
) -> None:
    with ScriptedNsqd() as one, ScriptedNsqd() as two:
        writer = client.writer(one, two)
        writer.connect()
        for _ in range(10):
            writer.publish("t", "x")
        assert len(bodies(one)) == len(bodies(two)) == 5
        one.refuse_connections()
        one.drop_connections()
        world.eventually(lambda: len(writer.stats().connections) == 1)
        for _ in range(10):
            writer.publish("t", "x")
        assert len(bodies(two)) == 15
        one.accept_connections()

        def is_back() -> bool:
            writer.publish("t", "x")
            return len(writer.stats().connections) == 2

        world.eventually(is_back)
        before = len(bodies(one))
        for _ in range(10):
            writer.publish("t", "x")
        assert len(bodies(one)) == before + 5


@pytest.mark.parametrize("policy", ["round_robin", "failover"])
def test_benched_nsqds_are_tried_if_there_is_no_other(
    client: Client, world: World, policy: str
) -> None:
    with ScriptedNsqd() as one, ScriptedNsqd() as two:
        for nsqd in (one, two):
            nsqd.refuse_connections()
        writer = client.writer(one, two, policy=policy)
        with pytest.raises(NotSent) as caught:
            writer.publish("t", "x", timeout=0.3)
        assert len({str(cause) for cause in caught.value.causes}) == 2
        two.accept_connections()
        writer.publish("t", "y", timeout=15)
        assert bodies(two) == [b"y"]


def test_a_refusal_is_no_reason_to_bench_or_to_try_elsewhere(client: Client, world: World) -> None:
    def refuse(connection: scripted.Connection, command: Command) -> None:
        connection.error("E_BAD_TOPIC PUB topic name 't' is not valid")
        scripted.close()(connection)

    with ScriptedNsqd([automatic(hooks={"PUB": refuse})]) as one, ScriptedNsqd() as two:
        writer = client.writer(one, two, policy="failover")
        with pytest.raises(Refused) as caught:
            writer.publish("t", "x")
        assert caught.value.code == "E_BAD_TOPIC"
        assert bodies(two) == []
        assert writer.stats().refused == 1


# -- publish_async --------------------------------------------------------------------------------


@contextmanager
def small_backlog(monkeypatch: pytest.MonkeyPatch, **limits: int) -> Iterator[None]:
    for name, value in limits.items():
        monkeypatch.setattr(f"gnsqsync.writer.async_window.BACKLOG_{name.upper()}", value)
    yield


@pytest.mark.parametrize("limit", [{"publishes": 5}, {"bytes": 5 * len(b"PUB t\n\0\0\0\1x")}])
def test_publish_async_waits_when_too_much_is_under_way(
    client: Client, world: World, monkeypatch: pytest.MonkeyPatch, limit: dict[str, int]
) -> None:
    go_on = threading.Event()
    steps = [automatic(until="IDENTIFY"), scripted.wait_until(go_on), automatic()]
    with ScriptedNsqd(steps) as nsqd, small_backlog(monkeypatch, **limit):
        writer = client.writer(nsqd, publish_timeout=0.3)
        futures = [writer.publish_async("t", "x") for _ in range(5)]
        error = within(0.3, NotSent, writer.publish_async, "t", "x")
        assert "wait for an answer, and no room was made within 0.3 s" in str(error)
        send_queue = writer._publisher().pool.table.connections()[0].send_queue
        assert len(send_queue.pending) + len(send_queue.slots) == 5

        def publish() -> None:
            for _ in range(20):
                while True:
                    try:
                        futures.append(writer.publish_async("t", "x"))
                        break
                    except NotSent:
                        pass  # no room yet

        tasks = [world.spawn(publish) for _ in range(4)]
        go_on.set()
        for task in tasks:
            task.join()
        world.eventually(lambda: all(future.done() for future in futures))
        assert len(futures) == 85
        assert {future.exception(0) for future in futures} == {None}
        assert writer.stats().published == 85


def test_a_lone_publish_is_never_too_large(
    client: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedNsqd() as nsqd, small_backlog(monkeypatch, bytes=10):
        writer = client.writer(nsqd)
        for _ in range(3):
            world.eventually(writer.publish_async("t", "x" * 1000).done)


def test_a_cancelled_future_takes_its_room_until_it_is_answered(
    client: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        ScriptedNsqd([automatic(hooks={"PUB": nothing})]) as nsqd,
        small_backlog(monkeypatch, publishes=2),
    ):
        writer = client.writer(nsqd, publish_timeout=0.2)
        for _ in range(2):
            assert writer.publish_async("t", "x").cancel()
        with pytest.raises(NotSent):
            writer.publish_async("t", "x")


def test_close_wakes_who_waits_for_room(
    client: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        ScriptedNsqd([automatic(hooks={"PUB": nothing})]) as nsqd,
        small_backlog(monkeypatch, publishes=1),
    ):
        writer = client.writer(nsqd, publish_timeout=60)
        future = writer.publish_async("t", "x")

        def publish() -> str:
            try:
                writer.publish_async("t", "x")
            except ClosedError:
                return "closed"
            return "sent"

        tasks = [world.spawn(publish) for _ in range(3)]
        backlog = writer._publisher()._window
        world.eventually(lambda: backlog._waiting == 3)
        writer.close(0.1)
        assert [task.join() for task in tasks] == ["closed"] * 3
        assert isinstance(future.exception(0), OutcomeUnknown)


def test_stats_count_futures_too(client: Client, world: World) -> None:
    with ScriptedNsqd([automatic(hooks={"PUB": first_then_ok(cut)})]) as nsqd:
        writer = client.writer(nsqd)
        lost = writer.publish_async("t", "x")
        world.eventually(lost.done)
        world.eventually(lambda: not writer.is_connected)
        world.eventually(writer.publish_async("t", "y").done)
        nsqd.refuse_connections()
        nsqd.drop_connections()
        world.eventually(lambda: not writer.is_connected)
        with pytest.raises(NotSent):
            writer.publish("t", "z", timeout=0.1)
        with pytest.raises(NotSent):
            writer.ping(0.1)
        stats = writer.stats()
        assert (stats.published, stats.outcome_unknown, stats.not_sent) == (1, 1, 1)
        assert stats.connections == ()


# -- an nsqd that hangs ---------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["round_robin", "failover"])
def test_an_nsqd_that_hangs_gets_no_more_while_another_one_answers(
    client: Client, world: World, policy: str
) -> None:
    with ScriptedNsqd([automatic(hooks={"PUB": nothing})]) as slow, ScriptedNsqd() as other:
        writer = client.writer(slow, other, policy=policy)
        writer.connect()
        with pytest.raises(OutcomeUnknown):
            for _ in range(2):
                writer.publish("t", "lost in time", timeout=0.2)
        # Its bench is half a second at least; all of these come within it.
        for n in range(20):
            writer.publish("t", f"{n}", timeout=5)
        assert len(bodies(slow)) == 1
        assert len(writer.stats().connections) == 2


def test_publishes_at_a_dead_nsqd_do_not_dial_each_time(client: Client, world: World) -> None:
    with ScriptedNsqd() as nsqd:
        gone = address(nsqd)
    writer = Writer(gone, runtime=world.runtime, connect_timeout=1)
    dials = []
    table = writer._publisher().pool._dials
    table.begin = counted(dials, table.begin)  # type: ignore[method-assign]
    started = time.monotonic()
    for _ in range(20):
        with pytest.raises(NotSent, match="Connection refused"):
            writer.publish("t", "x", timeout=0.001)
    took = time.monotonic() - started
    writer.close()
    # The background's dials come by the clock.
    assert 1 <= len(dials) <= 2 + took / 0.02


def counted(calls: list[Any], function: Any) -> Any:
    def call(*args: Any) -> Any:
        calls.append(args)
        return function(*args)

    return call


# -- what nsqd is told ----------------------------------------------------------------------------


def test_region_and_zone_are_in_identify(client: Client, world: World) -> None:
    """For the topology-aware consumption of nsqds newer than 1.3.0."""
    with ScriptedNsqd() as nsqd:
        client.writer(nsqd, topology_region="eu", topology_zone="eu-1").connect()
        client.writer(nsqd).connect()
        with_them, without = [command.json for command in nsqd.received("IDENTIFY")]
        assert (with_them["topology_region"], with_them["topology_zone"]) == ("eu", "eu-1")
        assert not {"topology_region", "topology_zone"} & without.keys()

"""A Writer's life: dials, benches, closes, and what becomes of the publishes meanwhile."""

from __future__ import annotations

import gc
import logging
import math
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import gevent.event
import pytest

from gnsqsync import Writer
from gnsqsync.commands.integrations import publish_all
from gnsqsync.connection.publish_slot import PublishSlot
from gnsqsync.connection.publishing import PublishingConnection
from gnsqsync.connection.read_turn import TurnState
from gnsqsync.errors import (
    BadBody,
    ClosedError,
    ConfigError,
    MpubFailed,
    NotSent,
    OutcomeUnknown,
    PublishError,
    Refused,
)
from gnsqsync.runtime import at_exit
from gnsqsync.stats import WriterStats
from tests.component.conftest import Client, address
from tests.support import ground, scripted
from tests.support.counting import CountingRuntime
from tests.support.scripted import Command, Hook, ScriptedNsqd, automatic
from tests.support.worlds import World


def refuse(text: str) -> Hook:
    """Answer with this error and close, as nsqd does."""

    def hook(connection: scripted.Connection, command: Command) -> None:
        connection.error(text)
        scripted.close()(connection)

    return hook


def nothing(connection: scripted.Connection, command: Command) -> None:
    """Answer nothing."""


@contextmanager
def unused_address() -> Iterator[str]:
    """An address where nobody listens."""
    with ground.unused() as (host, port):
        yield f"{host}:{port}"


def counting(world: World) -> CountingRuntime:
    from gnsqsync.runtime import choose

    return CountingRuntime(choose(world.runtime), leaves=("gnsqsync.connection.opening.Opening",))


# -- dials ----------------------------------------------------------------------------------------


def test_many_that_publish_when_nobody_listens_dial_once_a_round(
    client: Client, world: World
) -> None:
    """Not each for itself: whoever waited for a dial that failed knows what came of it."""
    runtime = counting(world)
    with unused_address() as where:
        writer = Writer(where, runtime=runtime)

        def publish() -> NotSent:
            with pytest.raises(NotSent) as caught:
                writer.publish("t", "x", timeout=0.8)
            return caught.value

        started = runtime.now()
        tasks = [world.spawn(publish) for _ in range(20)]
        errors = [task.join() for task in tasks]
        assert runtime.now() - started < 6
        for error in errors:
            assert "no nsqd could be reached within 0.8 s" in str(error)
            assert "refused" in str(error)
            assert error.causes
        # A dial takes no time here, so each may have come after the one before was over; but
        # what all of them wait for, the end of the bench after 0.25 to 0.5 s, is one dial each.
        assert runtime.counts.connects <= 20 + 2
        assert writer.stats().not_sent == 20
        writer.close()
    runtime.check_ended()


def test_a_publish_that_waits_for_a_failing_dial_does_not_dial_again(
    client: Client, world: World
) -> None:
    """Twenty wait for one handshake that hangs; it fails once for all of them."""
    runtime = counting(world)
    with ScriptedNsqd([automatic(hooks={"IDENTIFY": nothing})]) as nsqd:
        writer = client.writer(nsqd, runtime=runtime, connect_timeout=0.3)
        texts: list[str] = []

        def publish() -> None:
            with pytest.raises(NotSent) as caught:
                writer.publish("t", "x", timeout=0.5)
            texts.append(str(caught.value))

        tasks = [world.spawn(publish) for _ in range(20)]
        for task in tasks:
            task.join()
        assert len(nsqd.connections) <= 2
        assert all("it ended while waiting for the answer to IDENTIFY" in text for text in texts)


def test_a_client_that_nobody_accepts_is_told_at_once(client: Client, world: World) -> None:
    hooks = {"IDENTIFY": refuse("E_BAD_BODY IDENTIFY msg timeout (9000000) is invalid")}
    with ScriptedNsqd([automatic(hooks=hooks)]) as nsqd:
        writer = client.writer(nsqd)
        with pytest.raises(NotSent, match="no nsqd accepts this client: E_BAD_BODY") as caught:
            writer.publish("t", "x", timeout=60)
        assert isinstance(caught.value.causes[-1], BadBody)
        assert len(nsqd.connections) == 1


def test_connect_dials_side_by_side(client: Client, world: World) -> None:
    with ScriptedNsqd() as one, ScriptedNsqd() as two, unused_address() as nobody:
        writer = Writer([address(one), nobody, address(two)], runtime=world.runtime)
        writer.connect(5)
        assert {c.address for c in writer.stats().connections} == {address(one), address(two)}
        writer.ping()
        world.eventually(lambda: one.received("NOP") and two.received("NOP"))
        writer.close()


def test_an_nsqd_that_hangs_holds_up_one_publish_at_most(client: Client, world: World) -> None:
    with (
        ScriptedNsqd([automatic(hooks={"IDENTIFY": nothing})]) as hangs,
        ScriptedNsqd() as good,
    ):
        writer = client.writer(hangs, good, connect_timeout=0.2)
        for _ in range(20):
            writer.publish("t", "x", timeout=10)
        assert len(good.received("PUB")) == 20
        assert len(hangs.connections) <= 2


@pytest.mark.parametrize("seconds", [math.inf, 1e11])
def test_no_time_is_too_long(client: Client, world: World, seconds: float) -> None:
    with ScriptedNsqd() as nsqd:
        writer = client.writer(nsqd, connect_timeout=seconds, publish_timeout=seconds)
        writer.publish("t", "x")
        with pytest.raises(ConfigError, match="defer is inf; it must be a finite number"):
            client.writer(nsqd, max_defer=math.inf).publish("t", "x", defer=math.inf)
        reader = client.consume(print, nsqd, connect_timeout=seconds)
        world.eventually(lambda: reader.stats().connections)


def test_a_publish_that_waits_for_a_dial_goes_on_when_another_succeeds(
    client: Client, world: World
) -> None:
    go_on = threading.Event()

    def answer_later(connection: scripted.Connection, command: Command) -> None:
        scripted.wait_until(go_on)(connection)
        connection.answer(command)

    with (
        ScriptedNsqd([automatic(hooks={"IDENTIFY": nothing})]) as hangs,
        ScriptedNsqd([automatic(hooks={"IDENTIFY": answer_later})]) as good,
    ):
        writer = client.writer(hangs, good, policy="failover", connect_timeout=60)
        pool = writer._publisher().pool
        choose, waiting = pool._choose, []

        def noted(*args: Any) -> Any:
            choice = choose(*args)
            waiting.append(not (choice.connection or choice.dial or choice.outage))
            return choice

        pool._choose = noted  # type: ignore[method-assign]
        outcomes_of(world, writer, 1, 60)
        world.eventually(lambda: hangs.received("IDENTIFY"))
        tasks = outcomes_of(world, writer, 4, 60)
        world.eventually(lambda: sum(waiting) == 3)
        go_on.set()
        assert [task.join() for task in tasks] == ["OK"] * 4


def test_a_connection_at_the_deadline(client: Client, world: World) -> None:
    """A publish has no time for its answer; publish_async() needs none."""
    with ScriptedNsqd() as nsqd:
        nsqd.refuse_connections()
        writer = client.writer(nsqd, publish_timeout=0.3, outage="wait")
        pool: Any = writer._publisher().pool

        def come_late(news: Any, until: float) -> None:
            nsqd.accept_connections()
            world.eventually(lambda: writer.is_connected)
            world.sleep(max(0.0, until - pool._now()))

        pool._discovery.wait = come_late
        with pytest.raises(NotSent, match=r"no time was left for .* within 0\.3 s"):
            writer.publish("t", "x")
        nsqd.refuse_connections()
        nsqd.drop_connections()
        world.eventually(lambda: not writer.is_connected)
        world.eventually(writer.publish_async("t", "y").done)
        assert [command.body for command in nsqd.received("PUB")] == [b"y"]


class Killed(BaseException):
    """As KeyboardInterrupt, which a signal handler raises between any two instructions."""


@pytest.mark.parametrize("use", ["publish", "connect"])
def test_a_dial_whose_thread_was_killed_is_forgotten(
    client: Client, world: World, monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    monkeypatch.setattr("gnsqsync.policy.ownership.GRACE_SECONDS", 0.1)
    with ScriptedNsqd() as nsqd:
        writer = client.writer(nsqd, connect_timeout=0.5)
        pool = writer._publisher().pool

        def killed(*args: Any) -> None:
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(pool._dials, "open", killed)
            with pytest.raises(Killed):
                writer.publish("t", "x")
        assert len(pool._dials._under_way) == 1
        if use == "connect":
            writer.connect(15)
        else:
            # One that waits for it already.
            writer.publish("t", "x", timeout=15)
        assert not pool._dials._under_way
        assert len(nsqd.connections) == 1


def test_a_dial_that_was_forgotten_and_ends_after_all(client: Client, world: World) -> None:
    """It was slow, by a look-up of its name: it takes nothing from the one that came behind."""
    go_on = threading.Event()

    def answer_later(connection: scripted.Connection, command: Command) -> None:
        if len(nsqd.connections) == 1:
            scripted.wait_until(go_on)(connection)
        connection.answer(command)

    with ScriptedNsqd([automatic(hooks={"IDENTIFY": answer_later})]) as nsqd:
        writer = client.writer(nsqd, connect_timeout=60)
        pool = writer._publisher().pool
        (slow,) = outcomes_of(world, writer, 1)
        world.eventually(lambda: nsqd.received("IDENTIFY"))
        (dial,) = pool._dials._under_way.values()
        # As if it could not be cut.
        dial.connection.cut = lambda: None  # type: ignore[method-assign]
        pool._dials._under_way[dial.connection.address] = replace(dial, due=0.0)
        writer.publish("t", "x", timeout=15)
        (second,) = pool.table.connections()
        del dial.connection.cut
        go_on.set()
        assert slow.join() == "OK"
        world.eventually(lambda: dial.connection.is_closed)
        assert pool.table.connections() == [second]
        assert writer.stats().published == 2


def strike_lock(connection: PublishingConnection) -> None:
    """As an exception from outside does just when a sender has the lock to write."""
    connection.send_queue._lock.acquire()


def strike_turn(connection: PublishingConnection) -> None:
    """As an exception from outside does just when a publisher has the turn to read."""
    turn = connection.publishes._turn
    caller = PublishSlot(b"")
    while not turn.take(caller, connection._runtime.now()):
        turn.lend()


def strike_dial(connection: PublishingConnection) -> None:
    """As an exception from outside does just when a publisher is about to dial."""
    dials = connection._owner._dials  # type: ignore[attr-defined]
    dials.begin(connection.address)
    connection.cut()


@pytest.mark.parametrize("timeout", [30, 0.2])
@pytest.mark.parametrize("strike", [strike_lock, strike_turn, strike_dial])
def test_a_publisher_that_was_killed_holds_up_no_other_for_ever(
    client: Client,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    strike: Callable[[PublishingConnection], None],
    timeout: float,
) -> None:
    monkeypatch.setattr("gnsqsync.policy.ownership.GRACE_SECONDS", 0.3)
    with ScriptedNsqd() as nsqd:
        writer = client.writer(nsqd, connect_timeout=0.3, outage="wait")
        writer.publish("t", "x")
        (connection,) = writer._publisher().pool.table.connections()
        world.eventually(lambda: connection.publishes._turn.state is TurnState.FREE)
        strike(connection)
        tried: list[str] = []

        def publish() -> bool:
            (task,) = outcomes_of(world, writer, 1, timeout)
            tried.append(task.join())
            return tried[-1] == "OK"

        world.eventually(publish)
        if timeout > 1:
            # What was sent while nobody read has no answer.
            assert tried == (["OutcomeUnknown", "OK"] if strike is strike_turn else ["OK"])
        world.eventually(lambda: connection.is_closed)


# -- refusals -------------------------------------------------------------------------------------


def test_a_message_that_one_nsqd_cannot_store_goes_to_another(client: Client, world: World) -> None:
    hooks = {"PUB": refuse("E_PUB_FAILED PUB failed disk full"), "MPUB": refuse("E_MPUB_FAILED no")}
    with ScriptedNsqd([automatic(hooks=hooks)]) as full, ScriptedNsqd() as good:
        writer = client.writer(full, good)
        writer.connect()
        for _ in range(3):
            writer.publish("t", "x")
        assert len(good.received("PUB")) == 3
        assert writer.stats().published == 3
        assert writer.stats().refused == 0


def test_a_part_of_an_mpub_may_be_stored_so_it_is_not_sent_elsewhere(
    client: Client, world: World
) -> None:
    hooks = {"MPUB": refuse("E_MPUB_FAILED MPUB failed disk full")}
    with (
        ScriptedNsqd([automatic(hooks=hooks)]) as one,
        ScriptedNsqd([automatic(hooks=hooks)]) as two,
    ):
        writer = client.writer(one, two)
        with pytest.raises(Refused) as caught:
            writer.publish_many("t", ["a", "b"])
        assert isinstance(caught.value.error, MpubFailed)
        assert caught.value.acknowledged == 0
        assert len(one.received("MPUB")) + len(two.received("MPUB")) == 1


def test_number_of_confirmed_messages_of_publish_many(client: Client, world: World) -> None:
    count: list[int] = []

    def second_fails(connection: scripted.Connection, command: Command) -> None:
        count.append(1)
        if len(count) == 3:
            scripted.reset()(connection)
        connection.response()

    with ScriptedNsqd([automatic(hooks={"MPUB": second_fails})]) as nsqd:
        writer = client.writer(nsqd, max_body_size=4 + 10 * 14)
        with pytest.raises(OutcomeUnknown) as caught:
            writer.publish_many("t", [b"0123456789"] * 45)
        assert caught.value.acknowledged == 20


def test_number_of_confirmed_messages_before_a_close(client: Client, world: World) -> None:
    go_on = threading.Event()

    def second_waits(connection: scripted.Connection, command: Command) -> None:
        if len(nsqd.received("MPUB")) == 2:
            scripted.wait_until(go_on)(connection)
        connection.response()

    def publish(told: list[int]) -> ClosedError:
        with pytest.raises(ClosedError) as caught:
            for more in publish_all(writer, "t", ["0123456789"] * 45, timeout=60):
                told.append(more)
        return caught.value

    with ScriptedNsqd([automatic(hooks={"MPUB": second_waits})]) as nsqd:
        writer = client.writer(nsqd, max_body_size=4 + 10 * 14)
        told: list[int] = []
        publishing = world.spawn(publish, told)
        world.eventually(lambda: len(nsqd.received("MPUB")) == 2)
        pool = writer._publisher().pool
        closing = world.spawn(writer.close, 30)
        world.eventually(lambda: pool.table.is_closed)
        go_on.set()
        assert publishing.join().acknowledged == 20
        assert told == [20]
        closing.join()


def test_a_future_that_gevent_waits_for() -> None:
    """As the guide has it, for a process that is not patched."""
    with ScriptedNsqd() as nsqd, Writer(address(nsqd), runtime="gevent") as writer:
        published = gevent.event.Event()
        future = writer.publish_async("orders", b"{}")
        future.add_done_callback(lambda future: published.set())
        assert published.wait(60)
        assert future.result(0) is None


def test_futures(client: Client, world: World) -> None:
    def hook(connection: scripted.Connection, command: Command) -> None:
        if command.body == b"bad":
            refuse("E_BAD_MESSAGE PUB message too big")(connection, command)
        if command.body == b"cut":
            scripted.reset()(connection)
        if command.body != b"hang":
            connection.response()

    def outcome(future: Any) -> str:
        world.eventually(future.done)
        return type(future.exception(0)).__name__

    with ScriptedNsqd([automatic(hooks={"PUB": hook})]) as nsqd:
        writer = client.writer(nsqd)
        assert outcome(writer.publish_async("t", "good")) == "NoneType"
        assert outcome(writer.publish_async("t", "bad")) == "Refused"
        world.eventually(lambda: not writer.is_connected)
        assert outcome(writer.publish_async("t", "cut")) == "OutcomeUnknown"
        world.eventually(lambda: not writer.is_connected)
        futures = [writer.publish_async("t", body) for body in ("hang", "behind")]
        futures[0].cancel()
        world.eventually(lambda: len(nsqd.received("PUB")) == 5)
        # The one answer is that of the first.
        world.sleep(0.05)
        assert not futures[1].done()
        writer.close(0.1)
        assert outcome(futures[1]) == "OutcomeUnknown"


def test_a_connection_whose_end_is_being_told_takes_no_publish(
    client: Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Callbacks of futures run first; a publish meanwhile goes elsewhere, and does not spin."""
    go_on = threading.Event()
    begun: list[Any] = []

    def callback(future: Any) -> None:
        begun.append(future)
        world.eventually(go_on.is_set, 60)

    def hook(connection: scripted.Connection, command: Command) -> None:
        if command.body == b"cut":
            scripted.reset()(connection)
        connection.response()

    with ScriptedNsqd([automatic(hooks={"PUB": hook})]) as nsqd:
        writer = client.writer(nsqd)
        writer.publish("t", "x")
        writer.publish_async("t", "cut").add_done_callback(callback)
        world.eventually(lambda: begun)
        writer.publish("t", "y", timeout=15)
        assert not go_on.is_set()
        assert writer.stats().published == 2
        assert len(writer.stats().connections) == 1
        go_on.set()
        world.eventually(lambda: "lost 127.0.0.1" in caplog.text)
        assert caplog.text.count("lost 127.0.0.1") == 1
        writer.publish("t", "z")
        assert writer.stats().published == 3
        assert len(nsqd.connections) == 2


# -- closes ---------------------------------------------------------------------------------------


def outcomes_of(world: World, writer: Writer, count: int, timeout: float = 30.0) -> list[Any]:
    def publish(number: int) -> str:
        try:
            writer.publish("t", f"{number}", timeout=timeout)
        except (PublishError, ClosedError) as error:
            return type(error).__name__
        return "OK"

    return [world.spawn(publish, number) for number in range(count)]


def test_close_waits_for_the_answers(client: Client, world: World) -> None:
    go_on = threading.Event()
    steps = [automatic(until="IDENTIFY"), scripted.wait_until(go_on), automatic()]
    with ScriptedNsqd(steps) as nsqd:
        writer = client.writer(nsqd)
        writer.connect()
        tasks = outcomes_of(world, writer, 8)
        publisher = writer._publisher()
        world.eventually(lambda: len(publisher.pool.table.connections()[0].send_queue.pending) == 8)
        closing = world.spawn(writer.close, 30)
        world.sleep(0.05)
        assert not closing.done
        go_on.set()
        assert [task.join() for task in tasks] == ["OK"] * 8
        closing.join()
        with pytest.raises(ClosedError, match="the Writer is closed"):
            writer.publish("t", "x")
        writer.close()


def test_close_gives_up_in_the_end(client: Client, world: World) -> None:
    with ScriptedNsqd([automatic(hooks={"PUB": nothing})]) as nsqd:
        writer = client.writer(nsqd)
        writer.connect()
        tasks = outcomes_of(world, writer, 8)
        world.eventually(lambda: len(nsqd.received("PUB")) == 8)
        writer.close(0.1)
        assert [task.join() for task in tasks] == ["OutcomeUnknown"] * 8


def test_close_while_a_dial_is_under_way(client: Client, world: World) -> None:
    with ScriptedNsqd([automatic(hooks={"IDENTIFY": nothing})]) as nsqd:
        writer = client.writer(nsqd, connect_timeout=60)
        tasks = outcomes_of(world, writer, 4, 60)
        world.eventually(lambda: nsqd.received("IDENTIFY"))
        writer.close(30)
        assert [task.join() for task in tasks] == ["ClosedError"] * 4


def test_close_in_the_moment_in_which_a_handshake_ends(
    client: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nsqd ignores that we close, and no thread waits for it."""
    runtime = counting(world)
    open_ = PublishingConnection.open
    closing: list[Any] = []

    def late(connection: PublishingConnection, timeout: float | None = None) -> None:
        open_(connection, timeout)
        closing.append(world.spawn(writer.close, 0.1))
        world.eventually(lambda: pool.table.is_closed)

    monkeypatch.setattr(PublishingConnection, "open", late)
    with ScriptedNsqd([automatic(until="IDENTIFY"), scripted.silence()]) as nsqd:
        writer = client.writer(nsqd, runtime=runtime)
        pool = writer._publisher().pool
        (task,) = outcomes_of(world, writer, 1)
        assert task.join() == "ClosedError"
        closing[0].join()
        runtime.check_ended()


def test_close_while_publishes_wait_for_a_bench_to_end(client: Client, world: World) -> None:
    with unused_address() as where:
        writer = Writer(where, runtime=world.runtime)
        tasks = outcomes_of(world, writer, 4, 60)
        world.sleep(0.1)
        writer.close(30)
        assert [task.join() for task in tasks] == ["ClosedError"] * 4


def test_close_before_the_first_use(world: World) -> None:
    writer = Writer(runtime=world.runtime)
    writer.close()
    for use in (writer.connect, writer.ping, writer.stats):
        with pytest.raises(ClosedError):
            use()
    assert not writer.is_connected


def test_close_in_the_middle_of_publishing(client: Client, world: World) -> None:
    """Whatever was acknowledged is at nsqd, and whatever was not sent is not."""
    with ScriptedNsqd() as nsqd:
        writer = client.writer(nsqd)
        writer.connect()
        outcome: dict[str, str] = {}

        def publish(who: int) -> None:
            for number in range(10_000):
                body = f"{who}-{number}"
                try:
                    writer.publish("t", body)
                    outcome[body] = "OK"
                except ClosedError:
                    return
                except PublishError as error:
                    outcome[body] = type(error).__name__

        tasks = [world.spawn(publish, who) for who in range(4)]
        world.eventually(lambda: len(outcome) > 50)
        writer.close()
        for task in tasks:
            task.join()
        ok = {body for body, what in outcome.items() if what == "OK"}
        arrived = {(c.body or b"").decode() for c in nsqd.received("PUB")}
        assert ok <= arrived
        assert not {body for body, what in outcome.items() if what == "NotSent"} & arrived


@pytest.mark.parametrize("waits", [False, True])
def test_a_writer_that_is_forgotten_keeps_no_connection(
    client: Client, world: World, waits: bool
) -> None:
    """One made for each publish would else keep a descriptor and a thread each."""
    go_on = threading.Event()
    steps = [automatic(until="IDENTIFY"), scripted.wait_until(go_on), automatic()]

    def forget() -> Any:
        writer = Writer(address(nsqd), runtime=world.runtime)
        if waits:
            return writer.publish_async("t", "x")
        writer.connect()
        return None

    with ScriptedNsqd(steps) as nsqd:
        before = len(world.running())
        future = forget()
        gc.collect()
        if waits:
            # Somebody may look at the outcome.
            world.sleep(0.05)
            assert not future.done()
            go_on.set()
            world.eventually(future.done)
            assert future.exception(0) is None
        go_on.set()
        world.eventually(lambda: gc.collect() >= 0 and len(world.running()) <= before)


def test_nothing_stays_of_writers_that_were_forgotten(client: Client, world: World) -> None:
    def use_one() -> None:
        Writer(address(nsqd), runtime=world.runtime).publish("t", "x")
        gc.collect()

    with ScriptedNsqd() as nsqd:
        use_one()
        before = len(at_exit._open)
        for _ in range(10):
            use_one()
        assert len(at_exit._open) <= before


# -- stats ----------------------------------------------------------------------------------------


@pytest.mark.reality("another OS thread asks")
def test_stats_before_the_first_publish_begin_nothing(client: Client, world: World) -> None:
    """They may be asked by a thread that serves metrics, where no greenlet must be bound."""
    told: list[WriterStats] = []
    with ScriptedNsqd() as nsqd:
        writer = client.writer(nsqd)
        thread = threading.Thread(target=lambda: told.append(writer.stats()))
        thread.start()
        thread.join()
        assert told == [WriterStats((), 0, 0, 0, 0)]
        assert not writer.is_connected
        writer.publish("t", "x", timeout=15)
        assert writer.stats().published == 1


# -- pickling -------------------------------------------------------------------------------------


@pytest.mark.reality("a pickle has the name of a runtime")
def test_a_pickled_writer_is_its_configuration(client: Client, world: World) -> None:
    with ScriptedNsqd() as nsqd:
        writer = client.writer(nsqd, client_id="me", publish_timeout=7)
        writer.publish("t", "a")
        copy = pickle.loads(pickle.dumps(writer))
        assert not copy.is_connected
        assert repr(copy) == repr(writer)
        copy.publish("t", "b")
        assert copy.stats().published == 1
        assert len(nsqd.connections) == 2
        assert nsqd.received("IDENTIFY")[1].json["client_id"] == "me"
        copy.close()
        writer.publish("t", "c")
        assert len(nsqd.connections) == 2


def test_a_publisher_that_is_killed_between_dial_and_publish(
    client: Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Where it logs: a handler may wait there, and on greenlets a Timeout hits who waits."""

    class Killed(BaseException):
        pass

    def kill(record: logging.LogRecord) -> bool:
        if record.getMessage().startswith("connected to"):
            log.removeFilter(kill)
            raise Killed
        return True

    caplog.set_level(logging.INFO, "gnsqsync.writer")
    log = logging.getLogger("gnsqsync.writer")
    log.addFilter(kill)
    with ScriptedNsqd() as nsqd:
        writer = client.writer(nsqd)
        with pytest.raises(Killed):
            writer.publish("t", "x")
        writer.publish("t", "x", timeout=15)
        assert len(nsqd.connections) == 2


# -- another OS thread ----------------------------------------------------------------------------


@pytest.mark.reality("there is a second OS thread")
def test_a_writer_on_gevent_belongs_to_one_os_thread(client: Client, world: World) -> None:
    """On threads any may publish."""
    with ScriptedNsqd() as nsqd:
        writer = client.writer(nsqd)
        writer.publish("t", "x")
        uses = [
            lambda: writer.publish("t", "x"),
            lambda: writer.publish_many("t", ["x", "y"]),
            lambda: writer.publish_async("t", "x"),
            lambda: writer.connect(),
            lambda: writer.ping(),
        ]
        for use in uses:
            error = gevent.get_hub().threadpool.apply(failure_of, (use,))
            if world.name != "threads":
                assert isinstance(error, ConfigError)
                assert "belongs to the OS thread that used it first" in str(error)
                assert "give each OS thread a Reader or Writer of its own" in str(error)
            else:
                assert error is None
        writer.publish("t", "x")
        assert writer.stats().not_sent == 0


def failure_of(use: Callable[[], object]) -> BaseException | None:
    try:
        use()
    except BaseException as error:
        return error
    return None

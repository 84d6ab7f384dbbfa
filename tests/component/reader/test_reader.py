"""A Reader's life beside nsqds that vanish, hang or lie: starts, stops, losses, what is left."""

from __future__ import annotations

import math
import socket
import time
from typing import Any

import pytest

from gnsqsync import Message, Reader, Requeue
from gnsqsync.connection.subscribed import SubscribedConnection
from gnsqsync.errors import BadTopic, ClosedError, NotSent, Unauthorized
from gnsqsync.reader.running_reader import RunningReader
from gnsqsync.runtime import choose
from gnsqsync.stats import StopResult
from tests.component.conftest import Client, address, names
from tests.support import scripted
from tests.support.counting import CountingRuntime
from tests.support.ground import black_hole
from tests.support.scripted import Command, ScriptedNsqd, automatic, message_frame
from tests.support.worlds import World

CLEAN = StopResult(unanswered=0, workers_running=0)
SUBSCRIBED = automatic(until="RDY")


def stop(reader: Reader, world: World, timeout: float = 30.0, within: float = 4.0) -> StopResult:
    """Stop it and check that this takes much less than its timeout."""
    run = reader._run
    assert run is not None
    started = run.runtime.now()
    reader.stop(timeout)
    result = reader.join(60)
    assert result is not None
    assert run.runtime.now() - started < within
    return result


# -- stops ----------------------------------------------------------------------------------------


def test_stop_during_a_dial(client: Client, world: World) -> None:
    with black_hole() as (host, port):
        reader = client.consume(print, nsqd_tcp_addresses=f"{host}:{port}", connect_timeout=60)
        world.sleep(0.05)
        assert stop(reader, world) == CLEAN


def test_remove_during_a_dial(client: Client, world: World) -> None:
    with ScriptedNsqd() as nsqd, black_hole() as (host, port):
        hole = f"{host}:{port}"
        reader = client.consume(print, nsqd_tcp_addresses=[hole, address(nsqd)], connect_timeout=60)
        world.eventually(lambda: nsqd.received("RDY"))
        run = reader._run
        assert run is not None
        reader.remove_nsqd(hole)
        world.eventually(lambda: len(run.subscription._nodes._nodes) == 1, 5)


@pytest.mark.parametrize("step", ["IDENTIFY", "SUB"])
def test_stop_during_a_handshake(client: Client, world: World, step: str) -> None:
    hooks = {step: lambda connection, command: None}
    with ScriptedNsqd([automatic(hooks=hooks)]) as nsqd:
        reader = client.consume(print, nsqd, connect_timeout=60)
        world.eventually(lambda: nsqd.received(step))
        assert stop(reader, world) == CLEAN


def test_stop_during_backoff(client: Client, world: World) -> None:
    def handler(message: Message) -> None:
        raise ValueError

    with ScriptedNsqd([SUBSCRIBED, scripted.message(b"x"), automatic()]) as nsqd:
        reader = client.consume(handler, nsqd, backoff="every_failure")
        world.eventually(lambda: reader.is_in_backoff and nsqd.received("REQ"))
        assert stop(reader, world) == CLEAN
        assert names(nsqd)[-1] == "CLS"


def test_a_backoff_strategy_that_raises_ends_no_worker(
    client: Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def strategy(level: int) -> float:
        raise ZeroDivisionError(f"level {level}")

    def handler(message: Message) -> None:
        if message.body == b"bad":
            raise Requeue(0)

    bad, good = scripted.message(b"bad"), scripted.message(b"good")
    script = [SUBSCRIBED, bad, automatic(until="REQ"), automatic(until="RDY"), bad]
    script += [automatic(until="REQ"), automatic(until="RDY"), good, automatic()]
    with ScriptedNsqd(script) as nsqd:
        reader = client.consume(
            handler,
            nsqd,
            backoff_strategy=strategy,
            backoff_multiplier=0.01,
            latency="throughput",
            backoff="every_failure",
        )
        world.eventually(lambda: nsqd.received("FIN"))
        assert len(nsqd.received("REQ")) == 2
        assert stop(reader, world) == CLEAN
    (told,) = [r for r in caplog.records if r.levelname == "ERROR"]
    assert told.name == "gnsqsync.reader"
    assert "backoff_strategy of t/ch failed" in told.message
    assert told.exc_info is not None and str(told.exc_info[1]) == "level 1"


def test_stop_during_a_redial_pause(client: Client, world: World) -> None:
    with ScriptedNsqd() as nsqd:
        reader = client.consume(print, nsqd)
        world.eventually(lambda: nsqd.received("RDY"))
        nsqd.refuse_connections()
        nsqd.drop_connections()
        world.eventually(lambda: not reader.stats().connections)
        assert stop(reader, world) == CLEAN


def test_stop_during_a_lookup_that_hangs(client: Client, world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as lookupd:
        host, port = lookupd.getsockname()
        reader = client.consume(print, lookupd_http_addresses=f"{host}:{port}")
        world.sleep(0.1)
        # The query ends by its own timeout of two seconds.
        assert stop(reader, world, within=8.0) == CLEAN


def test_stop_of_an_nsqd_that_does_not_answer_cls(client: Client, world: World) -> None:
    hooks = {"CLS": lambda connection, command: None}
    with ScriptedNsqd([automatic(hooks=hooks)]) as nsqd:
        reader = client.consume(print, nsqd)
        world.eventually(lambda: nsqd.received("RDY"))
        assert stop(reader, world, 0.2) == CLEAN


def test_stop_in_a_handler_and_before_it_returns(client: Client, world: World) -> None:
    def handler(message: Message) -> None:
        reader.stop()
        with pytest.raises(ClosedError):
            reader.start()

    with ScriptedNsqd([SUBSCRIBED, scripted.message(b"x"), automatic()]) as nsqd:
        # Not consume(): the handler may run before that returns.
        reader = client.reader(handler, nsqd, latency="throughput")
        reader.start(block=False)
        assert reader.join(10) == CLEAN
        world.eventually(lambda: nsqd.received("FIN") and nsqd.received("CLS"))


def test_stop_before_the_start(client: Client, world: World) -> None:
    """As by a signal whose handler was installed just before start()."""
    with ScriptedNsqd() as nsqd:
        reader = client.reader(print, nsqd)
        reader.stop()
        assert world.spawn(reader.start).join() == CLEAN


def test_stop_wakes_for_a_message_that_nsqd_took_back(client: Client, world: World) -> None:
    kept: list[Message] = []

    def handler(message: Message) -> None:
        message.detach()
        kept.append(message)

    def refuse(connection: scripted.Connection, command: Command) -> None:
        (id,) = command.parameters
        connection.error(f"E_TOUCH_FAILED TOUCH {id} failed ID not in flight")

    with ScriptedNsqd(
        [SUBSCRIBED, scripted.message(b"x"), automatic(hooks={"TOUCH": refuse})]
    ) as n:
        reader = client.consume(handler, n)
        world.eventually(lambda: kept)
        reader.stop(60)
        world.eventually(lambda: n.received("CLS"))
        world.sleep(0.05)
        assert kept[0].touch()
        assert reader.join(10) == CLEAN
        assert kept[0].timed_out


def test_a_message_put_into_the_queue_behind_the_stops_look(client: Client, world: World) -> None:
    """The reading thread was about to queue it when the stop came, and is scheduled late."""
    in_between: list[bool] = []
    handled: list[Message] = []
    id = b"0123456789abcdef"
    with ScriptedNsqd() as nsqd:
        reader = client.consume(handled.append, nsqd)
        world.eventually(lambda: nsqd.received("RDY"))
        run = reader._run
        assert run is not None
        chunks = run.subscription._chunks
        put = chunks.put

        def late_put(*args: Any) -> None:
            in_between.append(True)
            # Until the workers have ended, as the stop told them.
            world.eventually(lambda: not run.workers.working)
            put(*args)

        chunks.put = late_put  # type: ignore[method-assign]
        nsqd.connections[0].message(b"x", id=id)
        world.eventually(lambda: in_between)
        reader.stop(60)
        world.eventually(lambda: nsqd.received("REQ"))
        assert names(nsqd)[-1] == f"REQ {id.decode()} 0"
        assert reader.join(10) == CLEAN
        assert handled == []


def test_a_chunk_put_back_during_a_stop_is_given_back(client: Client, world: World) -> None:
    with ScriptedNsqd() as nsqd:
        reader = client.consume(print, nsqd)
        world.eventually(lambda: nsqd.received("RDY"))
        run = reader._run
        assert run is not None
        chunks = run.subscription._chunks
        (connection,) = run.subscription.connections()
        message = Message(b"0" * 16, b"x", 1, 0, connection)
        connection.in_flight[message._id] = message
        # As where a worker has been slow with its chunk; the stop comes before the rest is queued.
        chunks.begin(7, (connection, [message]))
        put = chunks._put

        def put_late(*args: Any) -> None:
            connection.delivers = False
            put(*args)

        chunks._put = put_late  # type: ignore[method-assign]
        world.sleep(0.01)
        chunks.relieve()
        # The timer may have come first, and be in the middle of it.
        world.eventually(lambda: not connection.in_flight)
        world.eventually(lambda: nsqd.received("REQ"))


def test_a_handler_that_ends_in_the_grace_of_a_forced_stop(client: Client, world: World) -> None:
    runtime = choose(world.runtime)
    at_work, stopping = runtime.event(), runtime.event()

    def handler(message: Message) -> None:
        at_work.set()
        assert stopping.wait(15)

    with ScriptedNsqd([SUBSCRIBED, scripted.message(b"x"), automatic()]) as nsqd:
        reader = client.consume(handler, nsqd)
        assert at_work.wait(15)
        run = reader._run
        assert run is not None
        wait_drained = run._wait_drained

        def wait_and_go_on(deadline: float) -> float:
            after = wait_drained(deadline)
            stopping.set()
            return after

        run._wait_drained = wait_and_go_on  # type: ignore[method-assign]
        assert stop(reader, world, timeout=0.0) == CLEAN
        world.eventually(lambda: nsqd.received("FIN"))


def test_a_second_stop_forces(client: Client, world: World) -> None:
    begun: list[Message] = []
    release: list[bool] = []

    def handler(message: Message) -> None:
        begun.append(message)
        world.eventually(lambda: release, 60)

    with ScriptedNsqd([SUBSCRIBED, scripted.message(b"x"), automatic()]) as nsqd:
        reader = client.consume(handler, nsqd)
        world.eventually(lambda: begun)
        reader.stop(60)
        assert reader.join(0.1) is None
        reader.stop(0)
        assert reader.join(10) == StopResult(unanswered=1, workers_running=1)
        assert reader.join(0) == StopResult(unanswered=1, workers_running=1)
        release.append(True)
        world.eventually(lambda: not reader._run.workers.working)  # type: ignore[union-attr]
        assert nsqd.received("FIN") == []


def test_a_handshake_that_ends_in_the_moment_of_a_stop(
    client: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nsqd ignores that we close, and no thread waits for it."""
    runtime = CountingRuntime(choose(world.runtime))
    open_ = SubscribedConnection.open

    def late(connection: SubscribedConnection, timeout: float | None = None) -> None:
        open_(connection, timeout)
        reader.stop(0.0)
        world.eventually(lambda: reader._run.subscription._stopping)  # type: ignore[union-attr]

    monkeypatch.setattr(SubscribedConnection, "open", late)
    with ScriptedNsqd([automatic(until="SUB"), scripted.silence()]) as nsqd:
        reader = client.reader(print, nsqd, runtime=runtime)
        reader.start(block=False)
        assert reader.join(20) == CLEAN
        runtime.check_ended()


# -- starts ---------------------------------------------------------------------------------------


def test_start_twice(client: Client, world: World) -> None:
    with ScriptedNsqd() as nsqd:
        reader = client.consume(print, nsqd)
        world.eventually(lambda: nsqd.received("RDY"))
        with pytest.raises(ClosedError, match="a Reader is started once"):
            reader.start()
        reader.stop()
        reader.join()
        with pytest.raises(ClosedError, match="a Reader is started once"):
            reader.start(block=False)
        assert len(nsqd.connections) == 1


def test_a_third_interrupt_ends_the_wait(client: Client, world: World) -> None:
    class Interrupted(BaseException):
        pass

    with ScriptedNsqd() as nsqd:
        reader = client.reader(print, nsqd)
        client.forget(reader)
        outcomes: list[BaseException] = []
        waits: list[int] = []

        def start() -> None:
            try:
                reader.start()
            except BaseException as error:
                outcomes.append(error)

        def interrupted(self: RunningReader, *args: Any) -> None:
            waits.append(1)
            raise Interrupted

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RunningReader, "_wait_drained", interrupted)
            patch.setattr(RunningReader, "_next_word", lambda self, seconds: 1.0)
            world.spawn(start).join()
        assert len(waits) == 3
        assert isinstance(outcomes[0], Interrupted)
        with pytest.raises(Interrupted):
            reader.join(5)
        world.eventually(lambda: not reader.stats().connections)


def test_one_of_many_concurrent_starts_wins(client: Client, world: World) -> None:
    with ScriptedNsqd() as nsqd:
        reader = client.reader(print, nsqd)

        def start() -> str:
            try:
                reader.start(block=False)
            except ClosedError:
                return "lost"
            return "won"

        tasks = [world.spawn(start) for _ in range(8)]
        for task in tasks:
            task.join()
        assert sorted(task.result for task in tasks) == ["lost"] * 7 + ["won"]
        world.eventually(lambda: nsqd.received("RDY"))
        assert len(nsqd.connections) == 1


def test_before_the_start(client: Client, world: World) -> None:
    with ScriptedNsqd() as nsqd:
        reader = client.reader(print, nsqd)
        reader.stop()
        assert not reader.is_in_backoff
        for use in (reader.join, reader.stats, reader.pause, lambda: reader.is_starved):
            with pytest.raises(ClosedError, match="the Reader is not started"):
                use()
        assert nsqd.connections == []


@pytest.mark.parametrize(
    ("step", "text", "error"),
    [
        ("SUB", "E_BAD_TOPIC SUB topic name is not valid", BadTopic),
        ("SUB", "E_UNAUTHORIZED AUTH failed for SUB on t ch", Unauthorized),
    ],
)
def test_a_refusal_for_good_ends_the_reader(
    client: Client, world: World, step: str, text: str, error: type[Exception]
) -> None:
    def refuse(connection: scripted.Connection, command: Command) -> None:
        connection.error(text)
        scripted.close()(connection)

    with ScriptedNsqd([automatic(hooks={step: refuse})]) as nsqd:
        reader = client.reader(print, nsqd)
        task = world.spawn(reader.start)
        with pytest.raises(error):
            task.join()
        assert len(nsqd.connections) == 1


def test_an_nsqd_that_refuses_does_not_end_the_others(client: Client, world: World) -> None:
    def refuse(connection: scripted.Connection, command: Command) -> None:
        connection.error("E_BAD_TOPIC SUB topic name is not valid")
        scripted.close()(connection)

    with ScriptedNsqd([automatic(hooks={"SUB": refuse})]) as bad, ScriptedNsqd() as good:
        got: list[Message] = []
        reader = client.consume(got.append, bad, good, max_in_flight=2)
        world.eventually(lambda: good.received("RDY") and bad.connections[1:])
        good.connections[0].message(b"x")
        world.eventually(lambda: got and reader.stats().finished == 1)


# -- losses ---------------------------------------------------------------------------------------


def test_a_connection_that_is_lost_while_handlers_run(client: Client, world: World) -> None:
    begun: list[Message] = []
    answers: list[bool] = []
    release: list[bool] = []

    def handler(message: Message) -> None:
        begun.append(message)
        if len(begun) == 1:
            world.eventually(lambda: release)
            answers.extend((message.is_alive, message.touch(), message.finish()))

    messages = [scripted.send(b"".join(message_frame(b"%d" % n) for n in range(5)))]
    with ScriptedNsqd([SUBSCRIBED, *messages], [automatic()]) as nsqd:
        reader = client.consume(handler, nsqd, max_in_flight=5)
        world.eventually(lambda: begun and reader.stats().in_flight == 5)
        nsqd.refuse_connections()
        nsqd.drop_connections()
        world.eventually(lambda: not reader.stats().connections)
        assert reader.stats().in_flight == 0
        release.append(True)
        world.eventually(lambda: len(answers) == 3)
        assert answers == [False, False, False]
        nsqd.accept_connections()
        # Dialled again after a pause, with all of max_in_flight; the other four never began.
        world.eventually(lambda: nsqd.connections[1:] and len(nsqd.connections[1].commands) == 3)
        nsqd.connections[1].message(b"after")
        world.eventually(lambda: reader.stats().finished == 1)
        assert [m.body for m in begun] == [b"0", b"after"]
        world.eventually(lambda: len(nsqd.received("FIN")) == 1)
        assert nsqd.received("REQ") == []
        stats = reader.stats()
        assert (stats.received, stats.in_flight) == (6, 0)


def test_rdy_is_shared_anew(client: Client, world: World) -> None:
    def last_rdy(nsqd: ScriptedNsqd) -> str:
        return nsqd.received("RDY")[-1].parameters[0] if nsqd.received("RDY") else ""

    with ScriptedNsqd() as one, ScriptedNsqd() as two:
        reader = client.consume(print, one, two, max_in_flight=10, latency="throughput")
        world.eventually(lambda: (last_rdy(one), last_rdy(two)) == ("5", "5"))
        one.refuse_connections()
        one.drop_connections()
        world.eventually(lambda: last_rdy(two) == "10")
        one.accept_connections()
        world.eventually(lambda: (last_rdy(one), last_rdy(two)) == ("5", "5"))
        reader.set_max_in_flight(4)
        world.eventually(lambda: (last_rdy(one), last_rdy(two)) == ("2", "2"))
        reader.pause()
        world.eventually(lambda: (last_rdy(one), last_rdy(two)) == ("0", "0"))
        reader.resume()
        world.eventually(lambda: (last_rdy(one), last_rdy(two)) == ("2", "2"))


def test_redials_have_pauses(client: Client, world: World) -> None:
    with ScriptedNsqd([scripted.close()]) as nsqd:
        started = time.monotonic()
        client.consume(print, nsqd)
        world.eventually(lambda: len(nsqd.connections) >= 3)
        # The second after 0.25 to 0.5 s, the third after another 0.5 to 1 s.
        assert time.monotonic() - started >= 0.75


# -- messages -------------------------------------------------------------------------------------


def fail(message: Message) -> None:
    raise RuntimeError("no")


def test_delays_beyond_all_bounds(client: Client, world: World) -> None:
    def handler(message: Message) -> None:
        if message.body == b"raise":
            raise Requeue(math.inf, backoff=False)
        message.requeue(1e300, backoff=False)

    with ScriptedNsqd() as nsqd:
        reader = client.consume(handler, nsqd)
        world.eventually(lambda: nsqd.received("RDY"))
        nsqd.connections[0].message(b"raise")
        nsqd.connections[0].message(b"call")
        world.eventually(lambda: len(nsqd.received("REQ")) == 2)
        # nsqd lowers it to its own maximum; above this one it would wrap around.
        assert {c.parameters[1] for c in nsqd.received("REQ")} == {str((2**63 - 1) // 10**6)}
        assert reader.stats().in_flight == 0


@pytest.mark.parametrize("error", [ValueError("oops"), SystemExit(2)])
def test_on_giving_up_that_raises(client: Client, world: World, error: BaseException) -> None:
    def on_giving_up(message: Message, failure: BaseException | None) -> None:
        raise error

    with ScriptedNsqd([SUBSCRIBED, scripted.message(b"x", attempts=6)]) as nsqd:
        reader = client.consume(fail, nsqd, on_giving_up=on_giving_up, requeue_delay=1)
        world.eventually(lambda: nsqd.received("REQ"))
        assert nsqd.received("REQ")[0].parameters[1] == "6000"
        assert nsqd.received("FIN") == []
        assert reader.stats().gave_up == 0


def test_a_dead_letter_that_is_refused_loses_nothing(client: Client, world: World) -> None:
    refusing = [True]

    def publish(connection: scripted.Connection, command: Command) -> None:
        if refusing:
            connection.error("E_PUB_FAILED PUB failed exiting")
            scripted.close()(connection)
        connection.response()

    step = automatic(hooks={"PUB": publish})
    with ScriptedNsqd([SUBSCRIBED, step], [step]) as nsqd:
        options: dict[str, Any] = {"requeue_delay": 0, "max_backoff_duration": 0}
        reader = client.consume(fail, nsqd, dead_letter_topic="dead", **options)
        world.eventually(lambda: nsqd.received("RDY"))
        nsqd.connections[0].message(b"x", attempts=6)
        world.eventually(lambda: nsqd.received("REQ"))
        assert (nsqd.received("FIN"), reader.stats().gave_up) == ([], 0)
        refusing.clear()
        nsqd.connections[0].message(b"x", attempts=7)
        world.eventually(lambda: nsqd.received("FIN"))
        assert reader.stats().gave_up == 1
        # FIN only behind the OK of the dead letter, which has the body and goes to the same nsqd.
        order = [c.name for c in nsqd.commands if c.name in ("PUB", "REQ", "FIN")]
        assert order == ["PUB", "REQ", "PUB", "FIN"]
        assert nsqd.received("PUB")[1] == ("PUB", ("dead",), b"x")


def test_a_dead_letter_whose_outcome_is_unknown(client: Client, world: World) -> None:
    """It may come twice; that is better than not at all."""

    def vanish(connection: scripted.Connection, command: Command) -> None:
        scripted.reset()(connection)

    script = [SUBSCRIBED, scripted.message(b"x", attempts=6), automatic()]
    with ScriptedNsqd(script, [automatic(hooks={"PUB": vanish})]) as nsqd:
        client.consume(fail, nsqd, dead_letter_topic="dead")
        world.eventually(lambda: nsqd.received("REQ"))
        assert nsqd.received("FIN") == []
        assert len(nsqd.received("PUB")) == 1


def test_auto_touch_stops_at_the_servers_limit(client: Client, world: World) -> None:
    release: list[bool] = []
    script = [automatic(until="RDY", msg_timeout=400, max_msg_timeout=1000)]
    with ScriptedNsqd([*script, scripted.message(b"x")]) as nsqd:
        client.consume(lambda m: world.eventually(lambda: release), nsqd, auto_touch=True)
        world.eventually(lambda: nsqd.received("TOUCH"))
        # At half of the timeout, and so on as long as nsqd grants more; then it goes out.
        world.sleep(1.0)
        release.append(True)
        assert 1 <= len(nsqd.received("TOUCH")) <= 3


def test_not_sent_names_every_cause(client: Client, world: World) -> None:
    with ScriptedNsqd() as nsqd:
        writer = client.writer(nsqd)
        nsqd.refuse_connections()
        with pytest.raises(NotSent, match="refused"):
            writer.publish("t", "x", timeout=0.1)


def test_threads_and_tasks_end(client: Client, world: World) -> None:
    """Nothing of a Reader is left, not even after a loss in the middle of its stop."""
    hooks = {"CLS": lambda connection, command: scripted.reset()(connection)}
    with ScriptedNsqd([automatic(hooks=hooks)]) as nsqd:
        before = len(world.running())
        reader = client.consume(print, nsqd)
        world.eventually(lambda: nsqd.received("RDY"))
        assert stop(reader, world).workers_running == 0
        # The server's own thread for the connection may take its time.
        world.eventually(lambda: len(world.running()) <= before + 1)

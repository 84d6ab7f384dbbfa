"""What a Reader does not do: fill logs, keep memory, take signals, stall, count a failure twice."""

from __future__ import annotations

import gc
import logging
import signal
import threading
from typing import Any

import pytest

from gnsqsync import Message, Observer, Reader, Writer
from gnsqsync.connection.link import Link
from gnsqsync.connection.publish_slot import PublishSlot
from gnsqsync.errors import PublishError
from gnsqsync.reader.running_reader import RunningReader
from tests.component.conftest import Client, names
from tests.support import scripted
from tests.support.marks import few_and_many
from tests.support.scripted import Command, ScriptedNsqd, automatic, message_frame
from tests.support.worlds import World

SUBSCRIBED = automatic(until="RDY")


def messages(count: int, body: bytes = b"x") -> bytes:
    return b"".join(message_frame(body) for _ in range(count))


# -- handlers that take long ----------------------------------------------------------------------


def test_more_messages_than_asked_for_hold_up_nothing(client: Client, world: World) -> None:
    """nsqd sends them after timeouts of its own. The reading thread goes on reading."""
    release: list[bool] = []
    with ScriptedNsqd([SUBSCRIBED]) as nsqd:
        reader = client.consume(lambda m: world.eventually(lambda: release), nsqd)
        world.eventually(lambda: nsqd.received("RDY"))
        for _ in range(10):
            nsqd.connections[0].send(messages(100))
        nsqd.connections[0].response(b"_heartbeat_")
        world.eventually(lambda: nsqd.received("NOP"))
        assert reader.stats().in_flight == 1000
        assert nsqd.received("FIN") == []
        release.append(True)
        world.eventually(lambda: len(nsqd.received("FIN")) == 1000)


def test_a_publish_that_stalls_in_a_handler(client: Client, world: World) -> None:
    """It ends at its deadline, and the consumer's heartbeats are answered meanwhile."""
    outcomes: list[str] = []
    nothing = {"PUB": lambda connection, command: None}
    with ScriptedNsqd([SUBSCRIBED]) as nsqd, ScriptedNsqd([automatic(hooks=nothing)]) as stalled:
        writer = client.writer(stalled, publish_timeout=3)

        def handler(message: Message) -> None:
            try:
                writer.publish("t", message.body)
            except PublishError as error:
                outcomes.append(type(error).__name__)

        client.consume(handler, nsqd)
        world.eventually(lambda: nsqd.received("RDY"))
        nsqd.connections[0].message(b"x")
        world.eventually(lambda: stalled.received("PUB"))
        nsqd.connections[0].response(b"_heartbeat_")
        world.eventually(lambda: nsqd.received("NOP"))
        assert outcomes == []
        world.eventually(lambda: nsqd.received("FIN"))
        assert outcomes == ["OutcomeUnknown"]


def test_heartbeats_are_answered_while_a_stop_waits(client: Client, world: World) -> None:
    """Until the last handler has answered, or nsqd would take its message back."""
    begun: list[Message] = []
    release: list[bool] = []

    def handler(message: Message) -> None:
        begun.append(message)
        world.eventually(lambda: release)

    with ScriptedNsqd([SUBSCRIBED, scripted.message(b"x"), automatic()]) as nsqd:
        reader = client.consume(handler, nsqd)
        # What no handler has begun would go back.
        world.eventually(lambda: begun)
        reader.stop(60)
        world.eventually(lambda: nsqd.received("CLS"))
        for beats in (1, 2, 3):
            nsqd.connections[0].response(b"_heartbeat_")
            world.eventually(lambda: len(nsqd.received("NOP")) == beats)  # noqa: B023
        release.append(True)
        result = reader.join(10)
        assert result is not None
        assert result.clean
        world.eventually(lambda: nsqd.received("FIN"))


def test_close_from_inside_a_handler(client: Client, world: World) -> None:
    """Of the Writer that it publishes with and of the Reader that runs it, while others wait."""
    results: list[Any] = []
    with ScriptedNsqd([SUBSCRIBED]) as nsqd, ScriptedNsqd() as other:
        writer = client.writer(other)

        def handler(message: Message) -> None:
            writer.publish("t", message.body)
            writer.close()
            reader.stop()
            results.append(reader.stats())

        reader = client.consume(handler, nsqd, concurrency=2, max_in_flight=10)
        world.eventually(lambda: nsqd.received("RDY"))
        nsqd.connections[0].message(b"x")
        world.eventually(lambda: nsqd.received("CLS"))
        nsqd.connections[0].response(b"CLOSE_WAIT")
        result = reader.join(10)
        assert result is not None
        assert result.clean
        assert len(results) == 1


# -- failures -------------------------------------------------------------------------------------


class Levels(Observer):
    """Notes each change of the backoff."""

    def __init__(self) -> None:
        self.levels: list[int] = []

    def backoff(self, level: int, seconds: float) -> None:
        self.levels.append(level)


def test_failures_side_by_side_are_one_backoff(client: Client, world: World) -> None:
    begun: list[Message] = []
    observer = Levels()

    def handler(message: Message) -> None:
        begun.append(message)
        world.eventually(lambda: len(begun) == 5)
        raise ValueError

    with ScriptedNsqd([SUBSCRIBED]) as nsqd:
        reader = client.consume(
            handler,
            nsqd,
            concurrency=5,
            backoff="every_failure",
            backoff_multiplier=60,
            observer=observer,
        )
        world.eventually(lambda: nsqd.received("RDY"))
        nsqd.connections[0].send(messages(5))
        world.eventually(lambda: len(nsqd.received("REQ")) == 5)
        assert reader.stats().backoff_level == 1
        world.eventually(lambda: observer.levels == [1])


def test_an_outage_pauses_and_what_waits_goes_back_unhandled(
    client: Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[bytes] = []
    observer = Levels()

    def handler(message: Message) -> None:
        called.append(message.body)
        raise ConnectionError("the database is away")

    with ScriptedNsqd([SUBSCRIBED]) as nsqd, caplog.at_level(logging.INFO, "gnsqsync.reader"):
        reader = client.consume(
            handler,
            nsqd,
            max_in_flight=60,
            latency="throughput",
            backoff_multiplier=60,
            max_backoff_duration=1000,
            observer=observer,
        )
        world.eventually(lambda: nsqd.received("RDY"))
        nsqd.connections[0].send(messages(60))
        world.eventually(lambda: len(nsqd.received("REQ")) == 60)
        # More than 15 where the machine stood still: time takes off, too.
        failed = len(called)
        assert 15 <= failed < 60
        delays = [command.parameters[1] for command in nsqd.received("REQ")]
        assert delays == ["90000"] * failed + ["0"] * (60 - failed)
        told = names(nsqd)
        assert told.index("RDY 0") < told.index(
            next(n for n in told if n.endswith(" 0") and "REQ" in n)
        )
        assert reader.is_in_backoff
        assert reader.stats().backoff_level == 1
        assert observer.levels == [1]
        # A message that comes now has crossed with RDY 0.
        nsqd.connections[0].message(b"late", attempts=2)
        world.eventually(lambda: len(nsqd.received("REQ")) == 61)
        assert nsqd.received("REQ")[-1].parameters[1] == "0"
        assert len(called) == failed
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    (pauses,) = [text for text in warnings if "backs off for" in text]
    assert f"failed on {failed} different messages in " in pauses
    assert "all its messages wait" in pauses
    (row,) = [text for text in warnings if "one after the other" in text]
    assert "5 different messages failed" in row
    # The failure that began the pause comes again after its delay or the pause, the later one.
    assert sum("comes again in 90 s" in text for text in warnings) == failed - 1
    assert sum("after the pause of the consumer" in text for text in warnings) == 1


def test_backoff_that_is_off_changes_nothing_else(client: Client, world: World) -> None:
    def handler(message: Message) -> None:
        raise ValueError

    with ScriptedNsqd([SUBSCRIBED]) as nsqd:
        reader = client.consume(
            handler, nsqd, max_in_flight=3, max_backoff_duration=0, latency="throughput"
        )
        world.eventually(lambda: nsqd.received("RDY"))
        for attempts in (1, 2, 4):
            nsqd.connections[0].message(b"x", attempts=attempts)
        world.eventually(lambda: len(nsqd.received("REQ")) == 3)
        # The delays of a requeue are its own, and so are those between dials.
        assert [c.parameters[1] for c in nsqd.received("REQ")] == ["90000", "180000", "360000"]
        assert [name for name in names(nsqd) if name.startswith("RDY")] == ["RDY 3"]
        assert not reader.is_in_backoff


def test_the_log_tells_when_a_backoff_begins_and_ends(
    client: Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(message: Message) -> None:
        if message.body == b"bad":
            raise ValueError("the database is away")

    with ScriptedNsqd([SUBSCRIBED]) as nsqd, caplog.at_level(logging.INFO, "gnsqsync.reader"):
        reader = client.consume(handler, nsqd, backoff="every_failure", backoff_multiplier=0.05)
        world.eventually(lambda: nsqd.received("RDY"))
        nsqd.connections[0].message(b"bad")
        world.eventually(lambda: "t/ch backs off for 0.1 s (level 1)" in caplog.text)
        assert "ValueError: the database is away" in caplog.text
        world.eventually(lambda: "t/ch tests with RDY 1" in caplog.text)
        nsqd.connections[0].message(b"good")
        world.eventually(lambda: "t/ch is out of backoff" in caplog.text)
        assert not reader.is_in_backoff


@pytest.mark.parametrize(
    "text",
    [
        "E_FIN_FAILED",
        "E_FIN_FAILED FIN {id} failed ID not in flight",
        "E_FIN_FAILED FIN {id} failed client does not own message",
        "E_FIN_FAILED quite another text, of another version",
    ],
)
def test_a_refused_fin_is_known_by_its_code(client: Client, world: World, text: str) -> None:
    def refuse(connection: scripted.Connection, command: Command) -> None:
        connection.error(text.format(id=command.parameters[0]))

    with ScriptedNsqd([SUBSCRIBED, automatic(hooks={"FIN": refuse})]) as nsqd:
        reader = client.consume(lambda m: None, nsqd)
        world.eventually(lambda: nsqd.received("RDY"))
        for count in (1, 2):
            nsqd.connections[0].message(b"x")
            world.eventually(lambda: reader.stats().answers_failed == count)  # noqa: B023
        assert len(nsqd.connections) == 1
        assert reader.stats().connections


@pytest.mark.parametrize("wanted", [False, True])
def test_work_that_is_done_too_late_slows_down_if_wanted(
    client: Client, world: World, wanted: bool
) -> None:
    def refuse(connection: scripted.Connection, command: Command) -> None:
        connection.error(f"E_FIN_FAILED FIN {command.parameters[0]} failed ID not in flight")

    with ScriptedNsqd([SUBSCRIBED, automatic(hooks={"FIN": refuse})]) as nsqd:
        reader = client.consume(
            lambda m: None,
            nsqd,
            backoff_on_fin_failed=wanted,
            backoff_multiplier=60,
            backoff="every_failure",
            latency="throughput",
        )
        world.eventually(lambda: nsqd.received("RDY"))
        nsqd.connections[0].message(b"x")
        world.eventually(lambda: reader.stats().answers_failed == 1)
        world.eventually(lambda: reader.is_in_backoff == wanted)
        world.eventually(lambda: names(nsqd)[-1].startswith("RDY 0" if wanted else "FIN"))
        assert reader.stats().backoff_level == int(wanted)


@pytest.mark.parametrize("latency", ["adaptive", "throughput"])
def test_a_message_that_times_out_here_is_not_replaced_for_ever(
    client: Client, world: World, latency: str
) -> None:
    """nsqd takes what timed out off its count, and sends another one. One, not one each time."""
    release: list[bool] = []
    with ScriptedNsqd([SUBSCRIBED]) as nsqd:
        client.consume(lambda m: world.eventually(lambda: release), nsqd, latency=latency)
        world.eventually(lambda: nsqd.received("RDY"))
        for _ in range(2):
            nsqd.connections[0].message(b"x")
        world.eventually(lambda: names(nsqd)[-1] == "RDY 0")
        release.append(True)
        # Behind the FIN of the first, and the second one fills it.
        world.eventually(lambda: len(nsqd.received("FIN")) == 2)
        rdys = [name for name in names(nsqd) if name.startswith("RDY")]
        assert rdys == ["RDY 1", "RDY 0", "RDY 1"]


# -- logs and signals -----------------------------------------------------------------------------


def test_heartbeats_leave_no_line_in_the_log(
    client: Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with ScriptedNsqd() as nsqd, caplog.at_level(logging.DEBUG, "gnsqsync"):
        client.consume(print, nsqd)
        writer = client.writer(nsqd)
        writer.connect()
        world.eventually(lambda: nsqd.received("RDY"))
        world.eventually(lambda: "subscribed" in caplog.text and "connected to" in caplog.text)
        caplog.clear()
        for number in range(20):
            for connection in nsqd.connections:
                connection.response(b"_heartbeat_")
            # Those that come before a NOP has left share it.
            world.eventually(lambda number=number: len(nsqd.received("NOP")) == 2 * number + 2)
        assert caplog.records == []


def test_an_end_that_was_asked_for_is_no_news(
    client: Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The EOF that follows is told at DEBUG, of a Reader and of a Writer."""
    with ScriptedNsqd() as nsqd, caplog.at_level(logging.DEBUG, "gnsqsync"):
        reader = client.consume(print, nsqd, max_in_flight=2, on_giving_up="discard")
        writer = client.writer(nsqd)
        writer.publish("t", "x")
        world.eventually(lambda: nsqd.received("RDY"))
        writer.close()
        reader.stop()
        assert reader.join(10) is not None
        assert caplog.text.count("closed as asked") >= 1
        assert [r for r in caplog.records if r.levelno > logging.INFO] == []
        assert "closed the connection" not in caplog.text


def test_more_nsqds_than_max_in_flight_are_told_once(
    client: Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    text = "t/ch has more nsqds than max_in_flight, which is 1"
    with ScriptedNsqd() as one, ScriptedNsqd() as two, ScriptedNsqd() as three:
        reader = client.consume(print, one, two, three)
        world.eventually(lambda: len(reader.stats().connections) == 3)
        world.eventually(lambda: text in caplog.text)
        three.drop_connections()
        world.eventually(lambda: len(three.received("SUB")) == 2)
        world.eventually(lambda: len(reader.stats().connections) == 3)
        assert caplog.text.count("more nsqds than max_in_flight") == 1


@pytest.mark.parametrize(
    ("max_in_flight", "concurrency", "level"),
    [(1, 1, "INFO"), (3, 4, "WARNING"), (4, 4, ""), (0, 1, "")],
)
def test_a_limit_that_keeps_workers_idle_is_told(
    client: Client,
    world: World,
    caplog: pytest.LogCaptureFixture,
    max_in_flight: int,
    concurrency: int,
    level: str,
) -> None:
    with ScriptedNsqd() as nsqd, caplog.at_level(logging.INFO, "gnsqsync"):
        client.consume(print, nsqd, max_in_flight=max_in_flight, concurrency=concurrency)
    workers = "1 worker" if concurrency == 1 else f"{concurrency} workers"
    text = f"t/ch: max_in_flight is {max_in_flight} for {workers};"
    told = [r.levelname for r in caplog.records if r.getMessage().startswith(text)]
    assert told == ([level] if level else [])


@pytest.mark.reality("signals, and the main thread")
def test_signals_belong_to_the_program(client: Client, world: World) -> None:
    """A start that blocks the main thread installs no handler; Ctrl-C is Python's own."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    during: list[Any] = []

    def handler(message: Message) -> None:
        during.append([signal.getsignal(number) for number in numbers])
        reader.stop()

    assert threading.current_thread() is threading.main_thread()
    with ScriptedNsqd([SUBSCRIBED, scripted.message(b"x"), automatic()]) as nsqd:
        reader = client.reader(handler, nsqd)
        reader.start()
    assert during == [before]
    assert [signal.getsignal(number) for number in numbers] == before


# -- memory ---------------------------------------------------------------------------------------


def alive(*kinds: type) -> dict[str, int]:
    """How many objects of each kind there are."""
    gc.collect()
    everything = gc.get_objects()
    # Not isinstance: it asks lazy objects, as Django's settings, what they are.
    return {k.__name__: sum(issubclass(type(o), k) for o in everything) for k in kinds}


@few_and_many(6, 12)
def test_nothing_piles_up(
    client: Client, world: World, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    """Many messages and publishes, some of them failures, and connections that get lost."""
    kinds = (Message, Link, PublishSlot, Reader, RunningReader)
    # Kept log records hold what failed by their tracebacks.
    caplog.set_level(logging.CRITICAL, "gnsqsync")

    def handler(message: Message) -> None:
        if message.body == b"touch":
            message.touch()
        if message.body == b"bad":
            raise ValueError

    def life(nsqd: ScriptedNsqd, other: ScriptedNsqd, writer: Writer) -> None:
        nsqd.commands.clear()
        reader = client.consume(
            handler, nsqd, max_in_flight=100, max_backoff_duration=0, auto_touch=True
        )
        client.forget(reader)
        world.eventually(lambda: nsqd.received("RDY"))
        nsqd.connections[-1].send(messages(200) + messages(5, b"bad") + messages(5, b"touch"))
        for _ in range(20):
            writer.publish("t", "x")
        world.eventually(lambda: reader.stats().finished == 205)
        assert reader._run is not None
        # One sweep for all messages, one tick for RDY and redials, and no timer each.
        assert len(reader._run._timer._heap._heap) <= 4
        nsqd.drop_connections()
        other.drop_connections()
        world.eventually(lambda: not writer.is_connected)
        reader.stop()
        assert reader.join(10) is not None

    with ScriptedNsqd([SUBSCRIBED, automatic()]) as nsqd, ScriptedNsqd() as other:
        writer = client.writer(other)
        before = alive(*kinds)
        for _ in range(count):
            life(nsqd, other, writer)
        # A task may hold the last of each for a moment.
        world.eventually(lambda: all(n <= before[kind] + 2 for kind, n in alive(*kinds).items()))

"""What is logged when something is wrong or goes on: once, at its level, and no secret."""

from __future__ import annotations

import functools
import logging
import re
import struct
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from gnsqsync import (
    ConnectionOptions,
    LookupdHTTP,
    Message,
    Middleware,
    Observer,
    Reader,
    Writer,
)
from gnsqsync.errors import NotSent, NSQError
from gnsqsync.reader.rdy_control import Silence
from tests.component.conftest import Client, address
from tests.support import scripted
from tests.support.interpreter import run_script
from tests.support.marks import few_and_many
from tests.support.scripted import Command, ScriptedNsqd, automatic
from tests.support.worlds import World


@pytest.fixture(autouse=True)
def all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.DEBUG) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= level and record.name.startswith("gnsqsync")
    ]


def test_a_failing_handler_shows_where_nobody_configured_logging() -> None:
    """Python's last resort prints warnings: of the failure, with its traceback."""
    out = run_script(
        """
        import io, sys
        sys.stderr = io.StringIO()
        from gnsqsync import Reader
        from tests.support.scripted import ScriptedNsqd
        from tests.support.world import World

        def store(message):
            raise ValueError("the disk is full")

        world = World("threads")
        with ScriptedNsqd() as nsqd:
            reader = Reader("orders", "shop", store, nsqd_tcp_addresses="%s:%d" % nsqd.address,
                            dead_letter_topic="dead")
            reader.start(block=False)
            world.eventually(lambda: nsqd.received("RDY"))
            nsqd.connections[0].message(b"x")
            world.eventually(lambda: nsqd.received("REQ"))
            reader.stop()
            reader.join(10)
        print(sys.stderr.getvalue())
    """,
        shows_log=True,
    )
    first, *traceback = out.splitlines()
    assert first.startswith("orders/shop: handler __main__.store failed on message ")
    (seconds,) = re.findall(r"; requeued, comes again in ([0-9.]+) s$", first)
    assert 90 <= float(seconds) <= 99
    assert traceback[0] == "Traceback (most recent call last):"
    assert traceback[-1] == "ValueError: the disk is full"


def test_heartbeats_are_not_worth_a_line(
    client: Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    script = [automatic(until="RDY"), *[scripted.heartbeat()] * 20, automatic()]
    with ScriptedNsqd(script, [automatic(until="IDENTIFY"), *[scripted.heartbeat()] * 20]) as nsqd:
        client.consume(lambda m: None, nsqd)
        world.eventually(lambda: len(nsqd.received("NOP")) >= 1)
        before = len(lines(caplog, logging.INFO))
        client.writer(nsqd).connect()
        world.eventually(lambda: len(nsqd.received("NOP")) >= 2)
        # "connected to", and nothing more.
        assert len(lines(caplog, logging.INFO)) <= before + 1
        assert not [line for line in lines(caplog) if "heartbeat" in line.lower()]


def test_a_loss_that_nobody_asked_for_is_one_warning(
    client: Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    script = [automatic(until="RDY"), scripted.close()]
    with ScriptedNsqd(script, [automatic()]) as nsqd:
        client.consume(lambda m: None, nsqd, on_giving_up="discard")
        world.eventually(lambda: len(nsqd.received("SUB")) == 2)
        where = address(nsqd)
        world.eventually(lambda: len(lines(caplog, logging.WARNING)) == 2)
        lost, back = lines(caplog, logging.WARNING)
        assert re.fullmatch(
            f"t/ch: lost {where}: {where} closed the connection; it is dialled again in 0.[0-9] s;"
            " not repeated within 60 s",
            lost,
        )
        assert re.fullmatch(f"{where} is back after [0-9.]+ s; t/ch consumes from it again", back)


def test_publishes_without_an_nsqd_are_one_line(
    client: Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with ScriptedNsqd() as nsqd:
        nsqd.refuse_connections()
        writers = [client.writer(nsqd) for _ in range(3)]
        for _ in range(4):
            for writer in writers:
                with pytest.raises(NotSent):
                    writer.publish("t", "x", timeout=0.05)
        (begin,) = lines(caplog, logging.WARNING)
        assert begin.startswith(f"a Writer: cannot connect to {address(nsqd)}: ")
        nsqd.accept_connections()
        writers[0].publish("t", "x", timeout=10)
        _, end = lines(caplog, logging.WARNING)
        assert end.startswith(f"a Writer is connected to {address(nsqd)} again")


def test_an_error_that_no_retry_cures_is_logged_at_once_and_once(
    client: Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(connection: scripted.Connection, command: Command) -> None:
        connection.error("E_BAD_TOPIC SUB topic name is not valid")

    with ScriptedNsqd(*[[automatic(hooks={"SUB": refuse})]] * 9) as nsqd:
        lookupd = "http://127.0.0.1:1"
        options = {"lookupd_http_addresses": lookupd, "lookupd_poll_interval": 0.1}
        client.consume(lambda m: None, nsqd, **options)
        world.eventually(lambda: len(nsqd.received("SUB")) >= 3)
        errors = [r for r in caplog.records if r.levelno == logging.ERROR]
        (line,) = [r.getMessage() for r in errors]
        assert line.startswith("t/ch: E_BAD_TOPIC SUB topic name is not valid; trying again will")


@few_and_many(10_000, 100_000)
def test_a_hostile_nsqd_does_not_fill_the_log(
    client: Client, world: World, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    """An nsqd refuses thousands of answers that it was never given, as fast as it can."""
    refusals = Counter[str]()

    class Noting(Observer):
        def answer_failed(self, nsqd_address: str, message_id: str, code: str) -> None:
            refusals[code] += 1

    data = b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight"
    frame = struct.pack(">ii", 4 + len(data), 1) + data

    def flood(connection: scripted.Connection) -> None:
        for _ in range(count // 1000):
            connection.send(frame * 1000)

    with ScriptedNsqd([automatic(until="RDY"), flood, automatic()]) as nsqd:
        client.consume(lambda m: None, nsqd, observer=Noting())
        world.eventually(lambda: refusals["E_FIN_FAILED"] == count, 60)
        told = [line for line in lines(caplog) if "E_FIN_FAILED" in line]
        assert 5 <= len(told) <= 8
        assert told[0].startswith(f"t/ch: {address(nsqd)}: E_FIN_FAILED FIN 0123456789abcdef")


def test_a_failed_attempt_is_a_warning_with_its_exception(
    client: Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def store(message: Message) -> None:
        raise ValueError("the disk is full")

    with ScriptedNsqd() as nsqd:
        client.consume(functools.partial(store), nsqd, requeue_delay=30)
        world.eventually(lambda: nsqd.received("RDY"))
        nsqd.connections[0].message(b"x", attempts=2)
        world.eventually(lambda: nsqd.received("REQ"))
        world.eventually(lambda: [r for r in caplog.records if r.exc_info])
        (failed,) = [r for r in caplog.records if r.exc_info]
        assert failed.levelno == logging.WARNING
        name = f"{__name__}.{store.__qualname__}"
        assert failed.getMessage().startswith(f"t/ch: handler {name} failed on message ")
        assert f"(attempt 2) from {address(nsqd)}; requeued, comes again in 60 s" in (
            failed.getMessage()
        )
        assert failed.__dict__["handler"] == name


SECRETS = ("s3cr3t-auth", "p4ssw0rd", "t0k3n")


def test_no_secret_shows_anywhere(
    client: Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Logs of all levels, reprs, stats, errors with their causes, names of threads."""
    shown: list[str] = []

    def show(error: BaseException) -> None:
        shown.extend(traceback.format_exception(error))
        shown.append(repr(error))

    def refuse(connection: scripted.Connection, command: Command) -> None:
        connection.error("E_AUTH_FAILED AUTH failed")
        scripted.close()(connection)

    options = ConnectionOptions(auth_secret=SECRETS[0])
    lookupd = f"http://user:{SECRETS[1]}@127.0.0.1:1/path?token={SECRETS[2]}"
    shown += [repr(options), str(options)]
    with ScriptedNsqd([automatic(hooks={"AUTH": refuse}, auth_required=True)]) as nsqd:
        for secret in SECRETS[:1]:
            assert options.secret() == secret.encode()
        writer = client.writer(nsqd, options=options)
        with pytest.raises(NSQError) as caught:
            writer.publish("t", "x", timeout=0.3)
        show(caught.value)
        assert (nsqd.received("AUTH")[0].body or b"").decode() == SECRETS[0]
        reader = client.reader(
            lambda m: None,
            nsqd,
            options=options,
            lookupd_http_addresses=lookupd,
            lookupd_poll_interval=0.5,
        )
        reader.start(block=False)
        world.eventually(lambda: len(nsqd.received("AUTH")) >= 3)
        world.eventually(lambda: any(line.startswith("lookup of t at") for line in lines(caplog)))
        shown += [repr(reader), repr(reader.stats()), repr(writer), repr(writer.stats())]
        shown += [repr(reader._setup), str(reader._running().__dict__)]
    with LookupdHTTP(lookupd, runtime=world.runtime) as http:
        shown += [repr(http), http.url]
        with pytest.raises(NSQError) as caught:
            http.topics()
        show(caught.value)
    for bad in (f"http://user:{SECRETS[1]}@", f"ftp://user:{SECRETS[1]}@host"):
        for make in (
            lambda text=bad: Reader("t", "c", print, lookupd_http_addresses=text),
            lambda text=bad: Writer(text),
        ):
            with pytest.raises(NSQError) as caught:
                make()
            show(caught.value)
    formatter = logging.Formatter("%(message)s")
    shown += [formatter.format(r) for r in caplog.records if r.name.startswith("gnsqsync")]
    shown += [str(r.__dict__) for r in caplog.records if r.name.startswith("gnsqsync")]
    for secret in SECRETS:
        assert [text for text in shown if secret in text] == []


BODY = "b0dy-0f-a-message"


def test_no_body_of_a_message_is_logged(
    client: Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """At no level, whatever goes wrong with it; nor do errors, reprs and stats have it."""
    shown: list[str] = []

    def fail(message: Message) -> None:
        shown.append(repr(message))
        if message.attempts == 1:
            message.json()
        raise ValueError("this handler always fails")

    def refuse(connection: scripted.Connection, command: Command) -> None:
        connection.error("E_PUB_FAILED PUB failed exiting")
        scripted.close()(connection)

    hooks = {"FIN": lambda connection, command: connection.error("E_FIN_FAILED FIN failed")}
    step = automatic(hooks={**hooks, "PUB": refuse})
    with ScriptedNsqd([automatic(until="RDY"), step], *[[step]] * 20) as nsqd:
        reader = client.consume(fail, nsqd, dead_letter_topic="dead", max_attempts=3)
        world.eventually(lambda: nsqd.received("RDY"))
        for attempts in (1, 9):
            nsqd.connections[0].message(BODY.encode(), attempts=attempts)
        world.eventually(lambda: len(nsqd.received("REQ")) >= 2)
        assert nsqd.received("PUB")[0].body == BODY.encode()
        shown += [repr(reader), repr(reader.stats())]
        writer = client.writer(nsqd, max_msg_size=100)
        for bodies in ([BODY], [BODY * 100], [BODY, BODY * 100]):
            with pytest.raises(NSQError) as caught:
                if len(bodies) == 1:
                    writer.publish("t", bodies[0], timeout=2)
                else:
                    writer.publish_many("t", bodies, timeout=2)
            shown += [*traceback.format_exception_only(caught.value), repr(caught.value)]
        shown += [repr(writer), repr(writer.stats())]
    records = [r for r in caplog.records if r.name.startswith("gnsqsync")]
    assert [r for r in records if r.levelno >= logging.WARNING]
    formatter = logging.Formatter("%(message)s")
    shown += [text for r in records for text in (formatter.format(r), str(r.__dict__))]
    assert [text for text in shown if BODY in text] == []


# -- RDY 0 ----------------------------------------------------------------------------------------


def test_each_reason_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnsqsync.reader.rdy_control.SILENT_SECONDS", 30.0)
    silence = Silence()
    told: list[Any] = [
        silence.note(reason, now)
        for reason, now in [
            ("", 0.0),
            ("a", 10.0),
            ("a", 39.0),
            ("a", 40.0),
            ("a", 100.0),
            ("b", 101.0),
            ("b", 200.0),
            ("", 201.0),
            ("b", 202.0),
            ("b", 231.0),
            ("b", 240.0),
        ]
    ]
    assert told == [None, None, None, 30.0, None, None, 99.0, None, None, None, 38.0]


def test_a_reader_that_gets_nothing_says_why(
    client: Client, world: World, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    monkeypatch.setattr("gnsqsync.reader.rdy_control.SILENT_SECONDS", 0.1)

    def told(reason: str) -> list[logging.LogRecord]:
        start = "t/ch has had RDY 0 everywhere for 0 s: " + reason
        return [r for r in caplog.records if r.getMessage().startswith(start)]

    with ScriptedNsqd() as nsqd:
        nsqd.refuse_connections()
        reader = client.consume(lambda m: None, nsqd, rdy_redistribute_interval=0.05)
        world.eventually(lambda: told("no nsqd is connected"))
        nsqd.accept_connections()
        world.eventually(lambda: nsqd.received("RDY"))
        reader.pause()
        world.eventually(lambda: told("it is paused"))
        world.sleep(0.3)
        # The outage itself is the warning.
        assert [r.levelno for r in told("no nsqd")] == [logging.DEBUG]
        assert [r.levelno for r in told("it is paused")] == [logging.INFO]
        reader.resume()
        world.eventually(lambda: len(nsqd.received("RDY")) == 3)
        world.eventually(lambda: not reader._running().subscription._rdy._silence._reason)
        reader.pause()
        world.eventually(lambda: len(told("it is paused")) == 2)


def test_a_reader_without_any_nsqd_says_so(
    client: Client, world: World, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    monkeypatch.setattr("gnsqsync.reader.rdy_control.SILENT_SECONDS", 0.1)
    with ScriptedNsqd() as nsqd:
        reader = client.consume(lambda m: None, nsqd, rdy_redistribute_interval=0.05)
        world.eventually(lambda: nsqd.received("RDY"))
        reader.remove_nsqd(address(nsqd))
        told = (logging.WARNING, "no nsqd is connected")
        world.eventually(lambda: told in reasons(caplog))


def reasons(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    """Level and reason of each line about a silence."""
    return [
        (record.levelno, record.getMessage().partition(" s: ")[2])
        for record in caplog.records
        if "has had RDY 0 everywhere" in record.getMessage()
    ]


def test_a_long_backoff_is_told_as_the_reason(
    client: Client, world: World, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    monkeypatch.setattr("gnsqsync.reader.rdy_control.SILENT_SECONDS", 0.1)

    def fail(message: Message) -> None:
        raise ValueError("no")

    with ScriptedNsqd() as nsqd:
        reader = client.consume(
            fail,
            nsqd,
            backoff="every_failure",
            backoff_multiplier=60.0,
            rdy_redistribute_interval=0.05,
        )
        world.eventually(lambda: nsqd.received("RDY"))
        nsqd.connections[0].message(b"x")
        told = (logging.INFO, "backoff after failures")
        world.eventually(lambda: told in reasons(caplog))
        assert reader.is_in_backoff
        world.eventually(lambda: nsqd.received("RDY")[-1].parameters == ("0",))
        # It is one pause, and one line.
        world.sleep(0.3)
        assert reasons(caplog).count(told) == 1


USED_UP = (
    logging.WARNING,
    "the messages in flight use up max_in_flight; handlers are slow or stuck",
)


def holding(held: list[Message]) -> Callable[[Message], None]:
    """A handler whose messages stay in flight, and are in ``held``."""

    def hold(message: Message) -> None:
        message.detach()
        held.append(message)

    return hold


def test_a_limit_that_stuck_handlers_use_up_is_told_as_the_reason(
    client: Client, world: World, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    monkeypatch.setattr("gnsqsync.reader.rdy_control.SILENT_SECONDS", 0.1)
    held: list[Message] = []

    with ScriptedNsqd() as one, ScriptedNsqd() as two:
        client.consume(
            holding(held),
            one,
            two,
            max_in_flight=1,
            low_rdy_idle_timeout=0.1,
            low_rdy_timeout=0.1,
            rdy_redistribute_interval=0.05,
        )
        nsqds = [one, two]
        world.eventually(lambda: all(len(nsqd.received("SUB")) == 1 for nsqd in nsqds))
        world.eventually(lambda: any(nsqd.received("RDY") for nsqd in nsqds))
        # The slot that it takes cannot be passed on to the other one, whose turn comes now.
        nsqds.sort(key=lambda nsqd: len(nsqd.received("RDY")))
        nsqds[-1].connections[0].message(b"x")
        world.eventually(lambda: USED_UP in reasons(caplog))
        (message,) = held
        before = sum(len(nsqd.received("RDY")) for nsqd in nsqds)
        assert message.finish()
        world.eventually(lambda: sum(len(nsqd.received("RDY")) for nsqd in nsqds) > before)


def test_a_limit_that_late_messages_exceed_is_told_as_the_reason(
    client: Client, world: World, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    """nsqd sends another one for one that timed out, and has then to wait, too."""
    monkeypatch.setattr("gnsqsync.reader.rdy_control.SILENT_SECONDS", 0.1)
    held: list[Message] = []

    with ScriptedNsqd() as nsqd:
        client.consume(holding(held), nsqd, rdy_redistribute_interval=0.05)
        world.eventually(lambda: nsqd.received("RDY"))
        for _ in range(2):
            nsqd.connections[0].message(b"x")
        world.eventually(lambda: USED_UP in reasons(caplog))
        assert held[0].finish()
        world.eventually(lambda: nsqd.received("RDY")[-1].parameters == ("1",))


def test_a_middleware_around_once_that_may_fail_after_the_commit_is_named(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    class Marked:
        _gnsqsync_once_by_header = False

        def __call__(self, message: Message) -> None: ...

    class After(Middleware):
        def handle(self, message: Message, handler: Any, proceed: Any) -> object:
            return proceed(message)

    class Careful(After):
        fails_after_handler = False

    with ScriptedNsqd() as nsqd:
        client.consume(print, nsqd, middleware=[After()])
        client.consume(Marked(), nsqd, middleware=[Careful()])
        assert "its own work is lost" not in caplog.text
        client.consume(Marked(), nsqd, middleware=[Careful(), After()])
    assert "After fails after handler" in caplog.text
    assert "Careful fails" not in caplog.text

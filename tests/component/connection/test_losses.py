"""A connection that lives: answers, heartbeats, cuts and lies of an nsqd, byte for byte."""

from __future__ import annotations

import logging
import struct
import threading
from typing import Any

import pytest

from gnsqsync import Message
from gnsqsync.errors import NotSent, OutcomeUnknown, PublishError, Refused
from gnsqsync.writer.publisher import _ABANDONED_MAX
from tests.component.conftest import Client, names
from tests.support import scripted
from tests.support.scripted import (
    ERROR,
    RESPONSE,
    Command,
    ScriptedNsqd,
    automatic,
    frame,
    message_frame,
    response,
)
from tests.support.worlds import World

PUB = b"PUB t\n" + struct.pack(">I", 5) + b"hello"
OK = frame(RESPONSE, b"OK")
IDENTIFY = automatic(until="IDENTIFY")


def take(count: int) -> scripted.Step:
    """Read exactly so many bytes from the socket, leaving the rest in the kernel."""

    def step(connection: scripted.Connection) -> None:
        left = count
        while left:
            left -= len(connection.socket.recv(left) or b"x" * left)

    return step


def publish(writer: Any, body: str = "hello", timeout: float = 10.0) -> str:
    """What becomes of it: "OK" or the name of the error."""
    try:
        writer.publish("t", body, timeout=timeout)
    except PublishError as error:
        return type(error).__name__
    return "OK"


# -- publishes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [scripted.close(), scripted.reset()], ids=["FIN", "RST"])
def test_a_cut_at_every_byte_of_a_publish(client: Client, world: World, end: scripted.Step) -> None:
    """nsqd may have read all of it before it vanished: only the whole OK says more."""
    scripts = [[IDENTIFY, take(count), end] for count in range(1, len(PUB) + 1)]
    with ScriptedNsqd(*scripts) as nsqd:
        writer = client.writer(nsqd)
        for number in range(len(scripts)):
            assert publish(writer) == "OutcomeUnknown", number
            world.eventually(lambda: not writer.is_connected)
        assert writer.stats().outcome_unknown == len(scripts)


@pytest.mark.parametrize("end", [scripted.close(), scripted.reset()], ids=["FIN", "RST"])
def test_a_cut_at_every_byte_of_the_answer(
    client: Client, world: World, end: scripted.Step
) -> None:
    def partly(count: int) -> list[scripted.Step]:
        # The reset would take back what the client has not read yet.
        return [IDENTIFY, take(len(PUB)), scripted.send(OK[:count]), scripted.delay(0.05), end]

    with ScriptedNsqd(*[partly(count) for count in range(len(OK) + 1)]) as nsqd:
        writer = client.writer(nsqd)
        for _ in range(len(OK)):
            assert publish(writer) == "OutcomeUnknown"
            world.eventually(lambda: not writer.is_connected)
        assert publish(writer) == "OK"


def test_a_publish_into_a_connection_that_is_gone_goes_over_a_new_one(
    client: Client, world: World
) -> None:
    connected = threading.Event()
    steps = [IDENTIFY, scripted.wait_until(connected), scripted.close()]
    with ScriptedNsqd(steps, [automatic()]) as nsqd:
        writer = client.writer(nsqd)
        writer.connect()
        connected.set()
        world.eventually(lambda: not writer.is_connected)
        assert publish(writer) == "OK"
        assert len(nsqd.connections) == 2
        nsqd.drop_connections()
        nsqd.refuse_connections()
        world.eventually(lambda: not writer.is_connected)
        assert publish(writer, timeout=0.2) == "NotSent"


def test_answers_go_to_the_publishers_in_the_order_of_the_bytes(
    client: Client, world: World
) -> None:
    """The tenth of sixteen is refused: nine have their OK, and nsqd did not read six."""
    order: list[str] = []

    def collect(connection: scripted.Connection, command: Command) -> None:
        order.append((command.body or b"").decode())
        if len(order) < 16:
            return
        for _ in range(9):
            connection.response()
            connection.owner.sleep(0.002)
        connection.error("E_BAD_TOPIC PUB topic name is not valid")
        scripted.close()(connection)

    with ScriptedNsqd([automatic(hooks={"PUB": collect})], [automatic()]) as nsqd:
        writer = client.writer(nsqd)
        writer.connect()
        tasks = {str(n): world.spawn(publish, writer, str(n)) for n in range(16)}
        outcomes = {body: task.join() for body, task in tasks.items()}
        assert sorted(order) == sorted(tasks)
        refused = order[9]
        assert outcomes == {body: "Refused" if body == refused else "OK" for body in tasks}
        again = [(c.body or b"").decode() for c in nsqd.connections[1].commands if c.body]
        assert sorted(again[1:]) == sorted(order[10:])
        stats = writer.stats()
        assert (stats.published, stats.refused, stats.not_sent) == (15, 1, 0)


def test_the_refusal_is_told(client: Client, world: World) -> None:
    def refuse(connection: scripted.Connection, command: Command) -> None:
        connection.error("E_BAD_MESSAGE PUB message too big 5 > 3")
        scripted.close()(connection)

    with ScriptedNsqd([automatic(hooks={"PUB": refuse})], [automatic()]) as nsqd:
        writer = client.writer(nsqd)
        with pytest.raises(Refused, match=r"refused the publish: E_BAD_MESSAGE .*5 > 3") as caught:
            writer.publish("t", "hello")
        assert caught.value.code == "E_BAD_MESSAGE"
        assert not caught.value.retriable
        # nsqd closes after it, and the next publish has a new connection.
        assert publish(writer) == "OK"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (OK, "but no publish waits for an answer"),
        (frame(RESPONSE, b"CLOSE_WAIT"), "which was not asked for"),
        (frame(RESPONSE, b"nonsense"), "which was not asked for"),
        (frame(ERROR, b"E_INVALID something"), "E_INVALID something"),
        (message_frame(b"x", id=b"0" * 16, timestamp=1), "sent a message without SUB"),
        (frame(9, b""), "frame type 9 is not known"),
        (struct.pack(">ii", 1 << 30, 0), "frame size 1073741824 is not within"),
    ],
)
def test_an_answer_that_nobody_asked_for_closes_the_connection(
    client: Client,
    world: World,
    caplog: pytest.LogCaptureFixture,
    data: bytes,
    reason: str,
) -> None:
    # Not before connect() has returned, which would dial once more.
    connected = threading.Event()
    with ScriptedNsqd([IDENTIFY, scripted.wait_until(connected), scripted.send(data)]) as nsqd:
        with caplog.at_level(logging.WARNING, "gnsqsync"):
            writer = client.writer(nsqd)
            writer.connect()
            connected.set()
            world.eventually(lambda: not writer.is_connected)
            world.eventually(lambda: reason in caplog.text)
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1


def test_a_publish_that_gave_up_keeps_its_place(client: Client, world: World) -> None:
    go_on = threading.Event()
    steps = [IDENTIFY, scripted.expect("PUB"), scripted.expect("PUB"), response()]
    steps += [scripted.wait_until(go_on), response(), automatic()]
    with ScriptedNsqd(steps) as nsqd:
        writer = client.writer(nsqd)
        with pytest.raises(OutcomeUnknown, match=r"did not answer the publish within 0.1 s"):
            writer.publish("t", "a", timeout=0.1)
        # The OK that comes now is that of "a".
        assert publish(writer, "b", timeout=0.3) == "OutcomeUnknown"
        assert writer.stats().published == 1
        go_on.set()
        assert publish(writer, "c") == "OK"
        assert writer.stats().published == 3
        assert len(nsqd.connections) == 1


def test_a_connection_that_answers_nothing_is_closed_in_the_end(
    client: Client, world: World
) -> None:
    steps = [automatic(hooks={"PUB": lambda connection, command: None})]
    with ScriptedNsqd(steps, [automatic()]) as nsqd:
        writer = client.writer(nsqd)
        writer.connect()
        # Each gives up nearly at once. On a busy machine some do so before they are sent.
        while writer.stats().outcome_unknown <= _ABANDONED_MAX:
            publish(writer, "x", 0.01)
        world.eventually(lambda: publish(writer) == "OK")
        assert len(nsqd.connections) == 2


def test_time_outs_of_long_ago_do_not_count(client: Client, world: World) -> None:
    """They were answered later: this nsqd is slow now and then, and not dead."""

    def late(connection: scripted.Connection, command: Command) -> None:
        if (command.body or b"").startswith(b"slow"):
            connection.owner.sleep(0.002)
        connection.response()

    with ScriptedNsqd([automatic(hooks={"PUB": late})]) as nsqd:
        writer = client.writer(nsqd)
        writer.connect()
        gave_up = 0
        while gave_up < 110:
            gave_up += publish(writer, "slow", 0.001) == "OutcomeUnknown"
            # Its answer comes behind all that were given up.
            assert publish(writer) == "OK"
        assert len(nsqd.connections) == 1


@pytest.mark.parametrize("code", ["E_FIN_FAILED FIN", "E_REQ_FAILED REQ", "E_TOUCH_FAILED TOUCH"])
def test_errors_of_answers_are_no_answers_to_publishes(
    client: Client, world: World, code: str
) -> None:
    def hook(connection: scripted.Connection, command: Command) -> None:
        connection.error(f"{code} 0123456789abcdef failed ID not in flight")
        connection.response()

    with ScriptedNsqd([automatic(hooks={"PUB": hook})]) as nsqd:
        writer = client.writer(nsqd)
        assert [publish(writer) for _ in range(3)] == ["OK"] * 3
        assert len(nsqd.connections) == 1


# -- messages -------------------------------------------------------------------------------------


def test_a_refused_touch(client: Client, world: World) -> None:
    """nsqd has given the message to somebody else: it is not answered any more."""
    seen: list[Message] = []

    def refuse(connection: scripted.Connection, command: Command) -> None:
        (id,) = command.parameters
        connection.error(f"E_TOUCH_FAILED TOUCH {id} failed ID not in flight")

    def handler(message: Message) -> None:
        assert message.touch()
        world.eventually(lambda: message.timed_out)
        assert not message.is_alive
        assert message.finish() is False
        assert message.requeue() is False
        assert message.touch() is False
        seen.append(message)

    steps = [automatic(until="RDY"), scripted.message(b"x"), automatic(hooks={"TOUCH": refuse})]
    with ScriptedNsqd(steps) as nsqd:
        reader = client.consume(handler, nsqd, latency="throughput")
        world.eventually(lambda: seen)
        # Its slot is free again, and the connection goes on.
        nsqd.connections[0].message(b"y")
        world.eventually(lambda: len(seen) == 2 and reader.stats().in_flight == 0)
        assert names(nsqd)[2:] == [f"TOUCH {message.id}" for message in seen]
        stats = reader.stats()
        assert (stats.answers_failed, stats.finished, len(stats.connections)) == (2, 0, 1)


def test_a_refused_fin_and_req(client: Client, world: World) -> None:
    def refuse(connection: scripted.Connection, command: Command) -> None:
        name, id = command.name, command.parameters[0]
        connection.error(f"E_{name}_FAILED {name} {id} failed client does not own message")

    def handler(message: Message) -> None:
        if message.body == b"bad":
            raise ValueError

    hooks = {"FIN": refuse, "REQ": refuse}
    steps = [automatic(until="RDY"), scripted.message(b"good"), scripted.message(b"bad")]
    with ScriptedNsqd([*steps, automatic(hooks=hooks)]) as nsqd:
        reader = client.consume(
            handler, nsqd, max_in_flight=2, latency="throughput", max_backoff_duration=0
        )
        world.eventually(lambda: reader.stats().answers_failed == 2)
        assert len(nsqd.connections) == 1
        assert reader.stats().in_flight == 0
        assert len(reader.stats().connections) == 1


def test_heartbeats_are_answered_while_handlers_run(client: Client, world: World) -> None:
    done: list[bool] = []
    steps = [automatic(until="RDY"), scripted.message(b"x")]
    steps += [scripted.heartbeat(), scripted.expect("NOP")] * 3
    with ScriptedNsqd(steps) as nsqd:
        client.consume(lambda m: world.eventually(lambda: done), nsqd, latency="throughput")
        world.eventually(lambda: len(nsqd.received("NOP")) == 3)
        assert not nsqd.received("FIN")
        done.append(True)
        world.eventually(lambda: nsqd.received("FIN"))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (frame(5, b"abc"), "frame type 5 is not known"),
        (struct.pack(">ii", 17 << 20, 2), "is not within 4 to 16777216"),
        (frame(2, b"short"), "shorter than its head"),
        (OK, "no publish waits"),
        (frame(ERROR, b"E_INVALID RDY count 9 out of range 0-2"), "E_INVALID RDY count 9"),
    ],
)
def test_a_reader_leaves_an_nsqd_that_breaks_the_rules_and_comes_back(
    client: Client,
    world: World,
    caplog: pytest.LogCaptureFixture,
    data: bytes,
    reason: str,
) -> None:
    got: list[Message] = []
    # What came before the bad frame is good.
    bad = [automatic(until="RDY"), scripted.send(message_frame(b"x") + data)]
    with ScriptedNsqd(bad, [automatic()]) as nsqd:
        client.consume(got.append, nsqd)
        world.eventually(lambda: len(nsqd.received("SUB")) == 2)
        assert reason in caplog.text


def test_a_message_before_sub_ends_the_attempt(client: Client, world: World) -> None:
    got: list[Message] = []

    def early(connection: scripted.Connection, command: Command) -> None:
        connection.answer(command)
        connection.send(message_frame(b"x"))

    with ScriptedNsqd([automatic(hooks={"IDENTIFY": early})], [automatic()]) as nsqd:
        client.consume(got.append, nsqd)
        world.eventually(lambda: nsqd.connections[1:] and nsqd.received("RDY"))
        assert got == []


def test_garbage_behind_sub(client: Client, world: World, caplog: pytest.LogCaptureFixture) -> None:
    """It came with the last answer of the handshake, and the socket is silent from then on."""

    def answer(connection: scripted.Connection, command: Command) -> None:
        connection.send(OK + b"\xff" * 8)

    with ScriptedNsqd([automatic(hooks={"SUB": answer})], [automatic()]) as nsqd:
        client.consume(lambda m: None, nsqd)
        world.eventually(lambda: len(nsqd.received("SUB")) == 2)
        assert "frame size -1" in caplog.text


def test_a_heartbeat_behind_sub_is_answered(client: Client, world: World) -> None:
    def answer(connection: scripted.Connection, command: Command) -> None:
        connection.send(OK + frame(RESPONSE, b"_heartbeat_"))

    with ScriptedNsqd([automatic(hooks={"SUB": answer})]) as nsqd:
        client.consume(lambda m: None, nsqd, max_in_flight=0)
        world.eventually(lambda: nsqd.received("NOP"))


def test_messages_that_cross_with_cls_go_back(client: Client, world: World) -> None:
    got: list[Message] = []
    late = b"0123456789abcdef"

    def cross(connection: scripted.Connection, command: Command) -> None:
        connection.send(message_frame(b"late", id=late))
        connection.answer(command)

    with ScriptedNsqd([automatic(hooks={"CLS": cross})]) as nsqd:
        reader = client.consume(got.append, nsqd)
        world.eventually(lambda: nsqd.received("RDY"))
        reader.stop()
        result = reader.join(10)
        assert result is not None
        assert result.clean
        world.eventually(lambda: nsqd.received("REQ"))
        assert names(nsqd)[1:] == ["RDY 1", "RDY 0", "CLS", f"REQ {late.decode()} 0"]
        assert got == []


def finished(world: World, nsqd: ScriptedNsqd, count: int) -> None:
    """Wait for so many FINs."""
    world.eventually(lambda: len(nsqd.received("FIN")) == count)


# -- the order of commands ------------------------------------------------------------------------


def test_rdy_0_stands_in_front_of_the_req_that_caused_the_backoff(
    client: Client, world: World
) -> None:
    def handler(message: Message) -> None:
        raise ValueError

    steps = [automatic(until="RDY"), scripted.message(b"x", id=b"0123456789abcdef")]
    with ScriptedNsqd(steps) as nsqd:
        client.consume(
            handler,
            nsqd,
            max_in_flight=10,
            latency="throughput",
            requeue_delay=2.5,
            backoff_multiplier=0.05,
            backoff="every_failure",
        )
        # Behind the pause a single message is let through.
        world.eventually(lambda: len(nsqd.received("RDY")) == 3)
        assert names(nsqd)[1:] == ["RDY 10", "RDY 0", "REQ 0123456789abcdef 2500", "RDY 1"]


def test_trickling_messages_keep_rdy_just_above_what_is_in_flight(
    client: Client, world: World
) -> None:
    """Then nsqd sends each at once (docs/protocol/flow#output-buffer). Lowered in front of the
    FIN."""
    ids = [b"0123456789abcd%02d" % n for n in range(3)]
    with ScriptedNsqd() as nsqd:
        client.consume(lambda m: world.sleep(0.05), nsqd, max_in_flight=10)
        world.eventually(lambda: nsqd.received("RDY"))
        for number, id in enumerate(ids):
            nsqd.connections[0].message(b"x", id=id)
            finished(world, nsqd, number + 1)
        expected = ["RDY 1"]
        for id in ids:
            expected += ["RDY 2", "RDY 1", f"FIN {id.decode()}"]
        assert names(nsqd)[1:] == expected


def test_rdy_stays_where_it_is_at_the_whole_share(client: Client, world: World) -> None:
    with ScriptedNsqd() as nsqd:
        client.consume(lambda m: None, nsqd, max_in_flight=5, latency="throughput")
        world.eventually(lambda: nsqd.received("RDY"))
        for _ in range(5):
            nsqd.connections[0].message(b"x")
        finished(world, nsqd, 5)
        assert [name for name in names(nsqd) if name.startswith("RDY")] == ["RDY 5"]


def test_a_fin_does_not_wait_for_a_handler_that_runs_long(client: Client, world: World) -> None:
    """Not even when a fast stream has made the chunks large; the sweep sends it."""
    release: list[bool] = []

    def handler(message: Message) -> None:
        if message.body == b"long":
            world.eventually(lambda: release)

    with ScriptedNsqd() as nsqd:
        client.consume(handler, nsqd, max_in_flight=200)
        world.eventually(lambda: nsqd.received("RDY"))
        server = nsqd.connections[0]
        for hundreds in range(1, 6):
            server.send(b"".join(message_frame(b"x") for _ in range(100)))
            finished(world, nsqd, 100 * hundreds)
        server.send(b"".join(message_frame(b"x") for _ in range(20)) + message_frame(b"long"))
        finished(world, nsqd, 520)
        assert not release
        release.append(True)
        finished(world, nsqd, 521)


def test_not_sent_is_a_promise(client: Client, world: World) -> None:
    """Whatever was said not to be sent never arrived; whatever was said to be OK did."""

    def sometimes(connection: scripted.Connection, command: Command) -> None:
        connection.answer(command)
        if (command.body or b"").endswith(b"7"):
            scripted.reset()(connection)

    with ScriptedNsqd([automatic(hooks={"PUB": sometimes})]) as nsqd:
        writer = client.writer(nsqd)
        outcomes: dict[str, str] = {}

        def many(who: int) -> None:
            for n in range(30):
                body = f"{who}-{n}"
                outcomes[body] = publish(writer, body, 2.0)

        tasks = [world.spawn(many, who) for who in range(4)]
        for task in tasks:
            task.join(60)
        arrived = [(c.body or b"").decode() for c in nsqd.received("PUB")]
        assert len(arrived) == len(set(arrived)), "published twice"
        assert {b for b, o in outcomes.items() if o == "OK"} <= set(arrived)
        assert not {b for b, o in outcomes.items() if o == "NotSent"} & set(arrived)
        assert NotSent.retriable

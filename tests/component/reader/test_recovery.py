"""A Reader that loses what it had: dials, tests and RDY come back, and stay away after a stop."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import pytest

from gnsqsync import Message, Observer
from gnsqsync.errors import BadBody, BadChannel, InvalidCommand, NegotiationFailed
from tests.component.conftest import Client, address, names
from tests.component.writer.test_writer import refuse, unused_address
from tests.support import scripted
from tests.support.scripted import Command, ScriptedNsqd, automatic
from tests.support.worlds import World

SUBSCRIBED = automatic(until="RDY")


def test_the_clock_on_the_wall_may_jump(
    client: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day forward and a day back: the redial comes when it would have come anyway."""
    real = time.time
    with ScriptedNsqd() as nsqd:
        client.consume(print, nsqd)
        for number, jump in enumerate((86400.0, -86400.0), start=1):
            world.eventually(lambda: len(nsqd.received("RDY")) == number)  # noqa: B023
            monkeypatch.setattr(time, "time", lambda: real() + jump)  # noqa: B023
            nsqd.drop_connections()
        world.eventually(lambda: len(nsqd.received("RDY")) == 3)


def test_a_stop_ends_redials(client: Client, world: World) -> None:
    """Also the one that was due already: nothing is dialled once the Reader has stopped."""
    with ScriptedNsqd() as nsqd:
        reader = client.consume(print, nsqd)
        world.eventually(lambda: nsqd.received("RDY"))
        nsqd.refuse_connections()
        nsqd.drop_connections()
        world.eventually(lambda: not reader.stats().connections)
        reader.stop()
        assert reader.join(10) is not None
        nsqd.accept_connections()
        # The first redial would have come within half a second.
        world.sleep(0.7)
        assert len(nsqd.connections) == 1


def test_a_reading_thread_that_dies_takes_its_connection_along(
    client: Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """What nobody foresaw, too, is a loss like any other: told, removed, dialled again."""
    got: list[Message] = []
    with ScriptedNsqd() as nsqd:
        reader = client.consume(got.append, nsqd, max_in_flight=2)
        world.eventually(lambda: nsqd.received("RDY"))
        chunks = reader._running().subscription._chunks
        put = chunks.put

        def broken(*args: Any) -> None:
            chunks.put = put  # type: ignore[method-assign]
            raise RuntimeError("nobody foresaw this")

        chunks.put = broken  # type: ignore[method-assign]
        nsqd.connections[0].message(b"x")
        world.eventually(lambda: len(nsqd.received("RDY")) == 2)
        assert "nobody foresaw this" in caplog.text
        nsqd.connections[1].message(b"y")
        world.eventually(lambda: reader.stats().finished == 1)
        assert [message.body for message in got] == [b"y"]
        assert reader.stats().in_flight == 0


def test_a_timer_job_that_fails_is_not_the_last(
    client: Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Redials and RDY rounds are jobs of one timer, which must not die of one of them."""

    def broken() -> None:
        raise RuntimeError("nobody foresaw this")

    with ScriptedNsqd() as nsqd:
        reader = client.consume(print, nsqd)
        world.eventually(lambda: nsqd.received("RDY"))
        assert reader._run is not None
        reader._run._timer.after(0.0, broken)
        world.eventually(lambda: "nobody foresaw this" in caplog.text)
        nsqd.drop_connections()
        world.eventually(lambda: len(nsqd.received("RDY")) == 2)


def test_the_pull_form_outlives_a_connection(client: Client, world: World) -> None:
    """A loss does not look like the end; only a stop ends the loop."""
    bodies: list[bytes] = []
    with ScriptedNsqd() as nsqd:
        reader = client.reader(None, nsqd)

        def loop() -> None:
            for message in reader:
                bodies.append(message.body)
                message.finish()

        task = world.spawn(loop)
        for number, body in enumerate((b"before", b"after")):
            world.eventually(lambda: len(nsqd.received("RDY")) > number)  # noqa: B023
            nsqd.connections[number].message(body)
            world.eventually(lambda: len(nsqd.received("FIN")) == number + 1)  # noqa: B023
            nsqd.drop_connections()
        assert bodies == [b"before", b"after"]
        assert not task.done
        reader.stop()
        task.join()


def test_the_log_says_when_the_next_dial_is(
    client: Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with unused_address() as where:
        client.consume(print, nsqd_tcp_addresses=where)
        world.eventually(lambda: "it is tried again in 0." in caplog.text)
        assert where in caplog.text


def test_an_nsqd_that_is_down_at_the_start(client: Client, world: World) -> None:
    """It takes the path of one that is lost: start() does not raise, and the rest goes on."""
    got: list[bytes] = []
    with ScriptedNsqd() as late, ScriptedNsqd() as good:
        late.refuse_connections()
        client.consume(lambda m: got.append(m.body), late, good, max_in_flight=2)
        world.eventually(lambda: good.received("RDY"))
        good.connections[0].message(b"good")
        world.eventually(lambda: got == [b"good"])
        late.accept_connections()
        world.eventually(lambda: late.received("RDY"))
        late.connections[0].message(b"late")
        world.eventually(lambda: got == [b"good", b"late"])


@pytest.mark.parametrize(
    ("step", "text", "error"),
    [
        ("IDENTIFY", "E_BAD_BODY IDENTIFY msg timeout (9000000) is invalid", BadBody),
        ("IDENTIFY", "E_INVALID cannot IDENTIFY in current state", InvalidCommand),
        ("SUB", "E_BAD_CHANNEL SUB channel name is not valid", BadChannel),
    ],
)
def test_a_refused_configuration_is_loud_and_final(
    client: Client,
    world: World,
    caplog: pytest.LogCaptureFixture,
    step: str,
    text: str,
    error: type[Exception],
) -> None:
    """When all nsqds refuse us, start() raises what they said."""
    script = [automatic(hooks={step: refuse(text)})]
    with ScriptedNsqd(script) as one, ScriptedNsqd(script) as two:
        task = world.spawn(client.reader(print, one, two).start)
        with pytest.raises(error, match=text[:10]):
            task.join()
        told = [r for r in caplog.records if r.levelno == logging.ERROR and text in r.getMessage()]
        assert len(told) == 2
        assert (len(one.connections), len(two.connections)) == (1, 1)


def test_snappy_without_its_package(
    client: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names what to install, and no dial is tried again."""
    monkeypatch.setitem(sys.modules, "snappy", None)
    with ScriptedNsqd([automatic(snappy=True)]) as nsqd:
        task = world.spawn(client.reader(print, nsqd, snappy=True).start)
        with pytest.raises(NegotiationFailed, match="needs the package python-snappy"):
            task.join()
        assert len(nsqd.connections) == 1


def test_a_refused_secret_is_loud_and_tried_again(
    client: Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """nsqd says the same when its authentication server is away for a moment."""
    hooks = {"AUTH": refuse("E_AUTH_FAILED AUTH failed")}
    bad = [automatic(hooks=hooks, auth_required=True)]
    good = [automatic(auth_required=True)]
    with ScriptedNsqd(bad, good) as nsqd:
        client.consume(print, nsqd, auth_secret="secret")
        world.eventually(lambda: nsqd.received("RDY"))
        assert "E_AUTH_FAILED AUTH failed; it is tried again in 0." in caplog.text


@pytest.mark.parametrize("step", ["AUTH", "SUB"])
def test_a_secret_by_a_function_may_be_right_again_after_it_had_no_rights(
    client: Client, world: World, step: str
) -> None:
    """A Reader that was subscribed goes on; one that never was ends (test_reader)."""
    hooks = {step: refuse("E_UNAUTHORIZED AUTH failed")}
    good = automatic(auth_required=True)
    bad = automatic(hooks=hooks, auth_required=True)
    with ScriptedNsqd([good], [bad], [good]) as nsqd:
        reader = client.consume(print, nsqd, auth_secret=lambda: "secret")
        world.eventually(lambda: nsqd.received("RDY"))
        nsqd.drop_connections()
        world.eventually(lambda: len(nsqd.received("RDY")) == 2)
        assert len(nsqd.connections) == 3
        assert len(reader.stats().connections) == 1


def test_a_function_of_an_option_that_fails_at_a_redial_is_asked_again(
    client: Client, world: World
) -> None:
    """As one that asks a server which is away for a moment: no reason to end the Reader."""
    calls = 0

    def address_map(found: str) -> str:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyError("the catalogue is away")
        return found

    with ScriptedNsqd() as nsqd:
        reader = client.consume(print, nsqd, address_map=address_map)
        world.eventually(lambda: nsqd.received("RDY"))
        nsqd.drop_connections()
        world.eventually(lambda: len(nsqd.received("RDY")) == 2)
        assert (calls, len(reader.stats().connections)) == (3, 1)


def test_a_secret_that_is_empty_for_a_moment_ends_no_reader(client: Client, world: World) -> None:
    secrets = ["s", "", "s"]
    with ScriptedNsqd(*[[automatic(auth_required=True)]] * 3) as nsqd:
        reader = client.consume(print, nsqd, auth_secret=lambda: secrets.pop(0))
        world.eventually(lambda: nsqd.received("RDY"))
        nsqd.drop_connections()
        world.eventually(lambda: len(nsqd.received("RDY")) == 2)
        assert (secrets, len(reader.stats().connections)) == ([], 1)


def test_the_answer_to_a_detached_message_ends_the_backoff(client: Client, world: World) -> None:
    """The test message has no verdict when its handler returns; the answer is one."""
    kept: list[Message] = []

    def handler(message: Message) -> None:
        message.detach()
        kept.append(message)

    with ScriptedNsqd() as nsqd:
        reader = client.consume(handler, nsqd, backoff_multiplier=0.01, backoff="every_failure")
        world.eventually(lambda: nsqd.received("RDY"))
        nsqd.connections[0].message(b"bad")
        world.eventually(lambda: len(kept) == 1)
        kept[0].requeue(0)
        world.eventually(lambda: rdy_told(nsqd) == 1 and reader.stats().is_in_backoff)
        nsqd.connections[0].message(b"good")
        world.eventually(lambda: len(kept) == 2)
        kept[1].finish()
        world.eventually(lambda: not reader.stats().is_in_backoff)


def rdy_told(nsqd: ScriptedNsqd) -> int:
    """The last RDY, behind a 0; -1 while there was none."""
    told = [int(command.parameters[0]) for command in nsqd.received("RDY")]
    return told[-1] if 0 in told else -1


def test_a_backoff_outlives_the_connection(client: Client, world: World) -> None:
    """The REQ dies with its connection; RDY comes back by the test, and then in full."""
    attempts: list[bytes] = []

    def handler(message: Message) -> None:
        attempts.append(message.body)
        if message.body == b"bad":
            raise ValueError

    def vanish(connection: scripted.Connection, command: Command) -> None:
        scripted.reset()(connection)

    first = [SUBSCRIBED, scripted.message(b"bad"), automatic(hooks={"REQ": vanish})]
    with ScriptedNsqd(first, [automatic()]) as nsqd:
        reader = client.consume(
            handler,
            nsqd,
            max_in_flight=5,
            latency="throughput",
            backoff_multiplier=0.4,
            backoff="every_failure",
        )
        world.eventually(lambda: nsqd.received("REQ"))
        world.eventually(lambda: len(nsqd.received("SUB")) == 2)
        assert reader.is_in_backoff
        assert reader.stats().backoff_level == 1
        world.eventually(lambda: names(nsqd)[-1] == "RDY 1")
        assert reader.is_in_backoff
        nsqd.connections[1].message(b"good")
        world.eventually(lambda: names(nsqd)[-1] == "RDY 5")
        assert attempts == [b"bad", b"good"]
        assert not reader.is_in_backoff


def refuse_fin(connection: scripted.Connection, command: Command) -> None:
    connection.error(f"E_FIN_FAILED FIN {command.parameters[0]} failed ID not in flight")


def test_a_connection_whose_messages_nsqd_counts_for_good_is_made_anew(
    client: Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """What a refused FIN leaves in nsqd's count is all of the RDY here: nothing would come."""
    caplog.set_level(logging.INFO, "gnsqsync")
    got: list[bytes] = []
    with ScriptedNsqd([SUBSCRIBED, automatic(hooks={"FIN": refuse_fin})], [SUBSCRIBED]) as nsqd:
        reader = client.consume(
            lambda m: got.append(m.body), nsqd, max_in_flight=1, rdy_redistribute_interval=0.1
        )
        world.eventually(lambda: nsqd.received("RDY"))
        nsqd.connections[0].message(b"twice")
        world.eventually(lambda: len(nsqd.connections) == 2)
        world.eventually(lambda: [c.name for c in nsqd.connections[1].commands][-1:] == ["RDY"])
        # What was on its way was waited for.
        assert [c.name for c in nsqd.connections[0].commands][-2:] == ["RDY", "CLS"]
        assert "refused answers" in caplog.text
        nsqd.connections[1].message(b"next")
        world.eventually(lambda: got == [b"twice", b"next"])
        assert reader.stats().answers_failed == 1


def test_a_connection_with_room_beside_refused_answers_stays(client: Client, world: World) -> None:
    """Nor does one end that has messages in flight, whatever nsqd refused."""
    held: list[Message] = []

    def handler(message: Message) -> None:
        if message.body == b"held":
            message.detach()
            held.append(message)

    with ScriptedNsqd([SUBSCRIBED, automatic(hooks={"FIN": refuse_fin})]) as nsqd:
        reader = client.consume(
            handler,
            nsqd,
            max_in_flight=10,
            latency="throughput",
            rdy_redistribute_interval=0.05,
        )
        world.eventually(lambda: nsqd.received("RDY"))
        for refused in range(1, 5):
            nsqd.connections[0].message(b"x")
            world.eventually(lambda: reader.stats().answers_failed == refused)  # noqa: B023
        nsqd.connections[0].message(b"held")
        world.eventually(lambda: held)
        nsqd.connections[0].message(b"x")
        world.eventually(lambda: reader.stats().answers_failed == 5)
        # Several looks.
        world.sleep(0.3)
        assert nsqd.received("CLS") == []
        held[0].finish()
        world.eventually(lambda: nsqd.received("CLS"))


def test_a_late_sub_without_messages_is_made_anew(
    client: Client,
    world: World,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """nsqd may have deleted the topic meanwhile; once, where the next SUB is quick."""
    caplog.set_level(logging.INFO, "gnsqsync")
    monkeypatch.setattr("gnsqsync.reader.retiring._QUIET_SECONDS", 0.2)

    def late(connection: scripted.Connection, command: Command) -> None:
        # The heartbeat between is no answer.
        time.sleep(0.2)
        connection.response(b"_heartbeat_")
        connection.answer(command)

    with ScriptedNsqd([automatic(hooks={"SUB": late})], [automatic()]) as nsqd:
        reader = client.consume(print, nsqd, rdy_redistribute_interval=0.1)
        world.eventually(lambda: len(nsqd.connections) == 2)
        world.eventually(lambda: [c.name for c in nsqd.connections[1].commands][-1:] == ["RDY"])
        assert [c.name for c in nsqd.connections[0].commands][-2:] == ["RDY", "CLS"]
        assert "answered SUB late" in caplog.text
        # Several looks, and longer than the first one was left alone.
        world.sleep(0.5)
        assert len(nsqd.connections) == 2
        (connection,) = reader.stats().connections
        assert connection.rdy == 1


def test_a_late_sub_that_brings_messages_is_kept(
    client: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnsqsync.reader.retiring._QUIET_SECONDS", 0.2)

    def late(connection: scripted.Connection, command: Command) -> None:
        time.sleep(0.2)
        connection.answer(command)

    with ScriptedNsqd([automatic(until="RDY", hooks={"SUB": late})]) as nsqd:
        reader = client.consume(lambda m: None, nsqd, rdy_redistribute_interval=0.1)
        world.eventually(lambda: nsqd.received("RDY"))
        nsqd.connections[0].message(b"x")
        world.eventually(lambda: reader.stats().finished == 1)
        world.sleep(0.5)
        assert nsqd.received("CLS") == []


def test_a_dead_address_costs_the_others_nothing(
    client: Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes part in nothing: the one that lives has the whole limit, said once."""
    lost = []

    class Noting(Observer):
        def lost(self, nsqd_address: str, reason: Exception) -> None:
            lost.append(nsqd_address)

    with ScriptedNsqd() as nsqd, unused_address() as dead:
        client.consume(
            print,
            nsqd_tcp_addresses=[address(nsqd), dead],
            max_in_flight=4,
            latency="throughput",
            rdy_redistribute_interval=0.05,
            observer=Noting(),
        )
        world.eventually(lambda: lost == [dead] * 2)
        assert caplog.text.count(f"cannot connect to {dead}") == 1
        assert names(nsqd) == ["SUB t ch", "RDY 4"]

"""What publishes do while no nsqd can take one: they fail at once, until one is back."""

from __future__ import annotations

import gc
import math
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from gnsqsync import Writer
from gnsqsync.errors import (
    AuthFailed,
    ConfigError,
    NegotiationFailed,
    NotSent,
    OutcomeUnknown,
    PublishError,
    WrongPort,
)
from tests.component.conftest import Client, address
from tests.component.writer.test_discovery import nodes
from tests.component.writer.test_policies import black_hole, bodies
from tests.component.writer.test_writer import counting, nothing, refuse, unused_address
from tests.support import scripted
from tests.support.interpreter import run_script
from tests.support.scripted import Command, ScriptedNsqd, automatic
from tests.support.serving import fake_server
from tests.support.worlds import World


def fails(publish: Callable[[], Any], kind: type[PublishError] = NotSent) -> tuple[float, str]:
    """How long it took (seconds), and the text of the error."""
    began = time.monotonic()
    with pytest.raises(kind) as caught:
        publish()
    return time.monotonic() - began, str(caught.value)


def fail_at_once(publish: Callable[[], Any], words: str) -> None:
    """Within 50 ms where the machine has nothing else to do."""
    outcomes = [fails(publish) for _ in range(7)]
    seconds = [took for took, _ in outcomes]
    assert min(seconds) < 0.05, outcomes
    assert statistics.median(seconds) < 0.5, outcomes
    for _, text in outcomes:
        assert words in text


def connected(writer: Writer) -> Writer:
    """Connect, in as much time as a busy machine takes. The time of a publish is then nsqd's."""
    writer.connect(60)
    return writer


def works_again(world: World, publish: Callable[[], Any]) -> float:
    """Publish until that succeeds; the seconds it took."""
    began = time.monotonic()

    def succeeds() -> bool:
        try:
            publish()
        except NotSent:
            return False
        return True

    world.eventually(succeeds)
    return time.monotonic() - began


# -- refusals -------------------------------------------------------------------------------------


def test_publishes_that_wait_when_the_outage_begins_fail_then(client: Client, world: World) -> None:
    with unused_address() as where:
        writer = Writer(where, runtime=world.runtime)
        began = time.monotonic()
        tasks = []
        for _ in range(4):
            tasks.append(world.spawn(lambda: fails(lambda: writer.publish("t", "x"))))
            world.sleep(0.2)
        for task in tasks:
            task.join()
        assert time.monotonic() - began < 4
        writer.close()


def test_a_short_restart_is_bridged_and_costs_no_more(client: Client, world: World) -> None:
    with ScriptedNsqd() as nsqd:
        writer = client.writer(nsqd)
        writer.publish("t", "before")
        nsqd.refuse_connections()
        nsqd.drop_connections()
        world.eventually(lambda: not writer.is_connected)
        task = world.spawn(writer.publish, "t", "during")
        world.sleep(0.3)
        assert not task.done
        nsqd.accept_connections()
        task.join()
        assert bodies(nsqd) == [b"before", b"during"]
        # The first dial after that has come through.
        assert len(nsqd.connections) == 2


# -- silence --------------------------------------------------------------------------------------


def test_a_black_hole_is_an_outage_after_the_publish_timeout(client: Client, world: World) -> None:
    with black_hole() as hole:
        writer = Writer(hole, runtime=world.runtime, publish_timeout=0.6, connect_timeout=60)
        waiting = [world.spawn(lambda: fails(lambda: writer.publish("t", "x")))]
        world.sleep(0.3)
        waiting.append(world.spawn(lambda: fails(lambda: writer.publish("t", "x", timeout=60))))
        (first, _), (second, text) = (task.join() for task in waiting)
        assert 0.5 < first < 3
        assert second < 3
        assert "no nsqd can be reached for 0." in text
        fail_at_once(lambda: writer.publish("t", "x"), hole)
        writer.close()


def test_a_dial_that_goes_on_for_long_is_silence_too(client: Client, world: World) -> None:
    """connect() has begun it, with more time than a publish has."""
    with ScriptedNsqd([automatic(hooks={"IDENTIFY": nothing})]) as nsqd:
        writer = client.writer(nsqd, publish_timeout=0.5, connect_timeout=60)
        task = world.spawn(lambda: fails(lambda: writer.connect(0.2)))
        task.join()
        world.sleep(0.5)
        fail_at_once(lambda: writer.publish("t", "x"), f"{address(nsqd)} does not answer")


def test_the_end_of_silence_is_found_by_a_dial(client: Client, world: World) -> None:
    silent = [automatic(hooks={"IDENTIFY": nothing})]
    with ScriptedNsqd(silent, silent, [automatic()]) as nsqd:
        writer = client.writer(nsqd, publish_timeout=0.5, connect_timeout=0.5)
        took, text = fails(lambda: writer.publish("t", "x"))
        assert took < 3
        assert "did not finish the handshake" in text
        fail_at_once(lambda: writer.publish("t", "x"), "did not finish the handshake")
        works_again(world, lambda: writer.publish("t", "y"))
        assert len(nsqd.connections) == 3


def hold(go_on: threading.Event) -> scripted.Hook:
    def hook(connection: scripted.Connection, command: Command) -> None:
        scripted.wait_until(go_on)(connection)
        connection.response()

    return hook


def test_a_late_answer_ends_the_outage(client: Client, world: World) -> None:
    """An nsqd that was stopped: what is under way is in doubt, what comes later is not sent."""
    go_on = threading.Event()
    scripts = [automatic(hooks={"PUB": hold(go_on)})], [automatic(hooks={"IDENTIFY": nothing})]
    with ScriptedNsqd(*scripts) as nsqd:
        writer = connected(client.writer(nsqd, publish_timeout=0.5))
        took, text = fails(lambda: writer.publish("t", "1"), OutcomeUnknown)
        assert 0.4 < took < 3
        late = "did not answer the publish within 0.5 s"
        assert late in text
        fail_at_once(lambda: writer.publish("t", "2"), late)
        assert bodies(nsqd) == [b"1"]
        go_on.set()
        world.eventually(lambda: not writer.stats().outage_seconds)
        writer.publish("t", "3")
        assert bodies(nsqd) == [b"1", b"3"]
        assert writer.stats().published == 2
        assert len(writer.stats().connections) == 1


def test_a_dial_ends_the_outage_of_a_connection_that_is_silent(
    client: Client, world: World
) -> None:
    """The old connection stays until its answers have come; they may."""
    go_on = threading.Event()
    with ScriptedNsqd([automatic(hooks={"PUB": hold(go_on)})], [automatic()]) as nsqd:
        writer = connected(client.writer(nsqd, publish_timeout=0.5))
        future = writer.publish_async("t", "1")
        fails(lambda: writer.publish("t", "2"), OutcomeUnknown)
        works_again(world, lambda: writer.publish("t", "3"))
        assert len(writer.stats().connections) == 2
        assert not future.done()
        go_on.set()
        world.eventually(lambda: len(writer.stats().connections) == 1)
        assert future.exception(0) is None
        writer.publish("t", "4")
        assert writer.stats().published == 4
        assert len(nsqd.connections) == 2


def test_a_call_with_less_time_is_no_outage(client: Client, world: World) -> None:
    go_on = threading.Event()
    with ScriptedNsqd([automatic(hooks={"PUB": hold(go_on)})]) as nsqd:
        writer = connected(client.writer(nsqd))
        fails(lambda: writer.publish("t", "1", timeout=0.2), OutcomeUnknown)
        task = world.spawn(writer.publish, "t", "2")
        world.sleep(0.2)
        assert not task.done
        go_on.set()
        task.join()
        assert len(nsqd.connections) == 1


# -- what does not help to try again --------------------------------------------------------------


def http(connection: scripted.Connection, command: Command) -> None:
    connection.send(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n400 Bad Request")
    scripted.close()(connection)


@pytest.mark.parametrize("outage", ["fail", "wait"])
@pytest.mark.parametrize(
    ("hooks", "options", "words", "cause"),
    [
        ({"IDENTIFY": http}, {}, "this is an HTTP port; use nsqd's TCP port", WrongPort),
        (
            {"IDENTIFY": refuse("E_AUTH_FAILED AUTH failed")},
            {"auth_secret": "wrong"},
            "E_AUTH_FAILED",
            AuthFailed,
        ),
        ({}, {"tls": True}, "does not offer TLS", NegotiationFailed),
    ],
    ids=["http port", "refused secret", "no tls"],
)
def test_an_error_that_no_retry_cures_fails_at_once(
    client: Client,
    world: World,
    outage: str,
    hooks: Any,
    options: Any,
    words: str,
    cause: type[Exception],
) -> None:
    with ScriptedNsqd([automatic(hooks=hooks)]) as nsqd:
        writer = client.writer(nsqd, outage=outage, **options)
        took, text = fails(lambda: writer.publish("t", "x", timeout=60))
        # Who waits in vain takes the 60 s, and who takes it for an outage says so.
        assert took < 30
        assert text.startswith("no nsqd accepts this client: ")
        assert words in text
        fail_at_once(lambda: writer.publish("t", "x", timeout=60), words)
        with pytest.raises(NotSent) as caught:
            writer.publish_async("t", "x")
        assert isinstance(caught.value.causes[-1], cause)
        assert len(nsqd.connections) <= 3
        # Somebody starts the right one there.
        nsqd.scripts[:] = [[automatic()]]
        if not options:
            works_again(world, lambda: writer.publish("t", "y"))


# -- several --------------------------------------------------------------------------------------


def test_two_nsqds_that_answer_no_publish_are_an_outage(client: Client, world: World) -> None:
    scripts = [automatic(hooks={"PUB": nothing})], [automatic(hooks={"IDENTIFY": nothing})]
    with ScriptedNsqd(*scripts) as one, ScriptedNsqd(*scripts) as two:
        writer = connected(client.writer(one, two, publish_timeout=0.4))
        for _ in range(2):
            fails(lambda: writer.publish("t", "x"), OutcomeUnknown)
        fail_at_once(lambda: writer.publish("t", "x"), "did not answer the publish within 0.4 s")
        assert len(bodies(one)) == len(bodies(two)) == 1


# -- every way to publish -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda writer: writer.publish_many("t", ["a", "b"]),
        lambda writer: writer.publish_async("t", "a"),
        lambda writer: writer.connect(),
        lambda writer: writer.ping(),
    ],
    ids=["publish_many", "publish_async", "connect", "ping"],
)
@pytest.mark.parametrize("kind", ["refused", "silent"])
def test_the_same_rule_for_every_use(client: Client, world: World, use: Any, kind: str) -> None:
    scripts = [automatic(hooks={"PUB": nothing})], [automatic(hooks={"IDENTIFY": nothing})]
    with ScriptedNsqd(*scripts) as nsqd:
        if kind == "refused":
            nsqd.refuse_connections()
        writer = client.writer(nsqd, publish_timeout=5 if kind == "refused" else 0.3)
        if kind == "silent":
            fails(lambda: connected(writer).publish("t", "x"), OutcomeUnknown)
        else:
            took, _ = fails(lambda: use(writer))
            assert took < 4
        fail_at_once(lambda: use(writer), "no nsqd can be reached for")


def test_a_backlog_that_nobody_works_off_is_silence(
    client: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnsqsync.writer.async_window.BACKLOG_PUBLISHES", 3)
    go_on = threading.Event()
    scripts = [automatic(hooks={"PUB": hold(go_on)})], [automatic(hooks={"IDENTIFY": nothing})]
    with ScriptedNsqd(*scripts) as nsqd:
        writer = connected(client.writer(nsqd, publish_timeout=0.4))
        futures = [writer.publish_async("t", "x") for _ in range(3)]
        _, text = fails(lambda: writer.publish_async("t", "y"))
        assert "no room was made within 0.4 s" in text
        fail_at_once(lambda: writer.publish_async("t", "z"), "did not answer the publish")
        go_on.set()
        world.eventually(lambda: all(future.done() for future in futures))
        works_again(world, lambda: writer.publish_async("t", "last"))


# -- found by nsqlookupd --------------------------------------------------------------------------


def test_no_nsqd_listed_is_an_outage_and_news_ends_it(client: Client, world: World) -> None:
    with ScriptedNsqd() as nsqd, fake_server() as lookupd:
        lookupd.answer(nodes())
        options = {"publish_timeout": 0.5, "lookupd_poll_interval": 60}
        writer = Writer(lookupd_http_addresses=lookupd.address, runtime=world.runtime, **options)
        client.keep(writer)
        took, _ = fails(lambda: writer.publish("t", "x"))
        assert took < 3
        fail_at_once(lambda: writer.publish("t", "x"), "no nsqlookupd lists one")
        fail_at_once(writer.connect, "no nsqlookupd lists one")
        lookupd.answer(nodes(nsqd))
        # Publishes that fail have it asked again, long before its time.
        assert works_again(world, lambda: writer.publish("t", "y")) < 5
        assert bodies(nsqd) == [b"y"]


def test_no_nsqlookupd_that_can_be_asked_is_an_outage(client: Client, world: World) -> None:
    with unused_address() as where:
        writer = Writer(lookupd_http_addresses=where, runtime=world.runtime, publish_timeout=0.5)
        client.keep(writer)
        fails(lambda: writer.publish("t", "x"))
        fail_at_once(lambda: writer.publish("t", "x"), f"GET http://{where}/nodes")


# -- who waits ------------------------------------------------------------------------------------


def test_a_waiting_writer_tries_a_silent_connection_again(client: Client, world: World) -> None:
    with ScriptedNsqd([automatic(hooks={"PUB": nothing})]) as nsqd:
        writer = connected(client.writer(nsqd, outage="wait", publish_timeout=0.3))
        for _ in range(3):
            fails(lambda: writer.publish("t", "x"), OutcomeUnknown)
        assert len(nsqd.connections) == 1


def test_a_writer_may_wait_for_ever(client: Client, world: World) -> None:
    with ScriptedNsqd() as nsqd:
        nsqd.refuse_connections()
        options = {"publish_timeout": math.inf, "connect_timeout": math.inf}
        writers = [client.writer(nsqd, outage=word, **options) for word in ("wait", "fail")]
        waiting = world.spawn(writers[0].publish, "t", "x")
        took, _ = fails(lambda: writers[1].publish("t", "y"))
        assert took < 4
        nsqd.accept_connections()
        waiting.join()


def test_an_error_of_a_users_function_is_no_outage(client: Client, world: World) -> None:
    def secret() -> str:
        raise LookupError("the vault is closed")

    hooks = {"IDENTIFY": lambda connection, command: connection.answer(command, auth_required=True)}
    with ScriptedNsqd([automatic(hooks=hooks)]) as nsqd:
        writer = client.writer(nsqd, auth_secret=secret, publish_timeout=0.3)
        for _ in range(3):
            with pytest.raises(LookupError, match="the vault is closed"):
                writer.publish("t", "x")
            world.sleep(0.2)
        assert writer.stats().outage_seconds == 0


def test_outage_option_is_one_of_two_words() -> None:
    with pytest.raises(ConfigError, match="outage is 'raise'; it must be 'fail' or 'wait'"):
        Writer(outage="raise")


# -- the end of it --------------------------------------------------------------------------------


def test_a_writer_that_is_forgotten_in_an_outage_dials_no_more(
    client: Client, world: World
) -> None:
    runtime = counting(world)

    def forget(where: str) -> None:
        writer = Writer(where, runtime=runtime, publish_timeout=0.2)
        fails(lambda: writer.publish("t", "x"))
        fails(lambda: writer.publish("t", "x"))

    with unused_address() as where:
        forget(where)
        gc.collect()
        world.sleep(0.3)
        runtime.check_ended()
        dials = runtime.counts.connects
        world.sleep(1)
        assert runtime.counts.connects == dials


@pytest.mark.parametrize("runtime", ["threads", "gevent", "patched"])
def test_a_child_begins_anew(runtime: str) -> None:
    with ScriptedNsqd() as nsqd:
        nsqd.refuse_connections()
        out = run_script(f"""
            import os, sys, time
            if "{runtime}" == "patched":
                from gevent import monkey
                monkey.patch_all()
            from gnsqsync import Writer
            from gnsqsync.errors import NotSent

            def fails():
                began = time.monotonic()
                try:
                    writer.publish("t", "x")
                except NotSent:
                    return time.monotonic() - began

            kind = None if "{runtime}" == "patched" else "{runtime}"
            writer = Writer("{address(nsqd)}", runtime=kind)
            first, second = fails(), fails()
            assert second < 0.9 < first, (first, second)
            pid = os.fork()
            if not pid:
                # Nothing of the parent's: no outage is known here, and nobody dials.
                first, second = fails(), fails()
                assert second < 0.9 < first, (first, second)
                writer.close()
                sys.exit(7)
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) == 7
            assert fails() < 0.9
            writer.close()
            print("done")
        """)
        assert out == "done"

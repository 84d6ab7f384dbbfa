"""The hooks of a Writer: when, on what, under which locks; and one that raises."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest

from gnsqsync import Writer
from gnsqsync.errors import ConfigError, MpubFailed, NotSent, PublishError, Refused
from gnsqsync.runtime import choose
from gnsqsync.testing.memory import MemoryWriter
from tests.component.conftest import Client, address
from tests.component.reader import test_observer as reader_hooks
from tests.component.writer.test_discovery import OFTEN, nodes
from tests.component.writer.test_writer import refuse, unused_address
from tests.support.counting import CountingRuntime
from tests.support.scripted import ScriptedNsqd, automatic, close
from tests.support.serving import fake_server
from tests.support.worlds import World


class Recorder(reader_hooks.Recorder):
    """Knows the hooks of a Writer, too."""

    def lost(self, nsqd_address: str, reason: Exception) -> None:
        self._note("lost", nsqd_address)

    def lookup_failed(self, url: str, reason: Exception) -> None:
        self._note("lookup_failed", url)

    def lookup_recovered(self, url: str) -> None:
        self._note("lookup_recovered", url)

    def published(self, topic: str, messages: int, seconds: float) -> None:
        assert 0 <= seconds < 30
        self._note("published", topic, messages)

    def publish_failed(
        self, topic: str, messages: int, seconds: float, error: PublishError
    ) -> None:
        assert 0 <= seconds < 30
        self._note("publish_failed", topic, messages, type(error), error.acknowledged)

    def names(self) -> list[str]:
        return [call[0] for call in list(self.calls)]


def live_through(client: Client, world: World, observer: Recorder, **options: Any) -> None:
    """Each way to publish, a refusal, and the loss of two connections."""
    first = [automatic(until="PUB"), automatic(until="MPUB"), automatic(until="PUB"), close()]
    second = [automatic(hooks={"MPUB": refuse("E_MPUB_FAILED no")})]
    with ScriptedNsqd(first, second) as nsqd:
        where = address(nsqd)
        writer = client.writer(nsqd, observer=observer, **options)
        writer.publish("t", b"x")
        writer.publish_many("t", [b"x", b"y"])
        # result() would stop all greenlets in an unpatched process.
        world.eventually(writer.publish_async("t", b"x").done)
        world.eventually(lambda: "lost" in observer.names())
        with pytest.raises(Refused) as caught:
            writer.publish_many("t", [b"x", b"y", b"z"])
        assert isinstance(caught.value.error, MpubFailed)
        with pytest.raises(ConfigError):
            writer.publish("no topic!", b"x")
        writer.close()
    # What ends behind an answer is told by another thread than the answer.
    told = sorted(observer.calls, key=lambda call: call[0] in ("connected", "lost"))
    assert told[:4] == [
        ("published", "t", 1),
        ("published", "t", 2),
        ("published", "t", 1),
        ("publish_failed", "t", 3, Refused, 0),
    ]
    assert told[4:] == [("connected", where), ("lost", where)] * 2


def test_each_hook_is_called_once_and_outside_all_locks(client: Client, world: World) -> None:
    runtime = CountingRuntime(
        choose(world.runtime), leaves=("gnsqsync.connection.opening.Opening",)
    )
    live_through(client, world, Recorder(runtime), runtime=runtime)
    assert not [v for v in runtime.violations if "observer" in v], runtime.violations


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_an_observer_that_raises_changes_nothing(
    client: Client, world: World, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    other = Recorder(fails=error)
    observer = Recorder(fails=error)
    live_through(client, world, observer)
    told = [r for r in caplog.records if "the observer's" in r.getMessage()]
    assert len(told) == len(observer.calls)
    assert {(record.name, record.levelno) for record in told} == {
        ("gnsqsync.writer", logging.ERROR)
    }
    # Of several each is told, whatever another one raises.
    caplog.clear()
    with ScriptedNsqd() as nsqd:
        second = Recorder()
        client.writer(nsqd, observer=[other, (second,)]).publish("t", b"x")
    assert other.names() == second.names() == ["connected", "published"]
    assert {r.name for r in caplog.records if "the observer's" in r.getMessage()} == {
        "gnsqsync.writer"
    }


def test_an_unsent_publish_is_told_with_the_failed_dial(client: Client, world: World) -> None:
    observer = Recorder()
    with unused_address() as where:
        writer = client.keep(Writer(where, runtime=world.runtime, observer=observer))
        with pytest.raises(NotSent, match=r"no nsqd could be reached within 0\.3 s"):
            writer.publish_many("t", [b"x", b"y"], timeout=0.3)
        assert observer.calls[0] == ("lost", where)
        assert observer.calls[-1] == ("publish_failed", "t", 2, NotSent, 0)
        with pytest.raises(NotSent):
            writer.publish_async("t", b"x")
        assert observer.calls[-1] == ("publish_failed", "t", 1, NotSent, 0)


def test_a_failed_publish_many_tells_the_confirmed_number(client: Client) -> None:
    observer = Recorder()
    with ScriptedNsqd([automatic(until="MPUB"), automatic(hooks={"MPUB": refuse("E_X no")})]) as n:
        writer = client.writer(n, observer=observer, max_body_size=40)
        with pytest.raises(Refused):
            writer.publish_many("t", [b"x" * 10] * 4)
    assert ("publish_failed", "t", 4, Refused, 2) in observer.calls


def test_nsqlookupds_that_fail_and_work_again(client: Client, world: World) -> None:
    observer = Recorder()
    with ScriptedNsqd() as nsqd, fake_server() as lookupd:
        lookupd.answer(nodes(nsqd))
        writer = client.keep(
            Writer(
                lookupd_http_addresses=lookupd.address,
                lookupd_poll_interval=OFTEN,
                observer=observer,
                runtime=world.runtime,
            )
        )
        writer.publish("t", b"x")
        assert "lookup_failed" not in observer.names()
        lookupd.answer({}, status=500)
        world.eventually(lambda: "lookup_failed" in observer.names())
        lookupd.answer(nodes(nsqd))
        world.eventually(lambda: "lookup_recovered" in observer.names())
        url = f"http://{lookupd.address}"
        assert observer.calls[2:] == [("lookup_failed", url), ("lookup_recovered", url)]


def test_a_copy_has_the_observer_too(client: Client, world: World) -> None:
    observer = Recorder()
    with ScriptedNsqd() as nsqd:
        writer = client.writer(nsqd, observer=observer)
        client.keep(copy.copy(writer)).publish("t", b"x")
    assert observer.names() == ["connected", "published"]


def test_a_future_that_was_cancelled_is_told_to_nobody(client: Client, world: World) -> None:
    observer = Recorder()
    with ScriptedNsqd([automatic(until="IDENTIFY")]) as nsqd:
        writer = client.writer(nsqd, observer=observer)
        assert writer.publish_async("t", b"x").cancel()
        assert observer.names() == ["connected"]
        writer.close(0)


def test_a_memory_writer_tells_what_it_keeps() -> None:
    observer = Recorder()
    writer = MemoryWriter(observer=observer)
    writer.publish("t", b"x")
    writer.publish_many("t", [b"x", b"y"])
    assert observer.calls == [("published", "t", 1), ("published", "t", 2)]


def test_an_object_that_is_no_observer_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"must be a gnsqsync\.Observer, or a list"):
        Writer(observer=print)  # type: ignore[arg-type]

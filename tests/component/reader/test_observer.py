"""The hooks of a Reader: when, how often, under which locks; and what a look at it tells."""

from __future__ import annotations

from typing import Any

import pytest

from gnsqsync import Message, Observer
from gnsqsync.errors import ConfigError
from gnsqsync.runtime import choose
from tests.component.conftest import Client, address
from tests.support import scripted
from tests.support.counting import CountingRuntime
from tests.support.scripted import Command, ScriptedNsqd, automatic
from tests.support.worlds import World


class Recorder(Observer):
    """Notes every call; under a lock it would be a violation; it may raise."""

    def __init__(
        self,
        runtime: CountingRuntime | None = None,
        *,
        fails: type[BaseException] | None = None,
    ) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._runtime = runtime
        self._fails = fails

    def _note(self, *call: Any) -> None:
        self.calls.append(call)
        if self._runtime is not None:
            self._runtime.no_lock_held(f"the observer's {call[0]}")
        if self._fails is not None:
            raise self._fails("a bad observer")

    def connected(self, nsqd_address: str) -> None:
        self._note("connected", nsqd_address)

    def lost(self, nsqd_address: str, reason: Exception) -> None:
        self._note("lost", nsqd_address, str(reason))

    def backoff(self, level: int, seconds: float) -> None:
        self._note("backoff", level)

    def gave_up(self, message: Message, error: BaseException | None) -> None:
        self._note("gave_up", message.body, error)

    def answer_failed(self, nsqd_address: str, message_id: str, code: str) -> None:
        self._note("answer_failed", code)

    def batch(self, nsqd_address: str, finished: int, failed: int, seconds: float) -> None:
        assert seconds >= 0
        self._note("batch", finished, failed)

    def of(self, hook: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in list(self.calls) if call[0] == hook]


def eventful() -> tuple[list[scripted.Step], list[scripted.Step]]:
    """Two connections on which each hook has something to tell."""
    refused: list[Command] = []

    def refuse_one(connection: scripted.Connection, command: Command) -> None:
        if not refused:
            refused.append(command)
            connection.error(f"E_FIN_FAILED FIN {command.parameters[0]} failed")

    first = [
        automatic(until="RDY"),
        scripted.message(b"good"),
        scripted.expect("FIN"),
        scripted.message(b"poison", attempts=9),
        scripted.expect("FIN"),
        scripted.close(),
    ]
    second = [
        automatic(until="RDY"),
        scripted.message(b"good"),
        automatic(until="FIN", hooks={"FIN": refuse_one}),
        scripted.message(b"bad"),
        automatic(),
    ]
    return first, second


def handler(message: Message) -> None:
    if message.body == b"bad":
        raise RuntimeError("no")


def live_through(client: Client, world: World, observer: Recorder, **options: Any) -> Any:
    with ScriptedNsqd(*eventful()) as nsqd:
        options.update(
            backoff="every_failure",
            max_backoff_duration=1,
            max_deliveries=8,
            on_giving_up="discard",
        )
        reader = client.consume(handler, nsqd, observer=observer, **options)
        world.eventually(lambda: observer.of("backoff"))
        where = address(nsqd)
        stats = reader.stats()
        reader.stop()
        result = reader.join(20)
        assert result is not None
        assert result.clean
    assert observer.of("connected") == [(where,), (where,)]
    assert observer.of("lost")[0] == (where, f"{where} closed the connection")
    assert observer.of("backoff")[0] == (1,)
    assert observer.of("gave_up") == [(b"poison", None)]
    assert observer.of("answer_failed") == [("E_FIN_FAILED",)]
    assert observer.of("batch")[:4] == [(1, 0), (0, 0), (1, 0), (0, 1)]
    return stats


def test_each_hook_is_called_once_and_outside_all_locks(client: Client, world: World) -> None:
    runtime = CountingRuntime(
        choose(world.runtime),
        leaves=("gnsqsync.connection.opening.Opening", "gnsqsync.runtime.timer.Timer"),
    )
    stats = live_through(client, world, Recorder(runtime), runtime=runtime)
    assert not [v for v in runtime.violations if "observer" in v], runtime.violations
    # Over the lost connection, too.
    assert (stats.received, stats.gave_up, stats.answers_failed) == (4, 1, 1)
    assert stats.finished == 3


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, GeneratorExit])
def test_an_observer_that_raises_changes_nothing(
    client: Client, world: World, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    stats = live_through(client, world, Recorder(fails=error))
    assert (stats.received, stats.gave_up, stats.finished) == (4, 1, 3)
    told = [r.getMessage() for r in caplog.records if "the observer's" in r.getMessage()]
    assert {text.partition("the observer's ")[2].split(" ")[0] for text in told} == {
        "connected",
        "lost",
        "backoff",
        "gave_up",
        "answer_failed",
        "batch",
    }


def test_several_are_told_each_whatever_another_one_raises(client: Client, world: World) -> None:
    first, second = Recorder(fails=SystemExit), Recorder()
    with ScriptedNsqd([automatic(until="RDY"), scripted.message(b"x"), automatic()]) as nsqd:
        reader = client.consume(lambda m: None, nsqd, observer=[first, (second,)])
        world.eventually(lambda: second.of("batch"))
        reader.stop()
        reader.join(20)
    assert first.calls == second.calls
    assert [call[0] for call in second.calls[:2]] == ["connected", "batch"]
    with pytest.raises(ConfigError, match=r"must be a gnsqsync\.Observer, or a list"):
        client.reader(print, nsqd, observer=[first, print])


class Killed(BaseException):
    """Ends a thread in these tests, as GreenletExit ends a greenlet."""


@pytest.fixture
def killing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnsqsync.observer.ends_worker", lambda error: isinstance(error, Killed))


class Impatient(Observer):
    """Its first calls end like that."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def _note(self, hook: str) -> None:
        self.calls.append(hook)
        if self.calls.count(hook) == 1:
            raise Killed

    def connected(self, nsqd_address: str) -> None:
        self._note("connected")

    def lost(self, nsqd_address: str, reason: Exception) -> None:
        self._note("lost")


@pytest.mark.usefixtures("killing")
def test_a_hook_whose_thread_is_ended_costs_a_connection(client: Client, world: World) -> None:
    """But not the Reader: it dials again, and reads what comes then."""
    observer = Impatient()
    got: list[Message] = []
    script = [automatic(until="RDY"), scripted.message(b"x"), automatic()]
    with ScriptedNsqd([automatic()], script) as nsqd:
        client.consume(got.append, nsqd, observer=observer)
        world.eventually(lambda: got)
        assert observer.calls == ["connected", "lost", "connected"]


@pytest.mark.usefixtures("killing")
def test_the_same_of_a_dial(client: Client, world: World) -> None:
    observer = Impatient()
    with ScriptedNsqd([scripted.close()], [automatic()]) as nsqd:
        reader = client.consume(print, nsqd, observer=observer)
        world.eventually(lambda: reader.stats().connections)
        assert observer.calls[0] == "lost"


def test_batches_are_told_by_chunk(client: Client, world: World) -> None:
    observer = Recorder()
    script = [automatic(until="RDY")]
    for first in range(0, 1200, 200):
        ids = [b"%016d" % number for number in range(first, first + 200)]
        burst = [scripted.message_frame(b"x", id=id) for id in ids]
        # The pace is measured with the first ones, which come one by one; and with later ones
        # where the machine held the first ones up.
        script += [scripted.send(*burst), automatic(until="FIN")]
    with ScriptedNsqd([*script, automatic()]) as nsqd:
        reader = client.consume(lambda m: None, nsqd, observer=observer, max_in_flight=500)
        world.eventually(lambda: sum(n for n, _ in observer.of("batch")) == 1200)
        assert reader.stats().received == 1200
        # Fast handlers get many at once, and the hook is called for all of them together.
        assert len(observer.of("batch")) < 1200


def test_starved(client: Client, world: World) -> None:
    kept: list[Message] = []

    def keep(message: Message) -> None:
        message.detach()
        kept.append(message)

    script = [automatic(until="RDY"), *[scripted.message(b"x")] * 9, automatic()]
    with ScriptedNsqd(script) as nsqd:
        reader = client.consume(keep, nsqd, max_in_flight=10)
        world.eventually(lambda: len(kept) == 9)
        assert reader.is_starved
        assert kept[0].finish()
        # 8 of 10 are less than 85 %.
        assert not reader.is_starved
        for message in kept[1:]:
            message.finish()
        assert not reader.is_starved

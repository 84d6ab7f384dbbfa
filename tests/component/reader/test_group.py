"""Several Readers as one: they start, share a limit, fail and stop together."""

from __future__ import annotations

import pytest

from gnsqsync import Message, Reader, ReaderGroup
from gnsqsync.errors import BadTopic, ClosedError, ConfigError
from gnsqsync.stats import StopResult
from tests.component.conftest import Client
from tests.support import scripted
from tests.support.scripted import Command, ScriptedNsqd, automatic
from tests.support.worlds import World


def refuse(connection: scripted.Connection, command: Command) -> None:
    connection.error("E_BAD_TOPIC SUB topic name is not valid")
    scripted.close()(connection)


def rdy(nsqd: ScriptedNsqd) -> int:
    """The last one told, -1 for none."""
    return int(([command.parameters[0] for command in nsqd.received("RDY")] or ["-1"])[-1])


@pytest.mark.parametrize("number", [0, 1])
def test_a_reader_that_fails_ends_the_others(client: Client, world: World, number: int) -> None:
    """Whichever it is, and not when the others end by themselves, which may be never."""
    bad, good = ScriptedNsqd([automatic(hooks={"SUB": refuse})]), ScriptedNsqd()
    with bad, good:
        nsqds = [good, good]
        nsqds[number] = bad
        readers = [client.reader(print, nsqd, shared=True) for nsqd in nsqds]
        task = world.spawn(ReaderGroup(readers, runtime=world.runtime).start)
        with pytest.raises(BadTopic):
            task.join()
        assert readers[1 - number].join(0) == StopResult(0, 0)


def test_a_reader_that_fails_before_the_next_has_started(client: Client, world: World) -> None:
    class Late(Reader):
        def start(self, block: bool = True) -> StopResult | None:
            with pytest.raises(BadTopic):
                readers[0].join(15.0)
            # What watches the first one has told all by then.
            world.eventually(lambda: self._stop_asked is not None)
            return super().start(block)

    bad = ScriptedNsqd([automatic(hooks={"SUB": refuse})])
    with bad, ScriptedNsqd() as good:
        readers = [
            client.reader(print, bad, shared=True),
            client.reader(print, good, shared=True, kind=Late),
        ]
        task = world.spawn(ReaderGroup(readers, runtime=world.runtime).start)
        with pytest.raises(BadTopic):
            task.join()
        assert readers[1].join(0) == StopResult(0, 0)


def test_a_join_during_the_start_waits_for_all(client: Client, world: World) -> None:
    go_on = False

    class Late(Reader):
        def start(self, block: bool = True) -> StopResult | None:
            world.eventually(lambda: go_on)
            return super().start(block)

    with ScriptedNsqd() as nsqd:
        readers = [
            client.reader(print, nsqd, shared=True),
            client.reader(print, nsqd, shared=True, kind=Late),
        ]
        group = ReaderGroup(readers, runtime=world.runtime)
        starting = world.spawn(group.start)
        world.eventually(lambda: nsqd.received("RDY"))
        joining = world.spawn(group.join)
        readers[0].stop()
        assert readers[0].join(10.0) == StopResult(0, 0)
        go_on = True
        world.eventually(lambda: len(nsqd.received("RDY")) >= 2)
        assert not joining.done
        group.stop()
        assert starting.join() == joining.join() == [StopResult(0, 0)] * 2


def test_a_stop_before_the_start(client: Client, world: World) -> None:
    with ScriptedNsqd() as nsqd:
        readers = [client.reader(print, nsqd, shared=True), client.reader(print, nsqd, shared=True)]
        group = ReaderGroup(readers, runtime=world.runtime)
        group.stop()
        assert world.spawn(group.start).join() == [StopResult(0, 0)] * 2


def test_a_group_that_cannot_start_leaves_nothing_running(client: Client, world: World) -> None:
    with ScriptedNsqd() as nsqd:
        first, second = (
            client.reader(print, nsqd, shared=True),
            client.consume(print, nsqd, shared=True),
        )
        group = ReaderGroup([first, second], runtime=world.runtime)
        with pytest.raises(ClosedError, match="a Reader is started once"):
            group.start()
        assert first.join(10) is not None


def test_the_limit_is_shared_and_goes_where_the_messages_are(client: Client, world: World) -> None:
    got: list[Message] = []
    with ScriptedNsqd() as one, ScriptedNsqd() as two:
        options = {"latency": "throughput"}
        readers = [client.reader(got.append, nsqd, shared=True, **options) for nsqd in (one, two)]
        group = ReaderGroup(readers, max_in_flight=10, runtime=world.runtime)
        with group:
            world.eventually(lambda: (rdy(one), rdy(two)) == (5, 5))
            assert sum(reader.stats().max_in_flight for reader in readers) == 10
            one.connections[0].message(b"x")
            two.connections[0].message(b"y")
            world.eventually(lambda: len(got) == 2)
        assert (rdy(one), rdy(two)) == (0, 0)


def test_the_share_of_an_ended_reader_goes_to_the_others(client: Client, world: World) -> None:
    with ScriptedNsqd() as one, ScriptedNsqd() as two:
        readers = [
            client.reader(print, nsqd, shared=True, latency="throughput") for nsqd in (one, two)
        ]
        group = ReaderGroup(readers, max_in_flight=10, runtime=world.runtime)
        with group:
            world.eventually(lambda: (rdy(one), rdy(two)) == (5, 5))
            readers[1].stop()
            world.eventually(lambda: rdy(one) == 10)
            assert group.readers == tuple(readers)
        assert group.join() == [StopResult(0, 0)] * 2


def test_readers_of_a_group_are_judged_as_one_stream(client: Client, world: World) -> None:
    with ScriptedNsqd() as nsqd:
        readers = [client.reader(print, nsqd, shared=True), client.reader(print, nsqd, shared=True)]
        with ReaderGroup(readers, runtime=world.runtime):
            world.eventually(lambda: len(nsqd.received("RDY")) >= 2)
            levels = [
                connection.level
                for reader in readers
                for connection in reader._running().subscription.connections()
            ]
            assert [level._connections for level in levels if level is not None] == [2, 2]


def test_readers_of_a_group_share_a_timer_that_outlives_each_of_them(
    client: Client, world: World
) -> None:
    with ScriptedNsqd() as nsqd:
        readers = [client.reader(print, nsqd, shared=True) for _ in range(3)]
        with ReaderGroup(readers, runtime=world.runtime) as group:
            timers = {reader._running()._timer for reader in readers}
            (timer,) = timers
            readers[0].stop()
            readers[0].join()
            assert timer._task is not None and timer._task.alive
            group.stop()
        world.eventually(lambda: timer._task is not None and not timer._task.alive)


def test_shared_parts_end_with_the_group_without_a_join(client: Client, world: World) -> None:
    with ScriptedNsqd() as nsqd:
        readers = [client.reader(print, nsqd, shared=True) for _ in range(2)]
        group = ReaderGroup(readers, max_in_flight=4, runtime=world.runtime)
        group.start(block=False)
        members = group._members
        assert members is not None
        share = members._share
        assert share is not None
        group.stop()
        world.eventually(lambda: share._timer._task is not None and not share._timer._task.alive)


def test_start_and_stop(client: Client, world: World) -> None:
    with ScriptedNsqd() as nsqd:
        group = ReaderGroup(
            [client.reader(print, nsqd, shared=True), client.reader(print, nsqd, shared=True)],
            runtime=world.runtime,
        )
        with pytest.raises(ClosedError, match="not started"):
            group.join()
        task = world.spawn(group.start)
        world.eventually(lambda: len(nsqd.received("RDY")) == 2)
        with pytest.raises(ClosedError, match="a ReaderGroup is started once"):
            group.start()
        group.stop()
        assert task.join() == [StopResult(0, 0)] * 2


def test_arguments_that_make_no_group() -> None:
    for readers in ([], [object()]):
        with pytest.raises(ConfigError, match="a ReaderGroup needs one Reader or more"):
            ReaderGroup(readers)  # type: ignore[arg-type]

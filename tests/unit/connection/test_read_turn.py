"""The turn to read, walked through all interleavings of its parties.

Each method of ReadTurn is one step, as its mutex makes it. A party is a generator that yields
before each step. The walk runs each order in which the steps of all parties can come, from the
start, and looks at the rules behind each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from gnsqsync.connection.read_turn import ReadTurn, TurnState
from gnsqsync.errors import ConnectionLost

Steps = Iterator[Callable[[], bool]]


class Flag:
    """An event or a latch that nobody waits for here: the walk asks whether it is set."""

    def __init__(self) -> None:
        self.is_set = False

    def set(self) -> None:
        self.is_set = True

    release = set

    def clear(self) -> None:
        self.is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set


class StillRuntime:
    """A clock that stands still, until it is set, and locks that nobody else wants."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def mutex(self) -> Any:
        return nullcontext()

    def event(self) -> Any:
        return Flag()


class World:
    """One ReadTurn, who reads, and which answers nsqd has sent."""

    def __init__(self) -> None:
        self.runtime = StillRuntime()
        self.turn = ReadTurn(self.runtime, "nsqd:4150")  # type: ignore[arg-type]
        self.readers: list[object] = ["reading thread"]
        # Publishes without an answer, the oldest first.
        self.pending: list[Caller] = []
        self.callers: list[Caller] = []
        # Whether a caller met the end of the connection, and whether the reading thread knows.
        self.failed = False
        self.lost = False

    def begins_to_read(self, who: object) -> None:
        self.readers.append(who)
        assert len(self.readers) == 1, f"two read: {self.readers}"
        assert not self.failed, f"{who} reads behind the end"

    def ends_to_read(self, who: object) -> None:
        self.readers.remove(who)

    def check(self) -> None:
        state = self.turn.state
        if state is TurnState.FREE:
            assert not self.readers
            assert not [c for c in self.turn._waiting if not c.done], "free, and one waits for it"
        if state is TurnState.READING_THREAD:
            assert self.readers in ([], ["reading thread"])


class Caller:
    """One publish: as ``Publishes.publish`` does it."""

    def __init__(self, world: World, name: str, fate: str = "answered") -> None:
        self.world = world
        self.name = name
        self.fate = fate
        self.done = False
        self.latch: Any = Flag()
        self.over = False
        world.callers.append(self)

    def __repr__(self) -> str:
        return self.name

    def steps(self) -> Steps:
        world, turn = self.world, self.world.turn
        world.pending.append(self)
        has_turn = turn.take(self, 10.0)
        if not has_turn:
            yield always
            has_turn = turn.join(self, 10.0)
            if not has_turn:
                if self.fate in ("times out", "is killed"):
                    yield always
                else:
                    yield lambda: self.latch.is_set or self.done or world.lost
                has_turn = self.fate != "is killed" and turn.leave(self)
        if has_turn:
            world.begins_to_read(self)
            yield always
            if self.fate == "meets the end":
                turn.fail(self, ConnectionLost("the end"))
                world.failed = True
                world.ends_to_read(self)
                self.over = True
                yield always
                turn.release(self, unread=bool(world.pending), wanted=False)
                return
            if self.fate == "answered":
                # Its answer is behind those of all that were sent before.
                while not self.done:
                    oldest = world.pending.pop(0)
                    oldest.done = True
                    oldest.latch.release()
                    yield always
            world.ends_to_read(self)
        turn.release(self, unread=bool(world.pending), wanted=False)
        if not self.done and self.fate != "is killed":
            # ``wait_aside``: the reading thread reads it.
            yield always
            turn.recall()
            yield lambda: self.done or world.lost
        self.over = True


def reading_thread(world: World) -> Steps:
    """Lends the turn, and takes it back when nobody uses it or it is called; to the end."""
    turn = world.turn
    yield always
    while world.pending or not all(caller.over for caller in world.callers):
        yield always
        world.readers.clear()
        turn.lend()
        while True:
            # Its look comes by the clock, so at any time.
            yield always
            try:
                if turn.look():
                    break
            except ConnectionLost:
                world.lost = True
                return
        world.begins_to_read("reading thread")
        yield always
        while world.pending:
            oldest = world.pending.pop(0)
            oldest.done = True
            oldest.latch.release()
            yield always


def always() -> bool:
    return True


def walk(make: Callable[[World], list[Steps]], depth: int) -> int:
    """Run every order of steps, each to its end; how many there are.

    Stateless: an order is a list of choices, and the next one is made by counting the last choice
    up. Orders that are longer than ``depth`` go on by turns, so that the clock's looks, which may
    come for ever, do not make the walk endless.
    """
    choices: list[tuple[int, int]] = []
    orders = 0
    while True:
        run(make, choices, depth)
        orders += 1
        while choices and choices[-1][0] + 1 == choices[-1][1]:
            choices.pop()
        if not choices:
            return orders
        chosen, of = choices.pop()
        choices.append((chosen + 1, of))


def run(make: Callable[[World], list[Steps]], choices: list[tuple[int, int]], depth: int) -> None:
    world = World()
    # Each with what it waits for.
    parties: list[tuple[Steps, Callable[[], bool]]] = [(p, always) for p in make(world)]
    at = 0
    for step in range(400):
        ready = [party for party in parties if party[1]()]
        if not parties:
            assert world.lost is world.failed
            assert world.lost or not world.pending
            return
        assert ready, f"nobody goes on: {world.turn.state}, {world.callers}, {world.pending}"
        if len(ready) == 1:
            party = ready[0]
        elif at < depth:
            if at == len(choices):
                choices.append((0, len(ready)))
            assert choices[at][1] == len(ready), "a run is not the same twice"
            party = ready[choices[at][0]]
            at += 1
        else:
            party = ready[step % len(ready)]
        place = parties.index(party)
        try:
            parties[place] = (party[0], next(party[0]))
        except StopIteration:
            del parties[place]
        world.check()
    raise AssertionError("it does not come to an end")


def callers(world: World, fates: tuple[str, ...]) -> list[Steps]:
    return [Caller(world, f"caller {n}", fate).steps() for n, fate in enumerate(fates)]


FATES = ("answered", "times out", "is killed", "meets the end")


@pytest.mark.parametrize("fate", FATES)
def test_a_caller_and_the_reading_thread(fate: str) -> None:
    def make(world: World) -> list[Steps]:
        return [*callers(world, (fate,)), reading_thread(world)]

    assert walk(make, 12) > 100


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("other", FATES)
def test_two_callers_and_the_reading_thread(fate: str, other: str) -> None:
    def make(world: World) -> list[Steps]:
        return [*callers(world, (fate, other)), reading_thread(world)]

    assert walk(make, 8) > 1000


@pytest.fixture
def world() -> World:
    return World()


def test_a_caller_that_was_killed_with_the_turn_ends_the_connection(world: World) -> None:
    caller = Caller(world, "caller")
    world.turn.lend()
    assert world.turn.take(caller, 10.0)
    world.runtime.time = 14.9
    assert not world.turn.look()
    world.runtime.time += 0.1
    with pytest.raises(ConnectionLost, match="that read from nsqd:4150 was killed"):
        world.turn.look()


def test_an_unused_turn_comes_back_at_the_second_look(world: World) -> None:
    world.turn.lend()
    assert not world.turn.look()
    assert world.turn.look()
    assert world.turn.state is TurnState.READING_THREAD


def test_the_newest_is_next(world: World) -> None:
    first, second, third = (Caller(world, f"{n}") for n in range(3))
    world.turn.lend()
    assert world.turn.take(first, 10.0)
    assert not world.turn.join(second, 10.0)
    assert not world.turn.join(third, 10.0)
    world.turn.release(first, unread=True, wanted=False)
    assert (second.latch.is_set, third.latch.is_set) == (False, True)


def test_answers_that_nobody_reads_are_the_reading_threads(world: World) -> None:
    caller = Caller(world, "caller")
    world.turn.lend()
    assert world.turn.take(caller, 10.0)
    world.turn.release(caller, unread=True, wanted=False)
    assert world.turn.state is TurnState.READING_THREAD
    assert world.turn.look()


def test_the_reading_thread_that_is_wanted_is_ahead_of_those_that_wait(world: World) -> None:
    caller, other = Caller(world, "caller"), Caller(world, "other")
    world.turn.lend()
    assert world.turn.take(caller, 10.0)
    assert not world.turn.join(other, 10.0)
    world.turn.release(caller, unread=False, wanted=True)
    assert world.turn.state is TurnState.READING_THREAD
    assert not other.latch.is_set


def test_a_turn_that_is_recalled_goes_back_though_others_wait(world: World) -> None:
    caller, other = Caller(world, "caller"), Caller(world, "other")
    world.turn.lend()
    assert world.turn.take(caller, 10.0)
    assert not world.turn.join(other, 10.0)
    world.turn.recall()
    assert not world.turn.look()
    world.turn.release(caller, unread=False, wanted=False)
    assert world.turn.look()
    assert not other.latch.is_set

"""The turn to read, walked through all interleavings of its parties.

What a method of ReadTurn does under its mutex is one step; what it does without, each change and
each look. A party is a greenlet that pauses before each step. The walk runs each order in which
the steps of all parties can come, from the start, and looks at the rules behind each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import combinations_with_replacement
from random import Random
from typing import Any

import pytest
from greenlet import getcurrent, greenlet

from gnsqsync.connection.read_turn import ReadTurn, TurnState
from gnsqsync.errors import ConnectionLost
from tests.support.marks import few_and_many

Steps = Callable[[], None]


def always() -> bool:
    return True


def pause(until: Callable[[], bool] = always) -> None:
    """Other parties may step now. In a test without a walk: nothing."""
    scheduler = getcurrent().parent
    if scheduler is not None:
        scheduler.switch(until)


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
    """A clock that stands still until it is set, and one mutex."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def mutex(self) -> Any:
        return Mutex()

    def event(self) -> Any:
        return Flag()


class Mutex:
    """Others may step before it is taken, and while it is held those that do without it."""

    def __init__(self) -> None:
        self.is_held = False

    def __enter__(self) -> None:
        pause(lambda: not self.is_held)
        self.is_held = True

    def __exit__(self, *exc_info: object) -> None:
        self.is_held = False


class Waiting(dict[Any, float]):
    """Others may step before each look and change."""

    def __bool__(self) -> bool:
        pause()
        return len(self) > 0

    def __setitem__(self, *args: Any) -> None:
        pause()
        super().__setitem__(*args)

    def pop(self, *args: Any) -> Any:
        pause()
        return super().pop(*args)

    def popitem(self) -> Any:
        pause()
        return super().popitem()


class SteppedTurn(ReadTurn):
    """Others may step before each change and look at what is used without the mutex."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._waiting = Waiting()
        # How many parties are in the middle of a method.
        self.busy = 0

    def take(self, *args: Any) -> bool:
        with self._midst():
            return super().take(*args)

    def release(self, *args: Any) -> None:
        with self._midst():
            super().release(*args)

    def recall(self) -> None:
        with self._midst():
            super().recall()

    def lend(self) -> None:
        with self._midst():
            super().lend()

    def look(self) -> bool:
        with self._midst():
            return super().look()

    @contextmanager
    def _midst(self) -> Iterator[None]:
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("state", "owner", "_recalled"):
            pause()
        super().__setattr__(name, value)

    def __getattribute__(self, name: str) -> Any:
        if name in ("_recalled", "owner"):
            pause()
        return super().__getattribute__(name)


class World:
    """One ReadTurn, who reads, and which answers nsqd has sent."""

    def __init__(self) -> None:
        self.runtime = StillRuntime()
        self.turn = SteppedTurn(self.runtime, "nsqd:4150")
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
        if self.turn.busy:
            return
        state = self.turn.state
        if state is TurnState.FREE:
            assert not self.readers
            waiting = [caller for caller in self.turn._waiting if not caller.done]
            assert not waiting, "free, and one waits for it"
            assert not self.turn.__dict__["_recalled"], "free, and recalled"
        if state is TurnState.READING_THREAD:
            assert self.readers in ([], ["reading thread"])


class Caller:
    """One publish: as ``Publishes.publish`` does it."""

    def __init__(self, world: World, name: str, fate: str = "answered") -> None:
        self.world = world
        self.name = name
        self.fate = fate
        self.done = False
        self.latch: Any = None
        self.over = False
        world.callers.append(self)

    def __repr__(self) -> str:
        return self.name

    def answered(self) -> None:
        self.done = True
        if self.latch is not None:
            self.latch.release()

    def steps(self) -> None:
        world, turn = self.world, self.world.turn
        world.pending.append(self)
        has_turn = turn.take(self, 10.0)
        if not has_turn:
            pause()
            self.latch = Flag()
            pause()
            has_turn = turn.owner is self
            if not has_turn:
                if self.fate in ("times out", "is killed"):
                    pause()
                else:
                    pause(lambda: self.latch.is_set or self.done or world.lost)
                has_turn = self.fate != "is killed" and turn.leave(self)
        if has_turn:
            world.begins_to_read(self)
            pause()
            if self.fate == "meets the end":
                turn.fail(self, ConnectionLost("the end"))
                world.failed = True
                world.ends_to_read(self)
                self.over = True
                pause()
                turn.release(self, bool(world.pending), False)
                return
            if self.fate == "answered":
                # Its answer is behind those of all that were sent before.
                while not self.done:
                    oldest = world.pending.pop(0)
                    oldest.answered()
                    pause()
            world.ends_to_read(self)
        if has_turn or self.fate == "is killed":
            turn.release(self, bool(world.pending), False)
        if not self.done and self.fate != "is killed":
            # ``wait_aside``: the reading thread reads it.
            pause()
            turn.recall()
            pause(lambda: self.done or world.lost)
        self.over = True


def reading_thread(world: World) -> None:
    """Lends the turn, and takes it back when nobody uses it or it is called; to the end."""
    turn = world.turn
    pause()
    while world.pending or not all(caller.over for caller in world.callers):
        pause()
        world.readers.clear()
        turn.lend()
        while True:
            # Its look comes by the clock, so at any time.
            pause()
            try:
                if turn.look():
                    break
            except ConnectionLost:
                world.lost = True
                return
        world.begins_to_read("reading thread")
        pause()
        while world.pending:
            oldest = world.pending.pop(0)
            oldest.answered()
            pause()


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


def wander(make: Callable[[World], list[Steps]], seeds: range) -> None:
    """Run orders that are chosen by lot, each by its seed, to any depth.

    A party mostly goes on until it waits: what goes wrong needs few changes at the right places.
    """
    for seed in seeds:
        lots = Random(seed)
        try:
            run(make, [], 0, lots)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


def run(
    make: Callable[[World], list[Steps]],
    choices: list[tuple[int, int]],
    depth: int,
    lots: Random | None = None,
) -> None:
    world = World()
    # Each with what it waits for.
    parties: list[tuple[greenlet, Callable[[], bool]]]
    parties = [(greenlet(steps), always) for steps in make(world)]
    at, last = 0, None
    for step in range(2000):
        ready = [party for party in parties if party[1]()]
        if not parties:
            assert world.lost is world.failed
            assert world.lost or not world.pending
            return
        assert ready, f"nobody goes on: {world.turn.state}, {world.callers}, {world.pending}"
        if len(ready) == 1:
            party = ready[0]
        elif lots is not None:
            stays = [other for other in ready if other[0] is last and lots.random() < 0.7]
            party = lots.choice(stays or ready)
        elif at < depth:
            if at == len(choices):
                choices.append((0, len(ready)))
            assert choices[at][1] == len(ready), "a run is not the same twice"
            party = ready[choices[at][0]]
            at += 1
        else:
            party = ready[step % len(ready)]
        place = parties.index(party)
        last = party[0]
        until = last.switch()
        if party[0].dead:
            del parties[place]
        else:
            parties[place] = (party[0], until)
        world.check()
    raise AssertionError("it does not come to an end")


def callers(world: World, fates: tuple[str, ...]) -> list[Steps]:
    return [Caller(world, f"caller {n}", fate).steps for n, fate in enumerate(fates)]


FATES = ("answered", "times out", "is killed", "meets the end")


@few_and_many(120, 3000)
@pytest.mark.parametrize("fate", FATES)
def test_a_caller_and_the_reading_thread(fate: str, count: int) -> None:
    def make(world: World) -> list[Steps]:
        return [*callers(world, (fate,)), partial(reading_thread, world)]

    assert walk(make, 7 if count < 1000 else 10) > 30
    wander(make, range(count))


@few_and_many(120, 3000)
@pytest.mark.parametrize(("fate", "other"), [*combinations_with_replacement(FATES, 2)])
def test_two_callers_and_the_reading_thread(fate: str, other: str, count: int) -> None:
    def make(world: World) -> list[Steps]:
        return [*callers(world, (fate, other)), partial(reading_thread, world)]

    assert walk(make, 4 if count < 1000 else 6) > 50
    wander(make, range(count))


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
    assert not world.turn.take(second, 10.0)
    assert not world.turn.take(third, 10.0)
    world.turn.release(first, True, False)
    assert world.turn.owner is third


def test_answers_that_nobody_reads_are_the_reading_threads(world: World) -> None:
    caller = Caller(world, "caller")
    world.turn.lend()
    assert world.turn.take(caller, 10.0)
    world.turn.release(caller, True, False)
    assert world.turn.state is TurnState.READING_THREAD
    assert world.turn.look()


def test_the_reading_thread_that_is_wanted_is_ahead_of_those_that_wait(world: World) -> None:
    caller, other = Caller(world, "caller"), Caller(world, "other")
    world.turn.lend()
    assert world.turn.take(caller, 10.0)
    assert not world.turn.take(other, 10.0)
    world.turn.release(caller, False, True)
    assert world.turn.state is TurnState.READING_THREAD
    assert world.turn.owner is None


def test_a_turn_that_is_recalled_goes_back_though_others_wait(world: World) -> None:
    caller, other = Caller(world, "caller"), Caller(world, "other")
    world.turn.lend()
    assert world.turn.take(caller, 10.0)
    assert not world.turn.take(other, 10.0)
    world.turn.recall()
    assert not world.turn.look()
    world.turn.release(caller, False, False)
    assert world.turn.look()
    assert world.turn.owner is None

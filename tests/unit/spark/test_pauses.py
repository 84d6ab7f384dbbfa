"""An idle source in a query: it waits when it is alone, and holds nobody up when it is not."""

from __future__ import annotations

import pytest

from gnsqsync.spark.pauses import LONGEST, Pauses


class Query:
    """Spark's loop over one source that gets messages and ``idle`` ones; a batch takes 0.1 s."""

    def __init__(self, idle: int) -> None:
        self.now = 0.0
        self.busy = Pauses(0.0)
        self.sources = [self.busy, *(Pauses(0.0) for _ in range(idle))]
        self.epoch = 0

    def trigger(self, due: float) -> bool:
        """Ask all sources, and run a batch if a message came at ``due``."""
        found = False
        for pauses in self.sources:
            last = max(pauses.look_at(self.now, 0.0), pauses.last_look_at(self.now))
            if pauses is self.busy and last >= due:
                found = True
                last = due
            self.now = max(self.now, last)
            pauses.answered(self.now)
        if found:
            self.epoch += 1
            for pauses in self.sources:
                pauses.committed(self.epoch if pauses is self.busy else 0, self.now)
            self.now += 0.1
        else:
            self.now += 0.01
        return found

    def delay(self, gap: float) -> float:
        """Seconds from a message that comes ``gap`` seconds from now to its batch."""
        due = self.now + gap
        while not self.trigger(due):
            pass
        return self.now - 0.1 - due


def test_a_source_alone_looks_when_its_next_look_may_be() -> None:
    pauses = Pauses(0.0)
    assert pauses.look_at(1.0, 0.5) == 1.0
    assert pauses.last_look_at(1.0) == 1.0 + LONGEST
    pauses.committed(1, 2.0)
    # After a batch, too: the question has its look before it is answered with no.
    assert pauses.look_at(3.0, 4.7) == 4.7
    pauses.answered(4.7)
    assert pauses.look_at(4.8, 6.0) == 6.0


def test_a_source_beside_others_looks_once_in_each_question() -> None:
    pauses = Pauses(0.0)
    pauses.committed(0, 2.0)
    assert pauses.last_look_at(2.1) == 2.1
    # The query is busy: at once, however dear the look is.
    assert pauses.look_at(2.1, 9.0) == 2.1
    pauses.answered(2.1)
    # The query waits: for a part of the time since its last batch,
    assert pauses.look_at(2.101, 9.0) == pytest.approx(2.1 + 0.05 * 0.101)
    assert pauses.look_at(4.0, 9.0) == 4.0
    # and until the next look may be.
    pauses.answered(62.0)
    assert pauses.look_at(62.0, 62.1) == 62.2
    assert pauses.look_at(62.0, 63.5) == 63.5
    assert pauses.look_at(62.0, 99.0) == 62.0 + 0.05 * 60.0


def test_idle_sources_cost_a_busy_one_nothing() -> None:
    query = Query(idle=9)
    query.delay(0)
    assert [query.delay(0) for _ in range(20)] == [0.0] * 20


def test_idle_sources_cost_a_part_of_the_time_between_batches() -> None:
    query = Query(idle=9)
    query.delay(0)
    query.delay(0)
    for gap in (0.5, 2.0, 7.3, 60.0):
        assert query.delay(gap) <= min(0.05 * (gap + 0.1), 0.2) + 0.011


def test_a_query_that_is_idle_asks_a_few_times_a_second() -> None:
    query = Query(idle=9)
    query.delay(0)
    query.delay(0)
    query.delay(60)
    begin, triggers = query.now + 10, 0
    query.now = begin
    while query.now < begin + 10:
        query.trigger(1e9)
        triggers += 1
    assert triggers < 60

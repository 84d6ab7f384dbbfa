"""The end of a dial, and the pause before the next one."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from gnsqsync.addresses import Address
from gnsqsync.errors import AuthFailed, ConnectionLost, NegotiationFailed, NSQError
from gnsqsync.policy.backoff import ReconnectDelays
from gnsqsync.policy.nodes import ReaderNodes
from gnsqsync.policy.redials import DialEnd, end_of_dial
from gnsqsync.policy.writer_nodes import WriterNodes

REFUSED, SILENT, TURNED_AWAY = DialEnd
A = Address("a", 4150)


def caused(by: Exception) -> NSQError:
    error = ConnectionLost("no connection")
    error.__cause__ = by
    return error


@pytest.mark.parametrize(
    ("error", "reached", "end"),
    [
        (caused(ConnectionRefusedError()), False, REFUSED),
        (caused(OSError("no route to host")), False, REFUSED),
        (caused(RuntimeError("can't start new thread")), False, REFUSED),
        (caused(TimeoutError()), False, SILENT),
        # The kernel of a frozen nsqd takes connections.
        (caused(TimeoutError()), True, SILENT),
        (caused(ConnectionResetError()), True, TURNED_AWAY),
        (ConnectionLost("nsqd closed the connection"), True, TURNED_AWAY),
        (NegotiationFailed("no TLS"), True, TURNED_AWAY),
        (AuthFailed("E_AUTH_FAILED", ""), True, TURNED_AWAY),
    ],
)
def test_the_end_of_a_dial(error: NSQError, reached: bool, end: DialEnd) -> None:
    assert end_of_dial(error, reached=reached) is end


@pytest.mark.parametrize("end", DialEnd)
def test_pauses_grow_to_the_bound_of_the_end_for_readers_and_writers(end: DialEnd) -> None:
    nodes = ReaderNodes([A], random.Random(1))
    benches = WriterNodes([A], rng=random.Random(1))
    now, pauses, times = 0.0, [], []
    for _ in range(200):
        nodes.dialling(A)
        due = nodes.ended(A, now, end)
        assert due is not None
        pauses.append(due - now)
        times.append(benches.failed(A, now, end) - now)
        now += 1000.0
    for found in (pauses, times):
        assert found[0] <= 0.5
        assert end.value * 0.95 < max(found) <= end.value
        assert end.value / 2 <= min(found[10:]) < end.value * 0.55


def test_an_outage_that_becomes_a_refusal_is_soon_seen_to_end() -> None:
    """A machine that boots is silent, then refuses, then accepts."""
    delays = ReconnectDelays(rng=random.Random(1))
    for _ in range(10):
        delays.next(SILENT.value)
    assert 2.5 <= delays.next(REFUSED.value) <= 5.0
    # And grows from there if it becomes worse.
    assert 5.0 <= delays.next(TURNED_AWAY.value) <= 10.0


def test_questions_do_not_shorten_the_pauses_of_an_nsqd_that_turns_away() -> None:
    """Found by nsqlookupds and listed at each question: it is dialled each minute all the same."""
    nodes = ReaderNodes([], random.Random(1))
    now, dials = 0.0, []
    nodes.discovered("lookup1", {A}, now)
    while len(dials) < 20:
        assert nodes.due(now) == [A]
        dials.append(now)
        nodes.dialling(A)
        assert nodes.connected(A, now)
        asked_at = nodes.ended(A, now)
        assert asked_at is not None and nodes.ask(asked_at)
        nodes.discovered("lookup1", {A}, asked_at)
        now = asked_at
    assert all(30.0 <= after - before <= 60.0 for before, after in pairwise(dials[10:]))

"""When the log may forget a message: the two rules, and each way in which they do not hold."""

from __future__ import annotations

from typing import Any

import pytest

from gnsqsync.spark.plan import Source
from gnsqsync.spark.returns import Look, Returns

A = Source("a:4150", "t")
B = Source("b:4150", "t")
# nsqd has run since 5, two messages came back, none is held, 100 wait.
QUIET = Look(born=5, returned=2, held=0, waiting=100)


def judged(*looks: Look) -> list[bool]:
    """Return for epochs 1, 2, ... if they are in doubt, with a look before each and after all."""
    returns = Returns()
    for epoch, look in enumerate(looks):
        returns.looked(epoch, {A: look})
        returns.planned(epoch + 1, {A})
    return [returns.in_doubt(A, epoch) for epoch in range(1, len(looks))]


def test_an_epoch_between_two_quiet_looks_is_finished() -> None:
    assert judged(QUIET, QUIET, QUIET) == [False, False]


@pytest.mark.parametrize(
    "change",
    [
        {"returned": 3},  # a timeout or a requeue
        {"born": 6},  # nsqd was restarted, and counts anew
        {"held": 1},
    ],
)
def test_an_epoch_is_in_doubt(change: dict[str, Any]) -> None:
    assert judged(QUIET, QUIET._replace(**change)) == [True]


def test_a_message_that_is_held_for_a_while_and_finished() -> None:
    held = QUIET._replace(held=1)
    assert judged(QUIET, held, QUIET) == [False, False]
    assert judged(QUIET, held, QUIET._replace(returned=3)) == [True, True]
    # Held before the first look: it may be of an epoch before.
    assert judged(held, QUIET, QUIET) == [True, False]


def test_doubt_stays_until_the_channel_is_empty() -> None:
    back = QUIET._replace(returned=3)
    empty = back._replace(waiting=0)
    assert judged(QUIET, back, back) == [True, False]
    assert judged(QUIET, back, empty) == [False, False]
    # A message is on its way back into the channel.
    assert judged(QUIET, QUIET._replace(returned=3, waiting=0)) == [True]


def test_sources_are_judged_each_for_itself() -> None:
    returns = Returns()
    returns.looked(0, {A: QUIET, B: QUIET})
    returns.planned(1, {A, B})
    returns.looked(1, {A: QUIET, B: QUIET._replace(returned=3)})
    assert not returns.is_finished(1)
    assert [returns.in_doubt(source, 1) for source in (A, B)] == [False, True]
    returns.looked(1, {B: QUIET._replace(returned=3, waiting=0)})
    assert returns.is_finished(1)
    assert returns.drained() == {B: 1}


def test_messages_of_unknown_fate_are_in_doubt() -> None:
    returns = Returns()
    assert returns.in_doubt(A, 1)
    assert not returns.is_finished(1)
    returns.planned(1, {A})
    returns.looked(1, {A: QUIET})
    assert returns.in_doubt(A, 1)


def test_deleted_epochs_are_forgotten() -> None:
    returns = Returns()
    for epoch in range(3):
        returns.looked(epoch, {A: QUIET})
        returns.planned(epoch + 1, {A})
    returns.forget(2)
    assert returns.in_doubt(A, 1)
    assert not returns.in_doubt(A, 2)


def test_looks_go_through_json() -> None:
    import json

    looks = {A: QUIET, B: QUIET._replace(held=1)}
    assert Returns.loaded(json.loads(json.dumps(Returns.stored(looks)))) == looks

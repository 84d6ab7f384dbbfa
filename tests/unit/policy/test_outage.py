"""When nsqds that are away are an outage."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnsqsync.addresses import Address
from gnsqsync.errors import (
    AuthFailed,
    ConnectionLost,
    NegotiationFailed,
    NSQError,
    Unauthorized,
    WrongPort,
)
from gnsqsync.policy.outage import REFUSED, Outage

A, B = (Address(name, 4150) for name in "ab")
NO = ConnectionLost("refused")
LATE = ConnectionLost("no answer")
SILENT = 5.0


def outage(refused: float = REFUSED, silent: float = SILENT) -> Outage:
    return Outage(refused, silent, random.Random(5))


def refuse(outage: Outage, address: Address, now: float) -> None:
    outage.begun(address, now)
    outage.failed(address, now, now, NO, silent=False)


def test_an_nsqd_that_was_not_tried_may_work() -> None:
    assert outage().due([A]) == math.inf


def test_a_second_of_refusals_is_an_outage() -> None:
    it = outage()
    for now in (10.0, 10.1, 10.9):
        refuse(it, A, now)
        assert it.due([A]) == 11.0
    assert it.since([A]) == 10.0
    assert it.errors([A]) == [NO]


def test_silence_is_an_outage_after_its_time_also_while_the_dial_goes_on() -> None:
    it = outage()
    it.begun(A, 10.0)
    assert it.due([A]) == 15.0
    assert [str(error) for error in it.errors([A])] == ["a:4150 does not answer"]
    it.failed(A, 10.0, 12.0, LATE, silent=True)
    it.begun(A, 12.1)
    assert it.due([A]) == 15.0
    assert it.errors([A]) == [LATE]


def test_silence_between_refusals_begins_them_anew() -> None:
    it = outage()
    refuse(it, A, 10.0)
    it.failed(A, 10.1, 10.8, LATE, silent=True)
    assert it.due([A]) == 15.0
    refuse(it, A, 12.0)
    assert it.due([A]) == 13.0
    refuse(it, A, 14.9)
    assert it.due([A]) == 13.0


def test_a_publish_without_an_answer_is_silence_from_its_beginning() -> None:
    it = outage()
    it.failed(A, 10.0, 15.0, LATE, silent=True)
    assert it.due([A]) == 15.0
    it.works(A)
    assert it.due([A]) == math.inf


@pytest.mark.parametrize(
    "error",
    [
        WrongPort("HTTP"),
        NegotiationFailed("no TLS"),
        AuthFailed("E_AUTH_FAILED"),
        Unauthorized("E_UNAUTHORIZED"),
    ],
)
@pytest.mark.parametrize("silent", [SILENT, math.inf])
def test_an_error_that_a_retry_cannot_mend_is_an_outage_at_once(
    error: NSQError, silent: float
) -> None:
    it = outage(silent, silent)
    it.begun(A, 10.0)
    it.failed(A, 10.0, 10.1, error, silent=False)
    assert it.due([A]) <= 10.1


def test_an_outage_needs_the_failure_of_all_nsqds() -> None:
    it = outage()
    refuse(it, A, 10.0)
    assert it.due([A, B]) == math.inf
    it.begun(B, 20.0)
    assert it.due([A, B]) == 25.0
    assert it.since([A, B]) == 20.0
    refuse(it, B, 21.0)
    assert it.due([A, B]) == 22.0
    it.connected(B)
    assert it.due([A, B]) == math.inf


def test_no_address_at_all_is_silence() -> None:
    it = outage()
    assert it.due([]) == math.inf
    it.begun(None, 10.0)
    it.begun(None, 11.0)
    assert it.due([]) == 15.0
    it.works(None)
    assert it.due([]) == math.inf


def test_an_nsqd_that_is_no_longer_listed_is_forgotten() -> None:
    it = outage()
    refuse(it, A, 10.0)
    it.begun(None, 10.0)
    it.forget_others([B])
    assert it.due([A]) == math.inf
    assert it.due([]) == 15.0


def test_a_writer_that_waits_has_no_outage() -> None:
    it = outage(math.inf, math.inf)
    refuse(it, A, 10.0)
    assert it.due([A]) == math.inf


def test_dials_come_quickly_for_a_second_and_then_a_few_seconds_apart() -> None:
    it = outage()
    assert it.pause(A, 10.0) == 0.0
    now, dials = 10.0, []
    while now < 70.0:
        refuse(it, A, now)
        dials.append(now)
        now += it.pause(A, now)
    assert 10 <= len([at for at in dials if at < 11.0]) <= 20
    gaps = [late - early for early, late in itertools.pairwise(dials)]
    assert max(gaps) <= 3.0
    assert min(gaps[-10:]) >= 1.5


def test_a_wrong_port_is_not_dialled_quickly() -> None:
    it = outage()
    it.failed(A, 10.0, 10.0, WrongPort("HTTP"), silent=False)
    assert it.pause(A, 10.0) >= 0.25


def test_an_nsqd_that_takes_no_publish_is_dialled_less_and_less_often() -> None:
    it = outage()
    for n in range(4):
        it.failed(A, 10.0 * n, 10.0 * n + 5.0, LATE, silent=True)
        assert it.due([A]) == 10.0 * n + 5.0
        pause = it.pause(A, 10.0 * n + 5.0)
        it.connected(A)
    assert pause >= 1.5


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([A, B]), st.sampled_from(["no", "late", "up", "ok"]), st.floats(0, 9)
        )
    )
)
def test_whatever_happens(steps: list[tuple[Address, str, float]]) -> None:
    """It is due not before all have failed, and not later than silence would be."""
    it, now, away = outage(), 0.0, {A: math.inf, B: math.inf}
    for address, what, later in steps:
        began, now = now, now + later
        if what == "up":
            it.connected(address)
        elif what == "ok":
            it.works(address)
        else:
            it.failed(address, began, now, NO if what == "no" else LATE, silent=what == "late")
        if what in ("up", "ok"):
            away[address] = math.inf
        else:
            away[address] = min(away[address], began)
        due = it.due([A, B])
        latest = max(away.values()) + SILENT
        assert due <= latest
        if latest < math.inf:
            assert it.since([A, B]) == max(away.values())
            assert len(it.errors([A, B])) == 2
        else:
            assert due == math.inf
        assert all(it.pause(address, now) <= 3.0 for address in (A, B))

"""The short form of ``python -m tests.chaos.copies``."""

from __future__ import annotations

import pytest

from tests.chaos.copies import run
from tests.support import realnsq
from tests.support.needs import missing


@pytest.fixture(autouse=True)
def real() -> None:
    try:
        realnsq.find_or_build()
    except realnsq.Unavailable as error:
        missing(error)


def test_two_nsqds_die_with_their_data() -> None:
    account = run(2)
    assert account.kills == 2 and len(account.acknowledged) > 500
    assert (account.missing, account.twice) == (set(), 0), account


def test_without_the_window_there_are_twins() -> None:
    assert run(0, window=False).twice or run(1, window=False).twice

"""``python -m tests.chaos.once``: a short run, five minutes, and each part switched off."""

from __future__ import annotations

import pytest

from tests.chaos.once import Account, run
from tests.support import realnsq, seeds
from tests.support.databases import Unavailable
from tests.support.needs import missing


@pytest.fixture(autouse=True)
def real() -> None:
    try:
        realnsq.find_or_build()
    except realnsq.Unavailable as error:
        missing(error)


def account_of(minutes: float, seed: int, without: str = "", patience: float = 60.0) -> Account:
    try:
        return run(minutes, seed, without=without, patience=patience)
    except Unavailable as error:
        missing(error)


def test_everything_is_killed_and_each_effect_is_there_once() -> None:
    account = account_of(0.25, 1)
    assert account.is_right, account
    assert account.kills.total() >= 3 and len(account.told) > 50, account


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("without", "says"),
    [
        ("outbox", "a transfer that was never given"),
        ("inbox", "a transfer that was given twice"),
        ("copies", "a transfer that was never given"),
    ],
)
def test_without_one_part_something_is_wrong(without: str, says: str) -> None:
    # Chance decides what is struck: another seed gets a turn.
    accounts = []
    for seed in range(1, 7):
        accounts.append(account_of(0.3, seed, without, patience=3.0))
        if accounts[-1].wrong[says]:
            return
    raise AssertionError("\n".join(map(str, accounts)))


@pytest.mark.timeout(900)
def test_five_minutes() -> None:
    account = account_of(5, seeds.seed())
    print(account)
    assert account.is_right, account

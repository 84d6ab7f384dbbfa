"""Plans in the log: created once, adopted, refused; whose log it is; rows that nobody committed."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from gnsqsync.errors import ConfigError
from gnsqsync.spark.plan import Offset, Part, Source, first_offset, next_offset
from gnsqsync.spark.plans import Plans, TwoDrivers, check_identity, refuse_orphans
from gnsqsync.spark.returns import Look, Returns
from gnsqsync.spark.wal import LogDamaged, Wal
from tests.support.memory_store import Memory
from tests.unit.spark.test_wal import entry

START = first_offset("s", "c")


@pytest.fixture
def wal() -> Wal:
    return Wal(Memory(), "s")


def epoch(number: int, budget: int = 5) -> Offset:
    return next_offset({**START, "epoch": number - 1}, [Part("a:4150", "t", budget)])


def driver(wal: Wal, *, strict: bool = True) -> Plans:
    return Plans(wal, strict=strict)


def test_a_plan_that_spark_does_not_know_is_adopted(wal: Wal) -> None:
    first = driver(wal)
    assert first.next(START) is None
    first.create(epoch(1, 7), {})
    # The same driver asked again, and the next one.
    assert first.next(START) == driver(wal).next(START) == epoch(1, 7)


def test_plans_are_adopted_one_after_another(wal: Wal) -> None:
    first = driver(wal)
    for number in (1, 2, 3):
        first.create(epoch(number, number), {})
    second = driver(wal)
    assert second.next(epoch(1)) == epoch(2, 2)
    assert second.next(epoch(2)) == epoch(3, 3)
    assert second.next(epoch(3)) is None


def test_one_of_two_drivers_stops(wal: Wal) -> None:
    one, two = driver(wal), driver(wal)
    assert one.next(START) is two.next(START) is None
    one.create(epoch(1, 7), {})
    with pytest.raises(TwoDrivers, match=r"another driver has planned epoch 1.*stop one of them"):
        two.create(epoch(1, 9), {})
    assert driver(wal).next(START) == epoch(1, 7)


def test_a_create_whose_answer_got_lost(wal: Wal, monkeypatch: pytest.MonkeyPatch) -> None:
    create = wal.store.create

    def answer_lost(name: str, data: bytes) -> bool:
        create(name, data)
        return False

    monkeypatch.setattr(wal.store, "create", answer_lost)
    driver(wal).create(epoch(1), {})


@pytest.mark.parametrize("left", ["entries", "a later plan", "the marker"])
def test_an_epoch_without_its_plan_is_never_planned_anew(wal: Wal, left: str) -> None:
    if left == "entries":
        wal.create(1, 0, 0, entry("a"))
    elif left == "a later plan":
        driver(wal).create(epoch(2), {})
    else:
        wal.commit(1, 0, 0)
    with pytest.raises(LogDamaged, match=r"the plan of epoch 1 is gone.*failOnDataLoss=false"):
        driver(wal).next(START)
    loose = driver(wal, strict=False)
    assert loose.next(START) is None
    newest = 2 if left == "a later plan" else 1
    assert loose.base(START)["epoch"] == newest


def test_a_plan_whose_entries_are_deleted_is_refused(wal: Wal) -> None:
    driver(wal).create(epoch(1), {})
    wal.store.put("s/committed", b"[1, 2]")
    with pytest.raises(LogDamaged, match="epoch 1 is gone"):
        driver(wal).next(START)


@pytest.mark.parametrize("how", [b"", b'{"offset": ', None])
def test_a_damaged_plan_is_named(wal: Wal, how: bytes | None) -> None:
    driver(wal).create(epoch(1, 5), {})
    name = wal.plan_name(1)
    data = wal.store.read(name)
    assert data is not None
    wal.store.put(name, data.replace(b'"n": 5', b'"n": 4') if how is None else how)
    with pytest.raises(LogDamaged, match=rf"{name} in memory is damaged"):
        driver(wal).next(START)


def test_the_plan_of_an_older_version_is_put_into_the_log(wal: Wal) -> None:
    driver(wal).confirm(epoch(1, 7))
    assert driver(wal).next(START) == epoch(1, 7)
    driver(wal).confirm(epoch(1, 7))
    with pytest.raises(LogDamaged, match="different plans of epoch 1"):
        driver(wal).confirm(epoch(1, 8))


def test_plans_that_earlier_drivers_made(wal: Wal) -> None:
    source = Source("a:4150", "t")
    plans = driver(wal)
    plans.create(epoch(1), {source: Look(5, 0, 0, 7)})
    plans.create(epoch(2), {source: Look(5, 0, 0, 4)})
    plans.create(epoch(3), {source: Look(5, 1, 0, 4)})
    returns = Returns()
    driver(wal).history(returns, 3)
    assert [returns.in_doubt(source, number) for number in (1, 2, 3)] == [False, True, True]


@pytest.mark.parametrize(
    ("stored", "sentence"),
    [
        ({"channel": "old"}, r"'channel' is 'c', and the log belongs to channel 'old'"),
        ({"channel": "c", "topics": ["t", "u"]}, r"'subscribe' is 't', .* to 't,u': add 'u'"),
        (next_offset(START, [Part("a", "u", 1)]), r"'subscribe' is 't'.*belongs to 'u'"),
    ],
)
def test_another_channel_or_topic_is_refused(stored: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_identity(stored, "c", ["t"], "the log")


def test_a_topic_more_is_no_other_log() -> None:
    check_identity({"channel": "c", "topics": ["t"]}, "c", ["t", "u"], "the log")
    check_identity({}, "c", ["t"], "the log")


def test_rows_of_a_stream_that_spark_forgot(wal: Wal) -> None:
    old = Wal(wal.store, "old")
    old.create(1, 0, 0, entry("a"))
    assert "has rows of channel 'c'" in refuse_orphans(wal, {"s"}, "c", ["t"])
    assert "in old" in refuse_orphans(wal, {"s"}, "c", ["t"])
    for known, channel, topic in [("old", "c", "t"), ("s", "other", "t"), ("s", "c", "other")]:
        assert refuse_orphans(wal, {known}, channel, [topic]) == ""
    old.commit(1, 0, 0)
    assert refuse_orphans(wal, {"s"}, "c", ["t"]) == ""


def test_a_stream_without_rows_is_no_orphan(wal: Wal) -> None:
    from dataclasses import replace

    from gnsqsync.spark.rows import open_entry

    end = replace(open_entry(entry(end=True)), tally={"received": 0})
    Wal(wal.store, "old").create(1, 0, 0, end.encode())
    assert refuse_orphans(wal, {"s"}, "c", ["t"]) == ""


def test_a_plan_is_json(wal: Wal) -> None:
    driver(wal).create(epoch(1, 7), {})
    data = wal.store.read(wal.plan_name(1))
    assert data is not None
    assert json.loads(data)["offset"] == epoch(1, 7)

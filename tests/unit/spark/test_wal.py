"""The log over any store: markers, what is kept how long, which ids it has, what is pending."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

pa = pytest.importorskip("pyarrow")

from gnsqsync.errors import ConfigError  # noqa: E402
from gnsqsync.spark import seen as seen_module  # noqa: E402
from gnsqsync.spark.plan import Part, Source, first_offset, next_offset  # noqa: E402
from gnsqsync.spark.plans import Plans  # noqa: E402
from gnsqsync.spark.returns import Look, Returns  # noqa: E402
from gnsqsync.spark.rows import Entry, Head  # noqa: E402
from gnsqsync.spark.seen import IdKeeper, Seen  # noqa: E402
from gnsqsync.spark.stores import FileStore  # noqa: E402
from gnsqsync.spark.wal import LogDamaged, Marker, Wal, pending  # noqa: E402
from tests.support.memory_store import Memory  # noqa: E402

NSQD = "127.0.0.1:4150"


@pytest.fixture
def store() -> Memory:
    return Memory()


def entry(*ids: str, nsqd: str = NSQD, topic: str = "t", end: bool = False) -> bytes:
    rows = [SimpleNamespace(body=b"x", id=i, timestamp=0, attempts=1) for i in ids]
    where = SimpleNamespace(topic=topic, channel="c", nsqd=nsqd)
    return Entry.of(rows, [0] * len(rows), where, end).encode()


# -- entries and markers --------------------------------------------------------------------------


def test_entries_are_created_once(store: Memory) -> None:
    wal = Wal(store, "s")
    assert wal.read(3, 1, 0) is None
    assert wal.create(3, 1, 0, entry("a"))
    assert not wal.create(3, 1, 0, entry("b"))
    read = wal.read(3, 1, 0)
    assert read is not None
    assert read.ids.to_pylist() == ["a"]
    assert store.list() == ["s/e=3/p=1/000000.arrow"]


def test_a_damaged_entry_is_named(store: Memory) -> None:
    wal = Wal(store, "s")
    wal.create(3, 1, 0, b"half an entr")
    with pytest.raises(LogDamaged, match=r"s/e=3/p=1/000000\.arrow in memory"):
        wal.read(3, 1, 0)


def test_a_task_that_does_not_see_the_storage_says_so(store: Memory) -> None:
    Wal(store, "s").announce()
    Wal(store, "s").check_announced()
    with pytest.raises(LogDamaged, match="set walPath to storage that all of them share"):
        Wal(Memory(), "s").check_announced()


def test_announcing_again_changes_nothing(store: Memory) -> None:
    Wal(store, "s").announce()
    Wal(store, "s").announce()
    assert store.done.count("put s/plan") == 1


def test_nothing_is_committed_at_first(store: Memory) -> None:
    assert Wal(store, "s").marker() == Marker(-1, 0)


# -- retention ------------------------------------------------------------------------------------


def test_a_committed_epoch_is_kept_for_its_time(store: Memory) -> None:
    wal = Wal(store, "s", retention=60)
    for epoch, now in enumerate([0, 10, 59, 60, 69, 70]):
        wal.create(epoch, 0, 0, entry("a"))
        wal.commit(epoch, now, 0)
        assert wal.marker().committed == epoch
        if now == 59:
            assert (wal.marker().keep_from, wal.epochs()) == (0, [0, 1, 2])
        if now == 69:
            assert (wal.marker().keep_from, wal.epochs()) == (1, [1, 2, 3, 4])
    assert (wal.marker().keep_from, wal.epochs()) == (2, [2, 3, 4, 5])


def test_the_marker_is_written_before_anything_is_deleted(store: Memory) -> None:
    wal = Wal(store, "s", retention=0)
    wal.create(0, 0, 0, entry("a"))
    wal.create(0, 1, 0, entry("b"))
    store.done.clear()
    wal.commit(0, 0, 0)
    changes = [what for what in store.done if not what.startswith(("read", "head"))]
    assert changes == [
        "put s/committed",
        "delete s/e=0/p=0/000000.arrow",
        "delete s/e=0/p=1/000000.arrow",
        "delete s/plans/000000000000.json",
    ]
    assert wal.marker() == Marker(committed=0, keep_from=1)


def test_after_a_restart_old_epochs_are_kept_once_more_and_then_go(store: Memory) -> None:
    first = Wal(store, "s", retention=60)
    for epoch in (0, 1, 2):
        first.create(epoch, 0, 0, entry("a"))
        first.commit(epoch, 1000, 0)
    # Another process, with another clock.
    second = Wal(store, "s", retention=60)
    second.create(3, 0, 0, entry("a"))
    second.commit(3, 5, 0)
    assert second.epochs() == [0, 1, 2, 3]
    second.commit(4, 65, 0)
    assert second.epochs() == []
    assert second.marker() == Marker(4, 4)


def test_runs_that_are_shorter_than_the_retention_delete_old_epochs(store: Memory) -> None:
    # An hour apart, and each commits what the one before it read.
    for run in range(1, 5):
        wal = Wal(store, "s", retention=60)
        wal.create(run, 0, 0, entry("a"))
        wal.commit(run - 1, 7, 3600 * run)
        wal.create(run + 1, 0, 0, entry("a"))
        assert wal.epochs() == [epoch for epoch in (run - 1, run, run + 1) if epoch]


def test_a_restart_within_the_retention_deletes_nothing(store: Memory) -> None:
    for run, today in enumerate((1000, 1030, 900)):
        wal = Wal(store, "s", retention=60)
        wal.create(run, 0, 0, entry("a"))
        # The clock of the third one is behind.
        wal.commit(run, 7, today)
        assert wal.epochs() == list(range(run + 1))


def test_entries_that_a_killed_driver_did_not_delete_are_deleted_later(store: Memory) -> None:
    wal = Wal(store, "s", retention=60)
    for epoch in (0, 1):
        wal.create(epoch, 0, 0, entry("a"))
    # It died between the marker and the deletion.
    store.put("s/committed", b"[1, 2]")
    wal.commit(2, 0, 0)
    wal.commit(3, 60, 0)
    assert wal.epochs() == []
    assert wal.marker() == Marker(3, 3)


def test_a_commit_that_comes_again_takes_nothing_back(store: Memory) -> None:
    wal = Wal(store, "s", retention=60)
    wal.create(5, 0, 0, entry("a"))
    wal.commit(5, 0, 0)
    wal.commit(5, 1, 0)
    Wal(store, "s", retention=60).commit(4, 0, 0)
    assert wal.marker() == Marker(5, 0)
    assert wal.epochs() == [5]


# -- which ids it has -----------------------------------------------------------------------------


def test_ids_of_the_kept_epochs_of_this_nsqd_and_topic(store: Memory) -> None:
    wal = Wal(store, "s")
    wal.create(1, 0, 0, entry("deleted"))
    wal.create(2, 0, 0, entry("a", "b"))
    wal.create(2, 1, 0, entry("other nsqd", nsqd="127.0.0.1:4250"))
    wal.create(3, 0, 0, entry("c"))
    wal.create(3, 0, 1, entry("other topic", topic="u"))
    Wal(store, "another stream").create(3, 0, 0, entry("elsewhere"))
    store.put("s/committed", b"[2, 2]")
    wanted = ["a", "c", "d", "deleted", "other nsqd", "other topic", "elsewhere"]
    assert Seen(wal, NSQD, "t").among(wanted) == {"a", "c"}


def test_an_entry_is_read_once_and_new_ones_are_seen(store: Memory) -> None:
    wal = Wal(store, "s")
    wal.create(0, 0, 0, entry("a"))
    seen = Seen(wal, NSQD, "t")
    assert seen.among(["a", "b"]) == {"a"}
    wal.create(0, 0, 1, entry("b"))
    assert seen.among(["a", "b"]) == {"a", "b"}
    assert store.read_entries() == ["s/e=0/p=0/000000.arrow", "s/e=0/p=0/000001.arrow"]


def test_an_entry_deleted_meanwhile_is_forgotten(store: Memory) -> None:
    wal = Wal(store, "s", retention=0)
    wal.create(0, 0, 0, entry("a"))
    seen = Seen(wal, NSQD, "t")
    assert seen.among(["a"]) == {"a"}
    wal.commit(0, 0, 0)
    assert seen.among(["a"]) == set()


# -- pending --------------------------------------------------------------------------------------


def test_pending_epochs_are_listed_and_read(tmp_path: Path) -> None:
    assert pending(str(tmp_path)) == []
    store = FileStore(str(tmp_path))
    wal = Wal(store, "s")
    wal.announce()
    wal.create(0, 0, 0, entry("committed", end=True))
    wal.create(1, 0, 0, entry("a"))
    wal.create(1, 0, 1, entry("b", "c", end=True))
    wal.create(1, 1, 0, entry("d", nsqd="127.0.0.1:4250", topic="u", end=True))
    wal.create(2, 0, 0, entry(end=True))
    wal.commit(0, 0, 0)
    (first,) = pending(f"file://{tmp_path}")
    assert (first.stream, first.epoch, first.rows) == ("s", 1, 4)
    assert first.nsqds == (NSQD, "127.0.0.1:4250")
    assert first.topics == ("t", "u")
    assert [batch.to_pydict() for batch in first.batches(["id"])] == [
        {"id": ["a"]},
        {"id": ["b", "c"]},
        {"id": ["d"]},
    ]
    assert "_wal" not in repr(first)


def test_pending_of_what_is_no_log() -> None:
    with pytest.raises(ConfigError):
        pending("hdfs://somewhere")


def test_tallies_of_the_last_entries(store: Memory) -> None:
    wal = Wal(store, "s")
    assert wal.last_heads(1, 2) == [None, None]
    wal.create(1, 0, 0, entry("a"))
    assert wal.last_heads(1, 1) == [None]
    told = Entry.of([], [], SimpleNamespace(topic="t", channel="c", nsqd=NSQD), True, "away")
    wal.create(1, 0, 1, replace(told, tally={"received": 1, "seconds": 0.5}).encode())
    # An error longer than what is read of an entry first.
    wal.create(1, 2, 0, replace(told, problem="long " * 4000).encode())
    first, second, third = wal.last_heads(1, 3)
    tally = {"received": 1, "seconds": 0.5}
    assert first == Head(True, "away", tally, "t", "c", NSQD, low="", high="")
    assert second is None
    assert third is not None
    assert len(third.problem) == 20_000
    store.put("s/e=1/p=1/000000.arrow", b"no entry")
    with pytest.raises(LogDamaged, match=r"p=1/000000\.arrow"):
        wal.last_heads(1, 2)


# -- damage and old logs --------------------------------------------------------------------------


def test_only_the_entries_that_can_have_an_id_are_read(store: Memory) -> None:
    wal = Wal(store, "s")
    parts = [Part(NSQD, "t", 9), Part("127.0.0.1:4250", "t", 9)]
    Plans(wal, strict=True).create(next_offset(first_offset("s", "c"), parts), {})
    wal.create(1, 0, 0, entry("b", "d"))
    wal.create(1, 0, 1, entry("f", "h"))
    wal.create(1, 1, 0, entry("b", nsqd="127.0.0.1:4250"))
    seen = Seen(wal, NSQD, "t")
    assert seen.among(["b", "c"]) == {"b"}
    assert store.read_entries() == ["s/e=1/p=0/000000.arrow"]
    # Not even the head of another nsqd's entry was read.
    assert not any(what.endswith("p=1/000000.arrow") for what in store.done if "create" not in what)


def test_a_gap_before_an_end_is_named(store: Memory) -> None:
    wal = Wal(store, "s")
    for number in range(3):
        wal.create(1, 0, number, entry("a", end=number == 2))
    assert [head is not None and head.end for head in wal.last_heads(1, 1)] == [True]
    store.delete(["s/e=1/p=0/000001.arrow"])
    for look in (lambda: wal.last_heads(1, 1), lambda: Seen(wal, NSQD, "t").among(["a"])):
        with pytest.raises(LogDamaged, match=r"p=0/000001\.arrow in memory.*it is missing"):
            look()


@pytest.mark.parametrize("data", [b"", b"[3", b'{"a": 1}', b"[1, 3]", b'["a", 1]'])
def test_a_damaged_marker_is_named(store: Memory, data: bytes) -> None:
    store.put("s/committed", data)
    with pytest.raises(LogDamaged, match=r"s/committed in memory is damaged"):
        Wal(store, "s").marker()


# -- ids that outlive their entries ---------------------------------------------------------------


def test_ids_in_doubt_outlive_their_entries(store: Memory) -> None:
    wal = Wal(store, "s", retention=0)
    source, returns = Source(NSQD, "t"), Returns()
    keeper = IdKeeper(wal, returns)
    wal.create(1, 0, 0, entry("b", "a"))
    wal.create(1, 1, 0, entry("other", nsqd="127.0.0.1:4250"))
    wal.commit(1, 0, 0, keeper.keep)
    assert wal.epochs() == []
    assert Seen(wal, NSQD, "t").among(["a", "b", "c", "other"]) == {"a", "b"}
    # Nobody holds anything, and the channel is empty.
    for _ in range(2):
        returns.looked(1, {source: Look(1, 0, 0, 0)})
    keeper.drop()
    assert Seen(wal, NSQD, "t").among(["a", "b"]) == set()
    assert len(store.list("s/ids")) == 1


def test_finished_epochs_leave_no_ids(store: Memory) -> None:
    wal = Wal(store, "s", retention=0)
    source, returns = Source(NSQD, "t"), Returns()
    returns.looked(0, {source: Look(1, 0, 0, 9)})
    returns.planned(1, {source})
    returns.looked(1, {source: Look(1, 0, 0, 8)})
    wal.create(1, 0, 0, entry("a"))
    store.done.clear()
    wal.commit(1, 0, 0, IdKeeper(wal, returns).keep)
    assert store.list("s/ids") == store.read_entries() == []


def test_an_id_is_found_while_its_entry_is_deleted(
    store: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = Wal(store, "s", retention=0)
    wal.create(1, 0, 0, entry("a"))
    seen = Seen(wal, NSQD, "t")
    read = wal.read_named

    def late(name: str) -> Entry | None:
        monkeypatch.setattr(wal, "read_named", read)
        wal.commit(1, 0, 0, IdKeeper(wal, Returns()).keep)
        return read(name)

    monkeypatch.setattr(wal, "read_named", late)
    assert seen.among(["a"]) == {"a"}


def test_the_ids_of_a_stream_have_a_limit(
    store: Memory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wal = Wal(store, "s", retention=0)
    keeper = IdKeeper(wal, Returns())
    for epoch in (1, 2):
        wal.create(epoch, 0, 0, entry(f"id{epoch}"))
        wal.commit(epoch, 0, 0, keeper.keep)
    size = sum(store.sizes("s/ids").values())
    monkeypatch.setattr(seen_module, "MOST_BYTES", size + 10)
    wal.create(3, 0, 0, entry("id3"))
    wal.commit(3, 0, 0, keeper.keep)
    assert Seen(wal, NSQD, "t").among(["id1", "id2", "id3"]) == {"id2", "id3"}
    assert "the ids of epoch 1 are deleted" in caplog.text


def test_a_damaged_entry_keeps_no_commit_from_being_written(
    store: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    wal = Wal(store, "s", retention=0)
    wal.create(1, 0, 0, b"no entry")
    wal.commit(1, 0, 0, IdKeeper(wal, Returns()).keep)
    assert wal.marker() == Marker(1, 2)
    assert "the ids of epoch 1 cannot be kept whole" in caplog.text


@pytest.mark.parametrize("cut", [True, False])
def test_damaged_ids_are_named(store: Memory, cut: bool) -> None:
    wal = Wal(store, "s", retention=0)
    wal.create(1, 0, 0, entry("a"))
    wal.commit(1, 0, 0, IdKeeper(wal, Returns()).keep)
    (name,) = store.list("s/ids")
    data = store.names[name]
    store.names[name] = data[:-30] if cut else data[:40] + bytes([data[40] ^ 1]) + data[41:]
    with pytest.raises(LogDamaged, match=r"ids/t_.* is damaged"):
        Seen(wal, NSQD, "t").among(["a"])

"""Compaction: small files become large ones, each row once at any moment, whoever dies when."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from gnsqsync.errors import ConfigError, NSQError
from gnsqsync.spark.jobs import compact, compaction, parquet
from gnsqsync.spark.jobs.layout import (
    CHANGED,
    HIDDEN,
    MERGES,
    MERGING,
    Place,
    changed_name,
    old_name,
)
from gnsqsync.spark.jobs.snapshot import folders, snapshot
from gnsqsync.spark.stores import Store
from tests.spark import compactions
from tests.spark.compactions import FOLDERS, add, read, values
from tests.support.mortal import Killed, MortalStore


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(str(tmp_path / "archive"))


@pytest.fixture
def store(place: Place) -> Store:
    """An archive with rows 0 to 39, four files in each of two hours."""
    store = place.open()
    for number in range(8):
        add(store, FOLDERS[number % 2], range(number * 5, number * 5 + 5), f"part-a-{number}")
    return store


def plain(store: Store) -> Counter[int]:
    """What everybody reads who knows Parquet only."""
    return values(store, [name for folder in FOLDERS for name in store.list(folder)])


def test_small_files_are_merged(store: Store, place: Place) -> None:
    assert compact(place.path) == (2, 8, 2)
    assert [len(store.list(folder)) for folder in FOLDERS] == [1, 1]
    assert plain(store) == read(store) == Counter(range(40))
    # Nothing has come since; both hours are quiet.
    assert compact(place.path) == (0, 0, 0)
    add(store, FOLDERS[0], range(40, 45), "part-a-8")
    assert compact(place.path) == (1, 2, 1)
    assert plain(store) == read(store) == Counter(range(45))
    assert store.list(CHANGED) == store.list(MERGING) == []


def test_whole_looks_at_every_folder(store: Store, place: Place) -> None:
    store.delete_folder(CHANGED)
    assert compact(place.path).merged == 0
    assert compact(place.path, whole=True).merged == 8


def test_rows_and_row_groups_stay(store: Store, place: Place) -> None:
    from pyarrow import parquet as pq

    add(store, FOLDERS[0], range(40, 40), "part-a-empty")
    compact(place.path, compression="gzip")
    (name,) = store.list(FOLDERS[0])
    with store.reading(name) as file:
        found = pq.ParquetFile(file)
        assert found.metadata.num_row_groups == 1
        assert found.metadata.row_group(0).column(0).compression == "GZIP"
        assert found.schema_arrow.equals(parquet.schema())


def test_a_folder_that_changes_meanwhile_is_looked_at_again(
    store: Store, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = parquet.count

    def count_late(store: Store, name: str) -> int:
        monkeypatch.setattr(parquet, "count", count)
        add(store, FOLDERS[0], range(40, 45), "part-a-8")
        return count(store, name)

    monkeypatch.setattr(parquet, "count", count_late)
    assert compact(place.path).merged == 8
    assert compact(place.path) == (1, 2, 1)
    assert plain(store) == Counter(range(45))


def test_a_batch_that_is_not_finished_stays(store: Store, place: Place) -> None:
    """Its driver will look for the files."""
    names = store.list(FOLDERS[0])[:3]
    record = {"batch": 7, "done": False, "files": [["gone", name] for name in names]}
    store.put(f"{HIDDEN}/stream/batches/000000000007.json", json.dumps(record).encode())
    compact(place.path)
    assert set(names) <= set(store.list(FOLDERS[0]))
    assert plain(store) == Counter(range(40))


def test_a_merge_that_loses_rows_changes_nothing(
    store: Store, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = parquet.read

    def lossy(*args: object) -> object:
        for batch in rows(*args):  # type: ignore[arg-type]
            yield batch.slice(1)

    before = store.list(FOLDERS[0])
    with monkeypatch.context() as patch:
        patch.setattr(parquet, "read", lossy)
        with pytest.raises(NSQError, match=r"merging 4 files of .* made 16 rows of 20"):
            compact(place.path)
    assert store.list(FOLDERS[0]) == before


def test_compaction_dies_before_each_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers of a snapshot have each row once after each death, before anybody mends it."""
    left = [sys.maxsize]
    opened = Place.open
    deaths, died = -1, True
    while died:
        deaths += 1
        place = Place(str(tmp_path / str(deaths)))
        store = place.open()
        for number in range(3):
            add(store, FOLDERS[0], range(number * 5, number * 5 + 5), f"part-a-{number}")
        died = False
        with monkeypatch.context() as patch:
            patch.setattr(Place, "open", lambda place: MortalStore(opened(place), left))
            left[0] = deaths
            try:
                compact(place.path)
            except Killed:
                died = True
        assert read(store) == Counter(range(15)), f"death {deaths}"
        add(store, FOLDERS[0], range(15, 20), "part-a-3")
        compact(place.path)
        assert read(store) == plain(store) == Counter(range(20)), f"death {deaths}"
        assert len(store.list(FOLDERS[0])) == 1
        assert store.list(CHANGED) == store.list(MERGING) == []
    # The merged file, the entry, six copies and deletions, and what is put away.
    assert deaths >= 12


def test_a_snapshot_is_read_after_its_files_were_merged(store: Store, place: Place) -> None:
    begun = snapshot(store, folders(store))
    compact(place.path)
    add(store, FOLDERS[0], range(40, 45), "part-a-8")
    between = snapshot(store, folders(store))
    compact(place.path)
    assert values(store, begun) == Counter(range(40))
    assert values(store, between) == Counter(range(45))


@pytest.mark.parametrize("seen", range(5))
def test_a_list_that_is_older_than_the_log(
    store: Store, place: Place, monkeypatch: pytest.MonkeyPatch, seen: int
) -> None:
    """The reader lists while files come and go: it has seen some of the parts, and no merged."""
    sizes = {folder: store.sizes(folder) for folder in FOLDERS}
    compact(place.path)
    add(store, FOLDERS[0], range(40, 45), "part-a-8")
    compact(place.path)

    class Late:
        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def sizes(self, prefix: str = "") -> dict[str, int]:
            return dict(list(sizes[prefix].items())[:seen])

    found = values(store, snapshot(Late(), FOLDERS))  # type: ignore[arg-type]
    assert set(found.values()) == {1}
    assert set(range(40)) <= set(found)


def test_one_of_two_concurrent_compactions_ends_early(
    store: Store, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = parquet.count
    others = []

    def count_late(store: Store, name: str) -> int:
        monkeypatch.setattr(parquet, "count", count)
        others.append(compact(place.path))
        return count(store, name)

    monkeypatch.setattr(parquet, "count", count_late)
    assert compact(place.path).merged == 0
    assert others[0].merged == 8
    assert plain(store) == read(store) == Counter(range(40))
    assert store.list(MERGING) == []


def test_many_at_a_time(store: Store, place: Place) -> None:
    meeting = threading.Barrier(4)
    failed = []

    def run() -> None:
        try:
            meeting.wait(30)
            compact(place.path)
        except BaseException as error:
            failed.append(error)

    for turn in range(5):
        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        assert plain(store) == read(store) == Counter(range(40 + 5 * turn))
        add(store, FOLDERS[0], range(40 + 5 * turn, 45 + 5 * turn), f"part-b-{turn}")


def test_parts_are_kept_for_an_hour(
    store: Store, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [name for folder in FOLDERS for name in store.list(folder)]
    compact(place.path)
    assert all(store.exists(old_name(part)) for part in parts)
    now = time.time()
    monkeypatch.setattr(compaction, "time", type("Clock", (), {"time": lambda: now + 3700}))
    add(store, FOLDERS[0], range(40, 45), "part-a-8")
    compact(place.path)
    assert not any(store.exists(old_name(part)) for part in parts)
    # The last entry stays, so that its number is never given again.
    assert store.list(MERGES) == [f"{MERGES}/000000000001.json"]
    assert read(store) == Counter(range(45))


def test_archives_that_compact_refuses(place: Place, store: Store, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="target_size is 0; allowed is 1 or more"):
        compact(place.path, target_size=0)
    with pytest.raises(ConfigError, match="compression is 'rar'; allowed are zstd"):
        compact(place.path, compression="rar")
    with pytest.raises(ConfigError, match="there is no archive at"):
        compact(str(tmp_path / "nothing"))
    assert compact(str(tmp_path / "nothing"), may_be_empty=True) == (0, 0, 0)
    assert not (tmp_path / "nothing").exists()


def test_a_compaction_can_be_stopped(store: Store, place: Place) -> None:
    assert compact(place.path, stop=lambda: True) == (0, 0, 0)
    assert store.exists(changed_name(FOLDERS[0]))


def test_the_command(store: Store, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    from gnsqsync.cli import main

    assert main(["spark", "compact", place.path, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["folders"], told["merged"], told["made"]) == (2, 8, 2)
    assert main(["spark", "compact", place.path, "--whole"]) == 0
    assert capsys.readouterr().out.startswith("merged 0 files of 2 folders into 0 files in ")
    assert main(["spark", "compact", f"{place.path}-x"]) == 2
    assert "there is no archive at" in capsys.readouterr().err


@pytest.mark.timeout(300)
def test_kill_nine_beside_a_writer_and_a_reader(place: Place) -> None:
    report = compactions.run(place, kills=3, seed=8)
    assert not report.wrong, report
    assert report.merges > 0 and report.snapshots > 0 and report.kills == 3

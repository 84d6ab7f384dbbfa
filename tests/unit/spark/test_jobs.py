"""What the jobs on Spark do without Spark: times, paths, files, and how a crash is healed."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gnsqsync.cli.spark_options import format_options
from gnsqsync.errors import ConfigError
from gnsqsync.spark import files
from gnsqsync.spark.jobs import compaction
from gnsqsync.spark.jobs.batches import ArchiveWriter
from gnsqsync.spark.jobs.common import local_path, parse_time
from gnsqsync.spark.jobs.layout import COLUMN_NAMES, HIDDEN, has_parquet
from gnsqsync.spark.jobs.units import bytes_text, duration_text, number_text
from tests.support.interpreter import run_script
from tests.support.mortal import Killed, Mortal

NOW = datetime(2026, 11, 20, 18, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2026-11-20", datetime(2026, 11, 20)),
        ("2026-11-20T10:15", datetime(2026, 11, 20, 10, 15)),
        ("2026-11-20 10:15:05.5", datetime(2026, 11, 20, 10, 15, 5, 500000)),
        ("2026-11-20T10:15:00Z", datetime(2026, 11, 20, 10, 15)),
        ("2026-11-20T10:15:00+02:00", datetime(2026, 11, 20, 8, 15)),
        ("90m", datetime(2026, 11, 20, 17, 0)),
        ("30 s", datetime(2026, 11, 20, 18, 29, 30)),
        ("2h", datetime(2026, 11, 20, 16, 30)),
        ("7d", datetime(2026, 11, 13, 18, 30)),
    ],
)
def test_times(text: str, found: datetime) -> None:
    assert parse_time(text, NOW) == found.replace(tzinfo=UTC)
    assert parse_time(text, NOW).utcoffset() == timedelta(0)


@pytest.mark.parametrize("text", ["", "yesterday", "2h30m", "2026-13-01", "99999999999d", "-2h"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a time: write 2026-11-20"):
        parse_time(text, NOW)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/data/nsq", "/data/nsq"),
        ("/data/nsq/", "/data/nsq"),
        ("file:/data/nsq", "/data/nsq"),
        ("file:///data/my%20nsq", "/data/my nsq"),
        ("file://localhost/data/nsq", "/data/nsq"),
        ("/data/a:b", "/data/a:b"),
    ],
)
def test_local_paths(path: str, found: str) -> None:
    assert local_path(path, "the path") == found


def test_a_relative_path_is_of_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert local_path("nsq", "the path") == str(tmp_path / "nsq")


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("s3a://bucket/nsq", "the path 's3a://bucket/nsq' is not on a file system: set it to"),
        ("hdfs://name/nsq", "is not on a file system"),
        ("file://elsewhere/nsq", "is not on a file system"),
        ("file:nsq", "has no absolute path: write file:///data/nsq"),
        ("", "the path is empty"),
        ("/data/*", "choose another name"),
        ("/data/{a,b}", "choose another name"),
    ],
)
def test_paths_that_are_refused(path: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        local_path(path, "the path")
    assert sentence in str(raised.value)


def test_columns_of_the_archive() -> None:
    assert COLUMN_NAMES == ("value", "id", "timestamp", "attempts", "nsqd", "received_at")


def test_an_archive_has_a_topic(tmp_path: Path) -> None:
    assert not has_parquet(str(tmp_path / "nothing"))
    (tmp_path / HIDDEN).mkdir()
    assert not has_parquet(str(tmp_path))
    (tmp_path / "topic=orders").mkdir()
    assert has_parquet(str(tmp_path))


# Which files are merged


@pytest.mark.parametrize(
    ("sizes", "merged"),
    [
        ([], []),
        ([10], []),
        ([10, 10], [[0, 1]]),
        ([60, 10, 100, 10], [[1, 3]]),  # half the target or more stays
        ([60, 10, 100], []),
        ([40, 40, 40, 40, 40], [[0, 1, 2], [3, 4]]),  # a group ends at the target
        ([40, 40, 40, 40], [[0, 1, 2]]),
    ],
)
def test_groups(sizes: list[int], merged: list[list[int]]) -> None:
    named = [(str(number), size) for number, size in enumerate(sizes)]
    assert compaction.groups(named, 100) == [[str(n) for n in group] for group in merged]


# Files


def test_json_is_replaced_whole(tmp_path: Path) -> None:
    path = str(tmp_path / "value.json")
    assert files.read_json(path) is None
    files.write_json(path, {"a": 1})
    files.write_json(path, {"a": 2})
    assert files.read_json(path) == {"a": 2}
    assert os.listdir(tmp_path) == ["value.json"]


def test_moves_can_be_repeated(tmp_path: Path) -> None:
    moves = [(str(tmp_path / f"old{n}"), str(tmp_path / "new" / f"sub{n}" / "x")) for n in (1, 2)]
    for source, _ in moves:
        Path(source).write_text(source)
    files.move_all(moves[:1])
    files.move_all(moves)
    assert [Path(target).read_text() for _, target in moves] == [source for source, _ in moves]


def test_a_move_of_nothing_fails(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.move_all([(str(tmp_path / "old"), str(tmp_path / "new"))])


def test_parquet_files_are_found_below(tmp_path: Path) -> None:
    for name in (
        "b/2.parquet",
        "b/1.parquet",
        "a.parquet",
        "b/.x.parquet",
        "_t.parquet",
        "b/c.crc",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert files.parquet_files(str(tmp_path)) == ["a.parquet", "b/1.parquet", "b/2.parquet"]
    assert files.parquet_files(str(tmp_path / "nothing")) == []


def test_a_dead_process_holds_no_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    out = run_script(
        f"""
        import fcntl, os, signal, subprocess, sys
        from gnsqsync.spark import files

        def taken():
            with open({path!r}) as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return True
            return False

        child = os.fork()
        if child == 0:
            with files.locked({path!r}):
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        print(taken())
        with files.locked({path!r}):
            print(taken())
        print(taken())
        """
    )
    assert out.split() == ["False", "True", "False"]


# Crashes: each call that changes a name on disk is a point at which the process may die.


@pytest.fixture
def dies_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """A function: from now on the process dies before its n-th change of a name."""
    countdown = [sys.maxsize]
    monkeypatch.setattr(files, "os", Mortal(os, countdown))
    monkeypatch.setattr(files, "shutil", Mortal(shutil, countdown))

    def set_countdown(changes: int) -> None:
        countdown[0] = changes

    yield set_countdown
    countdown[0] = sys.maxsize


STREAM = "0123456789abcdef"


def staged_batch(archive: Path) -> dict[str, Any]:
    """A batch that is recorded and not yet renamed; the files hold text, as nobody reads them."""
    state = archive / HIDDEN / STREAM
    moves = []
    for number in range(3):
        source = Path("staging") / "0-x" / f"{number}.parquet"
        (state / source).parent.mkdir(parents=True, exist_ok=True)
        (state / source).write_text(str(number))
        moves.append([str(source), f"topic=t/date=2026-11-20/hour=0{number % 2}/p{number}.parquet"])
    record = {"batch": 0, "moves": moves}
    (state / "batch.json").write_text(json.dumps(record))
    return record


def test_a_recorded_batch_is_healed_wherever_it_dies(
    tmp_path: Path, dies_at: Callable[[int], None]
) -> None:
    deaths = 0
    while True:
        archive = tmp_path / str(deaths)
        record = staged_batch(archive)
        dies_at(deaths)
        try:
            ArchiveWriter(str(archive), STREAM).heal()
        except Killed:
            deaths += 1
            dies_at(sys.maxsize)
            ArchiveWriter(str(archive), STREAM).heal()
        else:
            break
        found = {path: (archive / path).read_text() for _, path in record["moves"]}
        assert list(found.values()) == ["0", "1", "2"]
        assert files.parquet_files(str(archive / "topic=t")) == sorted(
            path.removeprefix("topic=t/") for path in found
        )
        state = archive / HIDDEN / STREAM
        assert os.listdir(state / "staging") == []
        notes = files.read_json(str(state / "compaction-notes.json"))
        assert notes["folders"] == [f"topic=t/date=2026-11-20/hour=0{n}" for n in (0, 1)]
    # Folders, three renames, two notes, the record.
    assert deaths >= 10


def merge_intent(archive: Path) -> None:
    state = archive / HIDDEN / STREAM
    (state / "staging" / "merge").mkdir(parents=True)
    (state / "staging" / "merge" / "all.parquet").write_text("ab")
    hour = archive / "topic=t" / "date=2026-11-20" / "hour=00"
    hour.mkdir(parents=True)
    for name in "ab":
        (hour / f"{name}.parquet").write_text(name)
    intent = {
        "moves": [["staging/merge/all.parquet", "topic=t/date=2026-11-20/hour=00/all.parquet"]],
        "remove": [f"topic=t/date=2026-11-20/hour=00/{name}.parquet" for name in "ab"],
    }
    (state / "compaction.json").write_text(json.dumps(intent))


def test_a_merge_is_healed_wherever_it_dies(tmp_path: Path, dies_at: Callable[[int], None]) -> None:
    deaths = 0
    while True:
        archive = tmp_path / str(deaths)
        merge_intent(archive)
        dies_at(deaths)
        try:
            ArchiveWriter(str(archive), STREAM).heal()
        except Killed:
            deaths += 1
            dies_at(sys.maxsize)
            ArchiveWriter(str(archive), STREAM).heal()
        else:
            break
        hour = archive / "topic=t" / "date=2026-11-20" / "hour=00"
        assert {path.name: path.read_text() for path in hour.iterdir()} == {"all.parquet": "ab"}
        assert not (archive / HIDDEN / STREAM / "compaction.json").exists()
    # A rename, two removals, the intent, the staging folder.
    assert deaths == 5


def test_a_checkpoint_that_was_set_back_is_refused(tmp_path: Path) -> None:
    writer = ArchiveWriter(str(tmp_path), STREAM)
    state = tmp_path / HIDDEN / STREAM
    (state / "batch.json").write_text(json.dumps({"batch": 7, "moves": [], "done": True}))
    nothing: Any = SimpleNamespace()
    with pytest.raises(ConfigError, match=r"is at batch 3, but .* has its batch 7"):
        writer(nothing, 3)


def test_a_full_disk_is_no_heal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staged_batch(tmp_path)

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            ArchiveWriter(str(tmp_path), STREAM).heal()
    ArchiveWriter(str(tmp_path), STREAM).heal()
    assert len(files.parquet_files(str(tmp_path / "topic=t"))) == 3


# What commands make of their options


def test_options_of_the_commands_become_those_of_the_source() -> None:
    connection = {
        "tls": True,
        "tls_ca_file": "/ca.pem",
        "tls_cert_file": None,
        "tls_verify": True,
        "auth_secret": None,
        "snappy": False,
    }
    assert format_options(("a:1", "b:2"), (), connection) == {
        "nsqdTcpAddresses": "a:1,b:2",
        "nsq.tls": "true",
        "nsq.tls_ca_file": "/ca.pem",
    }
    assert format_options((), ("l:1",), {"tls_verify": False}) == {
        "lookupdHttpAddresses": "l:1",
        "nsq.tls_verify": "false",
    }
    assert format_options((), (), {}) == {"nsqdTcpAddresses": "127.0.0.1:4150"}


def test_commands_explain_themselves_without_spark() -> None:
    out = run_script("""
        import sys
        from gnsqsync.cli import main
        for name in ("archive", "rollup", "report", "spark-script"):
            assert main([name, "--help"]) == 0
        assert main(["spark-script"]) == 0
        loaded = {name.split(".")[0] for name in sys.modules}
        assert not loaded & {"pyspark", "pyarrow", "matplotlib", "numpy"}, loaded
    """)
    for word in ("--once", "--compact-every", "--window", "--master", "--title", "spark-submit"):
        assert word in out
    script = out.splitlines()[-1]
    assert os.path.basename(script) == "gnsqsync_job.py"
    # Python puts this folder first on sys.path.
    assert sorted(os.listdir(os.path.dirname(script))) in (
        ["__init__.py", "gnsqsync_job.py"],
        ["__init__.py", "__pycache__", "gnsqsync_job.py"],
    )


# Numbers


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (number_text, 0, "0"),
        (number_text, 0.25, "0.25"),
        (number_text, 9999, "9,999"),
        (number_text, 12345, "12.3 k"),
        (number_text, 1.5e6, "1.5 M"),
        (bytes_text, 12, "12 B"),
        (bytes_text, 1500, "1.5 kB"),
        (bytes_text, 2e9, "2 GB"),
        (duration_text, 0.0123, "12.3 ms"),
        (duration_text, 2.5, "2.5 s"),
        (duration_text, 90.0, "1.5 min"),
        (duration_text, 7200.0, "2 h"),
        (duration_text, float("nan"), "–"),
    ],
)
def test_numbers(function: Callable[[float], str], value: float, text: str) -> None:
    assert function(value) == text

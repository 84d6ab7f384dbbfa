"""What the jobs on Spark do without Spark: times, paths, names."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from gnsqsync.cli.spark_options import format_options, room_needed, storage_error
from gnsqsync.errors import ConfigError
from gnsqsync.spark.jobs import compaction
from gnsqsync.spark.jobs.common import local_path, parse_time, spark_path, storage_path
from gnsqsync.spark.jobs.layout import COLUMN_NAMES, Folder, Place, changed_folder, changed_name
from gnsqsync.spark.jobs.reading import find
from gnsqsync.spark.jobs.series import load
from gnsqsync.spark.jobs.units import bytes_text, duration_text, number_text
from tests.support.interpreter import run_script


def test_a_full_disk_is_told_with_what_to_do() -> None:
    for number in (errno.ENOSPC, errno.EDQUOT):
        error = OSError(number, os.strerror(number), "/data/nsq/part-1.parquet")
        assert "make room on the disks of the folders given" in storage_error(error)
        assert room_needed(f"Spark: OSError: [Errno {number}] {os.strerror(number)}")
    assert storage_error(OSError(errno.EACCES, "no", "/x")) == "/x: no"


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (lambda path: compaction.compact(path), "OPTIMIZE delta.`"),
        (lambda path: find(Place.of(path, None)), 'spark.read.format("delta").load("'),
        (lambda path: load(path), "gnsqsync spark rollup ARCHIVE ROLLUP"),
    ],
    ids=["compact", "rollup and replay", "report"],
)
def test_each_job_says_what_to_do_with_a_delta_table(
    tmp_path: Path, job: Callable[[str], object], said: str
) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "topic=t" / "date=2026-11-20").mkdir(parents=True)
    with pytest.raises(ConfigError) as caught:
        job(str(tmp_path))
    assert str(caught.value).startswith(f"{tmp_path} is a Delta table: ")
    assert said in str(caught.value)


def test_a_report_of_an_archive_names_the_two_commands(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "topic=t" / "date=2026-11-20").mkdir(parents=True)
    with pytest.raises(ConfigError, match=f"run 'gnsqsync spark rollup {tmp_path} ROLLUP', then"):
        load(str(tmp_path))


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
def test_texts_that_are_no_time(text: str) -> None:
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


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/data/nsq/", "/data/nsq"),
        ("file:///data/nsq", "/data/nsq"),
        ("s3://bucket/nsq/", "s3://bucket/nsq"),
        ("abfs://container@account.dfs.core.windows.net/nsq", None),
    ],
)
def test_paths_and_urls(path: str, found: str | None) -> None:
    assert storage_path(path, "the path") == (found or path)


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("hdfs://name/nsq", "the path 'hdfs://name/nsq' is not on storage that this knows"),
        ("s3://bucket", "has no folder: write s3://BUCKET/FOLDER"),
        ("s3:///nsq", "has no folder"),
        ("s3://bucket/*", "choose another name"),
        ("", "the path is empty"),
    ],
)
def test_storage_that_is_refused(path: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        storage_path(path, "the path")
    assert sentence in str(raised.value)


def test_names_for_hadoop() -> None:
    assert spark_path("/data/nsq") == "file:///data/nsq"
    assert spark_path("s3://bucket/nsq") == "s3a://bucket/nsq"
    assert spark_path("gs://bucket/nsq") == "gs://bucket/nsq"


def test_folders_have_names() -> None:
    folder = Folder("log#ephemeral", date(2026, 11, 20), 7)
    assert folder.name == "topic=log%23ephemeral/date=2026-11-20/hour=07"
    assert Folder.parse(folder.name) == folder
    assert changed_folder(changed_name(folder.name)) == folder.name
    with pytest.raises(ValueError, match="has no 'hour'"):
        Folder.parse("topic=a/date=2026-11-20")
    begin = datetime(2026, 11, 20, 7, tzinfo=UTC)
    end = datetime(2026, 11, 20, 8, tzinfo=UTC)
    assert folder.overlaps(begin, end) and folder.overlaps(None, None)
    assert not folder.overlaps(end, None) and not folder.overlaps(None, begin)


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
        for name in ("archive", "compact", "rollup", "report", "script"):
            assert main(["spark", name, "--help"]) == 0
        assert main(["spark", "script"]) == 0
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

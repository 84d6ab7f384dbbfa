"""The command on log folders, beside an nsqd: what is listed, published again, deleted or kept."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("click")

from gnsqsync.cli.app import run_command
from gnsqsync.spark.streams import IN_USE, Sign, delete_ended, streams
from gnsqsync.spark.wal import Wal, pending
from tests.component.spark.test_read_task import Source
from tests.support.servers import Site

HOUR = 3600.0


def grow_old(folder: Path, hours: float) -> None:
    """Give all files below the time of ``hours`` ago."""
    at = time.time() - hours * HOUR
    for path in folder.rglob("*"):
        os.utime(path, (at, at))


@pytest.fixture
def source(site: Site, tmp_path: Path) -> Any:
    source = Source(site.nsqd(), tmp_path)
    yield source
    source.close()


class Folder:
    """A log folder with 10 pending rows of one stream, and the command on it."""

    def __init__(self, source: Source, capsys: pytest.CaptureFixture[str]) -> None:
        self.source = source
        self.path = Path(source.settings.wal_path)
        self.bodies = source.publish(10)
        assert source.read(7, 1) + source.read(3, 2) == self.bodies
        self._capsys = capsys

    def run(self, action: str, *words: str) -> tuple[int, str, str]:
        code = run_command(["spark", "log", action, str(self.path), *words])
        told = self._capsys.readouterr()
        return code, told.out, told.err

    def publish(self, *words: str) -> tuple[int, str, str]:
        return self.run("publish", "-t", self.source.nsqd, *words)


@pytest.fixture
def folder(source: Source, capsys: pytest.CaptureFixture[str]) -> Folder:
    return Folder(source, capsys)


def test_a_list(folder: Folder) -> None:
    code, out, _ = folder.run("list")
    assert code == 0
    assert out.startswith("stream  ")
    assert "perhaps in use" in out
    assert f"10 pending rows of {folder.source.topic}" in out
    grow_old(folder.path, 3)
    folder.source.wal.commit(1, 0, time.time() - 3 * HOUR)
    grow_old(folder.path, 3)
    code, out, _ = folder.run("list", "--json")
    found = json.loads(out)
    assert not found.pop("damaged")
    assert (found["stream"], found["in_use"], found["pending_rows"]) == ("stream", False, 3)
    assert (found["committed_epoch"], found["last_epoch"]) == (1, 2)
    assert found["topics"] == [folder.source.topic]
    assert found["bytes"] > 0


def test_pending_rows_are_published_again_once(folder: Folder) -> None:
    grow_old(folder.path, 25)
    code, out, err = folder.publish("--dry-run")
    assert (code, out) == (0, "")
    assert "10 pending rows" in err and "nothing was changed" in err
    assert folder.source.channel().depth == 0
    code, out, _ = folder.publish("--yes")
    assert code == 0
    assert out == f"stream: published 10 messages to {folder.source.topic}\n"
    assert folder.source.channel().depth == 10
    assert pending(str(folder.path)) == []
    grow_old(folder.path, 25)
    code, out, err = folder.publish("--yes")
    assert (code, out) == (0, "")
    assert folder.source.channel().depth == 10


def test_unconfirmed_rows_stay_pending(folder: Folder) -> None:
    (stream,) = streams(str(folder.path))
    sent: list[bytes] = []

    def send(topic: str, bodies: list[bytes]) -> None:
        if len(sent) == 7:
            raise ConnectionError("nsqd is gone")
        sent.extend(bodies)

    with pytest.raises(ConnectionError):
        stream.publish(send)
    assert sent == folder.bodies[:7]
    assert [(epoch.epoch, epoch.rows) for epoch in pending(str(folder.path))] == [(2, 3)]


def test_a_stream_that_may_be_in_use_is_left_alone(folder: Folder) -> None:
    # Old, but a driver waits for messages and says so.
    grow_old(folder.path, 100)
    Sign().show(lambda: folder.source.wal.store, "stream", 0.0)
    for words in (["delete", "--older-than", "2h", "--with-pending"], ["publish"]):
        code, out, _ = folder.run(*words, "--yes")
        assert (code, out) == (0, "")
        code, _, err = folder.run(*words, "--yes", "--stream", "stream")
        assert code == 1
        assert "a query may use it" in err
    assert sum(epoch.rows for epoch in pending(str(folder.path))) == 10
    code, _, err = folder.run("delete", "--older-than", "90m", "--yes")
    assert code == 2
    assert "at least 2h" in err


def test_old_streams_are_deleted(folder: Folder) -> None:
    grow_old(folder.path, 30)
    code, _, err = folder.run("delete", "--older-than", "1d", "--yes")
    assert code == 0
    assert "kept, as it has pending rows" in err
    code, out, err = folder.run("delete", "--older-than", "1d", "--with-pending", "--dry-run")
    assert (code, out) == (0, "")
    assert "nothing was changed" in err
    # Without a terminal it does not ask.
    code, _, err = folder.run("delete", "--older-than", "1d", "--with-pending")
    assert code == 2
    assert "give --yes" in err
    assert sum(epoch.rows for epoch in pending(str(folder.path))) == 10
    code, out, _ = folder.run("delete", "--older-than", "1d", "--with-pending", "--yes")
    assert code == 0
    assert out.startswith("stream: deleted ")
    assert not (folder.path / "stream").exists()


def test_a_damaged_stream_is_told_and_holds_up_no_other(folder: Folder) -> None:
    other = folder.path / "other" / "e=1" / "p=0"
    other.mkdir(parents=True)
    (folder.path / "other" / "plan").write_bytes(b"{}")
    (other / "000000.arrow").write_bytes(b"no entry")
    grow_old(folder.path, 30)
    code, out, _ = folder.run("list")
    assert code == 0
    assert "damaged: " in out and "10 pending rows" in out
    code, out, err = folder.publish("--yes")
    assert code == 1
    assert "other: left out, as it is damaged" in err
    assert "stream: published 10 messages" in out


def test_there_is_no_such_stream(folder: Folder) -> None:
    code, _, err = folder.publish("--stream", "strm", "--yes")
    assert code == 1
    assert "has no stream 'strm'" in err


# -- what a driver deletes -----------------------------------------------------------------------


def test_a_driver_deletes_what_runs_that_ended_have_left(folder: Folder) -> None:
    wal = folder.source.wal
    now = time.time()

    def left(at: float) -> bool:
        delete_ended(wal.store, "another", 60.0, at)
        return (folder.path / "stream").exists()

    # Rows are pending: nobody knows whether a sink has them.
    assert left(now + 99 * HOUR)
    wal.commit(1, 0, now)
    assert left(now + 99 * HOUR)
    Wal(wal.store, "stream", retention=60.0).commit(2, 0, now)
    assert left(now + 0.5 * HOUR)
    delete_ended(wal.store, "stream", 60.0, now + 99 * HOUR)
    assert left(now)
    # An epoch that is planned and has no entry: the query is under way.
    plan = folder.path / "stream" / "plans" / "000000000003.json"
    plan.parent.mkdir(exist_ok=True)
    plan.write_bytes(b"{}")
    assert left(now + 99 * HOUR)
    plan.unlink()
    assert not left(now + 99 * HOUR)


def test_a_driver_leaves_what_was_read_by_spark_read(folder: Folder) -> None:
    (folder.path / "stream").rename(folder.path / "drain-x")
    wal = Wal(folder.source.wal.store, "drain-x", retention=60.0)
    wal.commit(2, 0, time.time())
    delete_ended(wal.store, "another", 60.0, time.time() + 99 * HOUR)
    assert (folder.path / "drain-x").exists()


def test_a_sign_is_written_now_and_then(folder: Folder) -> None:
    sign, store = Sign(), folder.source.wal.store
    path = folder.path / "stream" / "used"

    def shown(now: float) -> bool:
        path.unlink(missing_ok=True)
        sign.show(lambda: store, "stream", now)
        return path.exists()

    assert [shown(now) for now in (5.0, 6.0, 1700.0, 1806.0, 1807.0)] == [
        True,
        False,
        False,
        True,
        False,
    ]
    assert IN_USE > 2 * 1800

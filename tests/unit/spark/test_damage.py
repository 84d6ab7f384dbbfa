"""A task and a log that is damaged, or that an older version left; nsqd is pretended."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from gnsqsync.errors import ConfigError
from gnsqsync.spark import read_task
from gnsqsync.spark.options import SourceOptions
from gnsqsync.spark.plan import Offset, Part, first_offset, next_offset
from gnsqsync.spark.read_task import read_partitions
from gnsqsync.spark.seen import Seen
from gnsqsync.spark.settings import plans, read_settings
from gnsqsync.spark.stores import FileStore
from gnsqsync.spark.stream_log import StreamLog
from gnsqsync.spark.wal import LogDamaged, Wal
from tests.support.fake_intake import Channel, FakeIntake

# Made by the code of 58f5643: epoch 1 is committed; of epoch 2 one partition is whole, and the
# task of the other was killed between its entry and its FIN.
OLD = Path(__file__).parent / "data" / "log-58f5643"


@pytest.fixture(autouse=True)
def channels(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Channel]]:
    found = {"a:4150": Channel(), "b:4150": Channel()}
    monkeypatch.setattr(FakeIntake, "channels", found)
    monkeypatch.setattr(read_task, "Intake", FakeIntake)
    yield found


def options(path: Path, **changes: str) -> SourceOptions:
    given = {
        "nsqdTcpAddresses": "a:4150,b:4150",
        "subscribe": "t",
        "channel": "c",
        "walPath": str(path),
        **changes,
    }
    return SourceOptions.parse(given, streaming=True)


def publish(channel: Channel, *numbers: int, attempts: int = 0) -> None:
    channel.queue += [
        SimpleNamespace(id=f"{n:016x}", body=b"%d" % n, timestamp=n, attempts=attempts)
        for n in numbers
    ]


def read(end: Offset, given: SourceOptions) -> list[int]:
    tasks = plans(end)
    batches = [
        batch for task in tasks for batch in read_partitions(task, read_settings(given), ["value"])
    ]
    return sorted(int(value) for batch in batches for value in batch["value"].to_pylist())


START = first_offset("s", "c")
END = next_offset(START, [Part("a:4150", "t", 8)])
FIRST = "s/e=1/p=0"


@pytest.fixture
def folder(tmp_path: Path, channels: dict[str, Channel]) -> Path:
    """A log of one epoch: entries of 3, 3 and 2 rows, and the END."""
    publish(channels["a:4150"], *range(8))
    log = StreamLog(options(tmp_path), START)
    log.plan(START, [Part("a:4150", "t", 8)])
    assert read(END, options(tmp_path)) == list(range(8))
    assert len(list((tmp_path / FIRST).iterdir())) == 4
    return tmp_path


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("how", ["gone", "cut", "empty", "flipped"])
def test_a_partition_is_complete_or_the_query_ends(
    folder: Path, channels: dict[str, Channel], number: int, how: str
) -> None:
    path = folder / FIRST / f"{number:06d}.arrow"
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    elif how == "flipped":
        path.write_bytes(data[:-40] + bytes([data[-40] ^ 1]) + data[-39:])
    else:
        path.write_bytes(data[: len(data) // 2 if how == "cut" else 0])
    # New messages that would take the place of those that are missing.
    publish(channels["a:4150"], *range(100, 120))
    if how == "gone" and number == 3:
        # The END has no rows, and all of the budget is there.
        assert read(END, options(folder)) == list(range(8))
        return
    with pytest.raises(LogDamaged, match=rf"{path.name} in .* is damaged: .*put the file back"):
        read(END, options(folder))
    loose = read(END, options(folder, failOnDataLoss="false"))
    assert set(loose) & set(range(8)) == set(range(8)) - {*range(number * 3, number * 3 + 3)}


def test_rows_that_are_not_as_many_as_the_end_says(folder: Path) -> None:
    for number in (2, 3):
        (folder / FIRST / f"{number:06d}.arrow").unlink()
    wal = Wal(FileStore(str(folder)), "s")
    end = read_task.Entry.of([], [], plans(END)[0][0], end=True)
    object.__setattr__(end, "tally", {"received": 8})
    wal.create(1, 0, 2, end.encode())
    with pytest.raises(LogDamaged, match="has 6 rows, and its last entry says 8"):
        read(END, options(folder))


# -- the driver -----------------------------------------------------------------------------------


def test_a_log_that_began_with_another_channel(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"'channel' is 'new', and the log in .* channel 'c'"):
        StreamLog(options(folder, channel="new"), END)
    with pytest.raises(ConfigError, match=r"'subscribe' is 'u', and .* belongs to 't'"):
        StreamLog(options(folder, subscribe="u"), END)
    StreamLog(options(folder, subscribe="t,u"), END)


def test_a_damaged_mark(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "s" / "plan").write_bytes(b'{"chan')
    with pytest.raises(LogDamaged, match=r"s/plan in .* is damaged"):
        StreamLog(options(folder), END)
    StreamLog(options(folder, failOnDataLoss="false"), END)
    assert "going on, as failOnDataLoss is false" in caplog.text
    assert json.loads((folder / "s" / "plan").read_text())["channel"] == "c"


def test_rows_whose_checkpoint_is_lost_keep_a_new_query_from_starting(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start = first_offset("new", "c")
    end = next_offset(start, [Part("a:4150", "t", 1)])
    log = StreamLog(options(folder), start)
    log.plan(start, [Part("a:4150", "t", 1)])
    with pytest.raises(LogDamaged, match=r"rows of channel 'c' that no query has committed, in s:"):
        log.confirm(start, end)
    # The stream before, as PySpark 4.0 tells it.
    log.confirm(END, end)
    StreamLog(options(folder, failOnDataLoss="false"), end).confirm(start, end)
    assert "going on, as failOnDataLoss is false" in caplog.text


# -- logs of older versions -----------------------------------------------------------------------


def test_a_log_of_an_older_version_is_finished(
    tmp_path: Path, channels: dict[str, Channel]
) -> None:
    shutil.copytree(OLD, tmp_path, dirs_exist_ok=True)
    start, end = json.loads((tmp_path / "offsets.json").read_text())
    # The messages that the killed task had logged come again, and more.
    publish(channels["b:4150"], 10, 11, 12, attempts=1)
    publish(channels["b:4150"], *range(13, 20))
    log = StreamLog(options(tmp_path), end)
    log.confirm(start, end)
    assert read(end, options(tmp_path)) == [*range(5), *range(10, 16)]
    assert read(end, options(tmp_path)) == [*range(5), *range(10, 16)]
    assert [message.id for message in channels["b:4150"].queue] == [
        f"{n:016x}" for n in range(16, 20)
    ]
    log.commit(2)
    assert log.left_over(end) is None
    assert Seen(log.wal, "a:4150", "t").among([f"{n:016x}" for n in (2, 10, 101)]) == {
        f"{2:016x}",
        f"{101:016x}",
    }


@pytest.mark.parametrize("file", ["p=0/000000.arrow", "p=0/000001.arrow"])
def test_an_old_log_without_an_entry(tmp_path: Path, file: str) -> None:
    shutil.copytree(OLD, tmp_path, dirs_exist_ok=True)
    start, end = json.loads((tmp_path / "offsets.json").read_text())
    (tmp_path / "stream" / "e=2" / file).unlink()
    StreamLog(options(tmp_path), end).confirm(start, end)
    if file.endswith("1.arrow"):
        # Nothing in an old log tells of the last entry.
        assert read(end, options(tmp_path)) == [0, 1, 2, 10, 11, 12]
        return
    with pytest.raises(LogDamaged, match=r"000000\.arrow"):
        read(end, options(tmp_path))


def test_an_old_log_whose_newest_offset_is_lost(tmp_path: Path) -> None:
    """The old version had the plan in Spark's checkpoint only."""
    shutil.copytree(OLD, tmp_path, dirs_exist_ok=True)
    start: Any = json.loads((tmp_path / "offsets.json").read_text())[0]
    with pytest.raises(LogDamaged, match="the plan of epoch 2 is gone"):
        StreamLog(options(tmp_path), start).left_over(start)

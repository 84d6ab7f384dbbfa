"""The files of a back-up on a disk in memory: names, rotation, gzip, and an end at every step."""

from __future__ import annotations

import gzip
import itertools
import time
import zlib
from dataclasses import dataclass
from typing import Any

import pytest

from gnsqsync.errors import ConfigError
from gnsqsync.process.backup.files import CannotBackUp, Rules, TopicFiles
from gnsqsync.process.backup.names import FileNames, format_time
from tests.unit.process.memory_disk import Killed, MemoryDisk

# 2026-11-23 14:00:00 in the local zone, whatever that is.
START = time.mktime((2026, 11, 23, 14, 0, 0, 0, 0, -1))
NAME = "orders.box"


@dataclass
class Clock:
    now: float = START

    def __call__(self) -> float:
        return self.now


def rules(**options: Any) -> Rules:
    options.setdefault("output_dir", "/out")
    options.setdefault("work_dir", options["output_dir"])
    return Rules(**options)


def topic_files(
    disk: MemoryDisk,
    how: Rules,
    clock: Clock,
    *,
    topic: str = "orders",
    filename_format: str = "<TOPIC>.<HOST><REV>.<DATETIME>.log",
    datetime_format: str = "%Y-%m-%d_%H",
) -> TopicFiles:
    names = FileNames.of(
        topic,
        filename_format=filename_format,
        datetime_format=datetime_format,
        host="box",
        pid=77,
        gzip=bool(how.gzip_level),
        has_revisions=how.has_revisions,
    )
    files = TopicFiles(names, how, disk, now=lambda: time.localtime(clock()), monotonic=clock)
    files.recover()
    return files


# -- names ---------------------------------------------------------------------------------------


def test_time_as_the_go_tool_writes_it() -> None:
    when = time.struct_time((2026, 3, 5, 15, 4, 9, 3, 64, 0))
    text = format_time("%Y %y %m %b %B %d %a %A %H %I %M %S %p %% %j %q 2006 Jan %", when)
    assert text == "2026 26 03 Mar March 05 Thu Thursday 15 03 04 09 PM % %j %q 2006 Jan %"


@pytest.mark.parametrize(
    "how", [{"gzip_level": 6}, {"rotate_size": 1}, {"rotate_interval": 1.0}, {"work_dir": "/work"}]
)
def test_revisions_need_a_place_in_the_name(how: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="missing <REV> in --filename-format"):
        topic_files(MemoryDisk(), rules(**how), Clock(), filename_format="<TOPIC>.log")


@pytest.mark.parametrize("filename_format", ["<TOPIC>/a.log", "../a", "a/", "a\0b"])
def test_no_file_outside_of_the_folder(filename_format: str) -> None:
    with pytest.raises(ConfigError, match="no file in the folder"):
        topic_files(MemoryDisk(), rules(), Clock(), topic="..", filename_format=filename_format)


def test_all_words_of_a_name() -> None:
    disk = MemoryDisk()
    format_ = "<DATETIME>/<TOPIC>.<HOST>.<PID><REV>"
    files = topic_files(
        disk, rules(gzip_level=6), Clock(), filename_format=format_, datetime_format="%Y/%m"
    )
    files.write(b"x")
    files.close()
    assert list(disk.content("/out")) == ["2026/11/orders.box.77-000000.gz"]


# -- rotation ------------------------------------------------------------------------------------


def test_one_file_an_hour_which_is_appended_to() -> None:
    disk, clock = MemoryDisk(), Clock()
    for body in (b"a", b"b"):
        files = topic_files(disk, rules(), clock)
        files.write(body)
        files.close()
    files = topic_files(disk, rules(), clock)
    clock.now += 3599
    assert files.write(b"c")
    assert not files.write(b"C")
    clock.now += 1
    assert files.write(b"d")
    files.close()
    assert disk.content("/out") == {
        "orders.box.2026-11-23_14.log": b"a\nb\nc\nC\n",
        "orders.box.2026-11-23_15.log": b"d\n",
    }


def test_rotation_by_size_is_before_the_message_that_comes_after() -> None:
    disk = MemoryDisk()
    files = topic_files(disk, rules(rotate_size=4), Clock())
    # "more than": the first file takes a message more after exactly 4 bytes.
    assert [files.write(b"1") for _ in range(7)] == [True, False, False, True, False, False, True]
    files.close()
    assert [len(data) for data in disk.content("/out").values()] == [6, 6, 2]
    # A file that is not full is appended to.
    files = topic_files(disk, rules(rotate_size=4), Clock())
    files.write(b"2")
    files.close()
    assert disk.content("/out")[f"{NAME}-000002.2026-11-23_14.log"] == b"1\n2\n"


def test_rotation_by_interval() -> None:
    disk, clock = MemoryDisk(), Clock()
    files = topic_files(disk, rules(rotate_interval=10.0), clock)
    files.write(b"a")
    clock.now += 10
    assert not files.write(b"b")
    clock.now += 1
    assert files.write(b"c")
    files.close()
    assert list(disk.content("/out").values()) == [b"a\nb\n", b"c\n"]


def test_a_tick_rotates_also_without_messages() -> None:
    disk, clock = MemoryDisk(), Clock()
    files = topic_files(disk, rules(), clock)
    files.tick()
    clock.now += 3600
    files.tick()
    files.close()
    assert list(disk.content("/out").values()) == [b"", b""]


def test_a_tick_makes_no_empty_files_if_so_told() -> None:
    disk, clock = MemoryDisk(), Clock()
    files = topic_files(disk, rules(skip_empty_files=True, work_dir="/work"), clock)
    files.tick()
    files.write(b"a")
    clock.now += 3600
    files.tick()
    assert disk.content("/work") == {}
    assert disk.content("/out") == {f"{NAME}-000000.2026-11-23_14.log": b"a\n"}
    files.tick()
    files.close()
    assert len(disk.names) == 1


def test_an_empty_gzip_file_is_gzip() -> None:
    disk = MemoryDisk()
    files = topic_files(disk, rules(gzip_level=1), Clock())
    files.tick()
    files.close()
    (data,) = disk.content("/out").values()
    assert gzip.decompress(data) == b""


def test_a_gzip_member_for_each_sync() -> None:
    disk = MemoryDisk()
    files = topic_files(disk, rules(gzip_level=9), Clock())
    files.write(b"a")
    files.write(b"b")
    files.sync()
    files.sync()
    files.write(b"c")
    files.close()
    (data,) = disk.content("/out").values()
    member = zlib.decompressobj(31)
    assert member.decompress(data) == b"a\nb\n"
    assert gzip.decompress(member.unused_data) == b"c\n"
    assert disk.syncs == 2


def test_finished_files_are_moved_and_nothing_is_overwritten() -> None:
    disk = MemoryDisk()
    how = rules(work_dir="/work")
    files = topic_files(disk, how, Clock())
    files.write(b"mine")
    assert list(disk.content("/work")) == [f"{NAME}-000000.2026-11-23_14.log"]
    disk.put(f"/out/{NAME}-000000.2026-11-23_14.log", b"theirs")
    files.close()
    assert disk.content("/work") == {}
    assert disk.content("/out") == {
        f"{NAME}-000000.2026-11-23_14.log": b"theirs",
        f"{NAME}-000001.2026-11-23_14.log": b"mine\n",
    }
    # After a close, as a SIGHUP asks for, the next message begins another file.
    assert files.write(b"more")
    files.close()
    assert disk.content("/out")[f"{NAME}-000002.2026-11-23_14.log"] == b"more\n"


def test_two_on_one_file() -> None:
    disk = MemoryDisk()
    first = topic_files(disk, rules(), Clock())
    first.write(b"a")
    second = topic_files(disk, rules(), Clock())
    with pytest.raises(CannotBackUp, match=r"another process writes to /out/orders\.box"):
        second.write(b"b")
    # With revisions each has its own, and what grows is left alone.
    how = rules(work_dir="/work", gzip_level=6)
    third, fourth = (topic_files(disk, how, Clock()) for _ in range(2))
    third.write(b"a")
    topic_files(disk, how, Clock())
    fourth.write(b"b")
    assert len(disk.content("/work")) == 2


# -- what earlier runs left ----------------------------------------------------------------------


def test_a_message_that_is_cut_off_is_removed(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryDisk()
    path = "/out/orders.box.2026-11-23_14.log"
    disk.put(path, b"whole\n" + b"half" * 100_000)
    files = topic_files(disk, rules(), Clock())
    assert "the last 400000 bytes are cut off" in caplog.text
    files.write(b"next")
    files.close()
    assert disk.content("/out") == {"orders.box.2026-11-23_14.log": b"whole\nnext\n"}


def test_other_files_are_left_alone() -> None:
    disk = MemoryDisk()
    others = [
        "readme",
        "orders.box.log",
        "order.box.2026-11-23_14.log",
        "x/orders.box.2026-11-23_1",
    ]
    for name in others:
        disk.put(f"/out/{name}", b"no newline")
    # Not the last one of this topic: it was finished by somebody.
    disk.put("/out/orders.box.2026-11-23_12.log", b"no newline")
    disk.put("/out/orders.box.2026-11-23_13.log", b"a\n")
    before = disk.content("/out")
    topic_files(disk, rules(), Clock())
    assert disk.content("/out") == before


def test_every_cut_of_gzip_members() -> None:
    members = [gzip.compress(text, mtime=0) for text in (b"one\n", b"two\n" * 50, b"three\n")]
    whole = b"".join(members)
    ends = [0, *itertools.accumulate(map(len, members))]
    for cut in range(len(whole) + 1):
        disk = MemoryDisk()
        name = f"{NAME}-000000.2026-11-23_13.log.gz"
        disk.put(f"/out/{name}", whole[:cut])
        topic_files(disk, rules(gzip_level=6), Clock())
        end = max(end for end in ends if end <= cut)
        assert disk.content("/out") == ({name: whole[:end]} if end else {})


def test_damage_in_the_middle_is_no_cut(caplog: pytest.LogCaptureFixture) -> None:
    members = [gzip.compress(text, mtime=0) for text in (b"one\n" * 9, b"two\n" * 9)]
    whole = bytearray(b"".join(members))
    whole[15] ^= 0xFF
    disk = MemoryDisk()
    disk.put(f"/out/{NAME}-000000.2026-11-23_13.log.gz", bytes(whole))
    topic_files(disk, rules(gzip_level=6), Clock())
    assert [*disk.content("/out").values()] == [bytes(whole)]
    assert "damaged behind byte 0" in caplog.text


def test_zeros_behind_the_last_member_are_cut_off() -> None:
    whole = gzip.compress(b"one\n", mtime=0)
    disk = MemoryDisk()
    disk.put(f"/out/{NAME}-000000.2026-11-23_13.log.gz", whole + bytes(5000))
    topic_files(disk, rules(gzip_level=6), Clock())
    assert [*disk.content("/out").values()] == [whole]


# -- a full disk ---------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0, 6])
def test_a_full_disk_leaves_whole_messages(level: int) -> None:
    disk = MemoryDisk()
    files = topic_files(disk, rules(gzip_level=level), Clock())
    files.write(b"first")
    files.sync()
    disk.room = 3
    with pytest.raises(CannotBackUp, match=r"cannot write /out/.*: No space left on device"):
        files.write(b"second")
        files.sync()
    files.abandon()
    (data,) = disk.content("/out").values()
    assert (gzip.decompress(data) if level else data) == b"first\n"


# -- every step ----------------------------------------------------------------------------------

MESSAGES = [f"message {number:02}".encode() for number in range(12)]
WAYS = {
    "plain": rules(),
    "size": rules(rotate_size=40),
    "interval": rules(rotate_interval=3.0),
    "gzip": rules(gzip_level=6, rotate_size=40),
    "work": rules(work_dir="/work", rotate_size=40),
    "work and gzip": rules(work_dir="/work", rotate_size=40, gzip_level=6),
    "another file system": rules(work_dir="/work", rotate_size=40, gzip_level=1),
}


def back_up(disk: MemoryDisk, how: Rules, clock: Clock, bodies: list[bytes]) -> list[bytes]:
    """What was finished before the end, or before a kill. It syncs after three."""
    finished: list[bytes] = []
    pending: list[bytes] = []
    try:
        files = topic_files(disk, how, clock)
        for body in bodies:
            clock.now += 1
            files.write(body)
            pending.append(body)
            if len(pending) == 3:
                files.sync()
                finished += pending
                pending = []
        files.close()
        finished += pending
    except Killed:
        pass
    return finished


def lines(disk: MemoryDisk, how: Rules) -> list[bytes]:
    found: list[bytes] = []
    for name, data in disk.content("/out").items():
        if name.endswith(".part"):
            continue
        text = gzip.decompress(data) if how.gzip_level else data
        assert text == b"" or text.endswith(b"\n")
        found += text.splitlines()
    return found


def fresh(way: str) -> MemoryDisk:
    disk = MemoryDisk()
    if way == "another file system":
        disk.foreign = ("/out",)
    return disk


ENDS = ["kill", "power", "power, half of the rest is there"]


# Each two of end, way and time meet in the first ring. The third ring has the other half.
@pytest.mark.parametrize(
    ("end", "way", "later"),
    [
        pytest.param(end, way, later, id=f"{end}-{way}-{later:g}{half}")
        for of_end, end in enumerate(ENDS)
        for of_way, way in enumerate(WAYS)
        for later, half in zip(
            (1.0, 7200.0), (("", "-many"), ("-many", ""))[(of_end + of_way) % 2], strict=True
        )
    ],
)
def test_an_end_at_every_step_loses_nothing(way: str, end: str, later: float) -> None:
    how = WAYS[way]
    disk = fresh(way)
    assert back_up(disk, how, Clock(), MESSAGES) == MESSAGES
    assert lines(disk, how) == MESSAGES
    for step in range(1, disk.steps + 1):
        disk, clock = fresh(way), Clock()
        disk.kill_at = step
        finished = back_up(disk, how, clock, MESSAGES)
        if end == "kill":
            disk.end_process()
        else:
            disk.end_power(0.0 if end == "power" else 0.5)
        clock.now += later
        # nsqd delivers again what was not finished.
        left = [body for body in MESSAGES if body not in finished]
        assert back_up(disk, how, clock, left) == left
        found = lines(disk, how)
        assert sorted(set(found)) == MESSAGES, f"step {step}"
        # Twice: what was written and not yet finished, and a file that was just being moved.
        assert len(found) <= len(MESSAGES) + 6, f"step {step}"
        assert disk.content("/work") == {}, f"step {step}"


def test_two_kills_in_a_row() -> None:
    how = WAYS["work and gzip"]
    for first, second in itertools.product(range(5, 80, 5), range(1, 40, 3)):
        disk, clock = MemoryDisk(), Clock()
        left = MESSAGES
        for kill_at in (first, second, None):
            disk.kill_at = None if kill_at is None else disk.steps + kill_at
            finished = back_up(disk, how, clock, left)
            left = [body for body in left if body not in finished]
            disk.end_process()
        assert left == []
        assert sorted(set(lines(disk, how))) == MESSAGES

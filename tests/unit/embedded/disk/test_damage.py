"""Damaged folders: every truncation, every flipped byte, and what is told about them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gnsqsync.embedded.disk.records import HEAD_SIZE, decode
from tests.support.memoryfiles import MemoryFiles
from tests.unit.embedded.disk.queues import LIMITS, Bench, bodies, record

LENGTHS = (2, 70, 5, 300, 26, 1, 40, 9, 33)
RECORDS = [record(number, b"%d" % number + b"." * length) for number, length in enumerate(LENGTHS)]
BODIES = [decode(one[4:]).body for one in RECORDS]
DATA = "t.diskqueue.%06d.dat"
META = "t.diskqueue.meta.dat"


def folder(*, is_clean: bool = True, taken: int = 1) -> MemoryFiles:
    """Three files of nine messages, of which the first ones are taken."""
    bench = Bench(limits=LIMITS._replace(max_bytes_per_file=420))
    for one in RECORDS[:-2]:
        bench.put(one)
    bench.take(taken)
    bench.queue.sync()
    bench.put(*RECORDS[-2:])
    if is_clean:
        bench.queue.close()
    assert len(bench.sizes()) == 3
    return bench.files


def where(name: str, offset: int) -> tuple[int, int]:
    """Which message has this byte of a data file, and where in it."""
    number = int(name.split(".")[-2])
    begin = 0
    for index in FILES[number]:
        size = len(RECORDS[index])
        if offset < begin + size:
            return index, offset - begin
        begin += size
    raise AssertionError(offset)


def _contents() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    index = 0
    for name, data in sorted(folder().contents.items()):
        if name != META:
            size = 0
            while size < len(data):
                found.setdefault(int(name.split(".")[-2]), []).append(index)
                size += len(RECORDS[index])
                index += 1
    return found


FILES = _contents()


def damaged(
    is_clean: bool, changes: tuple[int, ...] = (0x01, 0x10, 0x80, 0xFF)
) -> Iterator[tuple[str, str, int, MemoryFiles]]:
    """Yield what was done to which file, where, and the folder."""
    whole = folder(is_clean=is_clean)
    for name, data in whole.contents.items():
        for offset in range(len(data)):
            for change in changes:
                files = whole.copy()
                files.contents[name][offset] ^= change
                yield f"flip {change:02x}", name, offset, files
            files = whole.copy()
            del files.contents[name][offset:]
            yield "cut", name, offset, files


# The other bits have their turn in the third ring.
@pytest.mark.parametrize("changes", [(0x01, 0xFF), (0x10, 0x80)], ids=["one or all", "others"])
@pytest.mark.parametrize("is_clean", [True, False])
def test_every_flipped_byte_and_every_truncation(is_clean: bool, changes: tuple[int, ...]) -> None:
    begun = 1
    for what, name, offset, files in damaged(is_clean, changes):
        case = (what, name, offset)
        bench = Bench(files)
        depth = bench.queue.depth
        found = bench.drain()
        lost = [index for index in range(begun, 9) if BODIES[index] not in found]
        strange = [body for body in found if body not in BODIES]
        if name == META:
            assert lost == strange == [], case
        elif what == "cut":
            # All that began in the rest.
            rest = [
                index
                for index in FILES[int(name.split(".")[-2])]
                if where(name, offset)[0] <= index
            ]
            assert strange == [], case
            assert set(lost) <= set(rest), case
        else:
            hit, place = where(name, offset)
            assert set(lost) <= {hit}, case
            assert len(strange) <= 1, case
            if strange and place >= HEAD_SIZE:
                assert len(strange[0]) == len(BODIES[hit]), case
            elif strange:
                # Nothing tells where the last message of a file ends but its length.
                assert place < 4 and hit == FILES[int(name.split(".")[-2])][-1], case
                assert BODIES[hit].startswith(strange[0]), case
                assert bench.bad() == [f"{name}.bad"], case
        # A file that ends where the meta file says looks as if nothing had been written since.
        no_trace = what == "cut" and f"\n2,{offset}\n" in (Bench(files.copy()).meta() or "")
        if lost and not strange and not no_trace:
            assert "ERROR" in bench.log or "WARNING" in bench.log, case
        if not strange and name != META:
            assert len(found) == len(set(found)), case
        assert (bench.queue.depth, bench.queue.head()) == (0, None)
        # Small queues are counted at the start.
        assert depth == len(found), case
        # Whatever it was, new messages come through.
        bench.put(record(100), record(101))
        after = bench.stopped()
        assert after.drain() == bodies([100, 101]), case
        assert after.bad() == bench.bad()


def test_a_damaged_length_loses_nothing() -> None:
    """But of the last message of a file that is older than the meta file."""
    for what, name, offset, files in damaged(is_clean=True):
        if name == META or what == "cut":
            continue
        hit, place = where(name, offset)
        if place < 4 and hit not in (FILES[0][-1], FILES[1][-1]):
            bench = Bench(files)
            assert bench.drain() == BODIES[1:], (what, name, offset)
            if hit:
                assert bench.bad() == [f"{name}.bad"]


def one_file(count: int = 4) -> Bench:
    bench = Bench()
    bench.put(*[record(number) for number in range(count)])
    bench.queue.close()
    return Bench(bench.files)


SIZE = len(record(0))


def test_a_cut_body_is_not_padded() -> None:
    files = one_file().files
    del files.contents[DATA % 0][-1:]
    bench = Bench(files)
    assert f"metadata writePos {4 * SIZE} > file size of {4 * SIZE - 1}" in bench.log
    bench.put(record(4), record(5))
    assert bench.queue.depth == 5
    assert bench.drain() == bodies([0, 1, 2, 4, 5])
    assert bench.bad() == [f"{DATA % 0}.bad"]


@pytest.mark.parametrize("garbage", [b"\xff" * 10, bytes(100), b"\0", record(9)[:20]])
def test_bytes_that_a_crash_left_behind_the_last_message(garbage: bytes) -> None:
    files = one_file().files
    files.contents[DATA % 0] += garbage
    bench = Bench(files)
    assert "skipping to new file" in bench.log
    assert bench.queue.depth == 4
    bench.put(record(4))
    # Once more, so that nothing is known of the meta file that was there.
    again = bench.stopped()
    assert again.drain() == bodies(range(5))
    assert again.bad() == [f"{DATA % 0}.bad"]


def test_messages_behind_the_positions_count() -> None:
    bench = Bench()
    bench.put(*[record(number) for number in range(10)])
    bench.queue.sync()
    bench.put(*[record(number) for number in range(10, 17)])
    after = bench.killed()
    assert f"metadata writePos {10 * SIZE + 0} < file size of" in after.log
    assert after.queue.depth == 17
    assert after.meta() == "17\n0,0\n1,0\n"
    assert after.drain() == bodies(range(17))
    assert "depth at tail" not in after.log
    assert after.bad() == []


def test_no_meta_file() -> None:
    bench = Bench(limits=LIMITS._replace(max_bytes_per_file=SIZE * 2))
    bench.put(*[record(number) for number in range(7)])
    bench.files.contents.pop(META)
    after = bench.killed()
    assert "reading all 7 messages again" in after.log
    assert (after.queue.depth, after.drain()) == (7, bodies(range(7)))


@pytest.mark.parametrize(
    "meta",
    [
        "",
        "4\n",
        "garbage",
        "4\n0,0\n0",
        "4\n0,200\n0,128\n",
        "4\n5,0\n0,128\n",
        "4\n-1,0\n0,1\n",
        "4\n0,0\n99999999999999999999,0\n",
        "\n" * 9,
    ],
)
def test_a_meta_file_that_cannot_be_right(meta: str) -> None:
    files = one_file().files
    files.contents[META][:] = meta.encode()
    bench = Bench(files)
    assert "WARNING" in bench.log
    assert (bench.queue.depth, bench.drain(), bench.bad()) == (4, bodies(range(4)), [])


@pytest.mark.parametrize("depth", [-3, 0, 1, 9])
def test_a_wrong_depth(depth: int) -> None:
    files = one_file().files
    files.contents[META][:] = b"%d\n0,0\n0,128\n" % depth
    bench = Bench(files)
    assert f"metadata depth is {depth}, but there are 4 messages" in bench.log
    assert (bench.queue.depth, bench.drain(), bench.queue.depth) == (4, bodies(range(4)), 0)


def test_a_read_position_inside_of_a_message() -> None:
    files = one_file().files
    files.contents[META][:] = b"3\n0,35\n0,128\n"
    bench = Bench(files)
    assert "metadata readPos 35 is inside of a message" in bench.log
    assert bench.drain() == bodies(range(4))


@pytest.mark.parametrize("how", ["missing", "empty", "zeros", "head"])
def test_one_of_four_files(how: str) -> None:
    bench = Bench(limits=LIMITS._replace(max_bytes_per_file=SIZE * 2))
    bench.put(*[record(number) for number in range(7)])
    bench.queue.close()
    contents = bench.files.contents
    left = bodies([0, 1, 4, 5, 6])
    if how == "missing":
        del contents[DATA % 1]
    elif how == "empty":
        contents[DATA % 1].clear()
    elif how == "zeros":
        contents[DATA % 1][:] = bytes(2 * SIZE)
    else:
        # nsqd would lose the second one, too.
        contents[DATA % 1][:HEAD_SIZE] = bytes(HEAD_SIZE)
        left[2:2] = bodies([3])
    after = bench.killed()
    assert (after.queue.depth, after.drain()) == (len(left), left)
    assert after.bad() == ([f"{DATA % 1}.bad"] if how in ("zeros", "head") else [])


def test_all_data_files_are_missing() -> None:
    files = one_file().files
    del files.contents[DATA % 0]
    bench = Bench(files)
    assert (bench.queue.depth, bench.drain()) == (0, [])
    bench.put(record(1))
    assert bench.stopped().drain() == bodies([1])


def test_a_write_number_that_nobody_reached_is_no_long_way() -> None:
    files = one_file().files
    files.contents[META][:] = b"4\n0,0\n999999999999999,0\n"
    bench = Bench(files)
    assert bench.drain() == bodies(range(4))
    bench.put(record(4))
    assert bench.drain() == bodies([4])


def test_a_smaller_max_msg_size_damages_nothing() -> None:
    bench = Bench()
    bench.put(*[record(number, b"x" * 100) for number in range(3)])
    after = bench.stopped(LIMITS._replace(longest=50))
    assert (after.drain(), after.bad()) == ([b"x" * 100] * 3, [])


def test_messages_of_others_than_an_nsqd_are_read() -> None:
    """go-diskqueue itself takes any payload."""
    bench = Bench(limits=LIMITS._replace(max_bytes_per_file=200))
    for number in range(9):
        bench.put((40).to_bytes(4) + b"%040d" % number)
    bench.queue.close()
    after = Bench(bench.files)
    assert after.queue.depth == 9
    assert len(after.drain()) == 9
    assert after.bad() == []


def test_a_message_that_holds_the_bytes_of_messages() -> None:
    """A record in a body is found only when what is around it is damaged."""
    nested = record(50) + record(51)
    bench = Bench()
    bench.put(record(0), record(1, nested), record(2))
    bench.queue.close()
    whole = Bench(bench.files.copy())
    assert whole.drain() == [b"m0", nested, b"m2"]


def test_a_file_that_is_cut_while_the_queue_runs() -> None:
    bench = Bench()
    bench.put(*[record(number) for number in range(4)])
    del bench.files.contents[DATA % 0][-40:]
    assert bench.take(2) == bodies([0, 1])
    bench.put(record(4))
    assert bench.drain() == bodies([4])
    assert bench.queue.depth == 0
    assert bench.bad() == [f"{DATA % 0}.bad"]


def test_leftovers_of_the_meta_file_are_removed() -> None:
    files = one_file().files
    files.contents[META + ".8674665223082153551.tmp"] = bytearray()
    files.contents["t2.diskqueue.meta.dat.1.tmp"] = bytearray()
    assert Bench(files).drain() == bodies(range(4))
    assert [name for name in files.contents if name.endswith("tmp")] == [
        "t2.diskqueue.meta.dat.1.tmp"
    ]

"""The disk queue without a disk: writing, reading, rolling, syncing, emptying, failing."""

from __future__ import annotations

import errno
import random

import pytest

from gnsqsync.embedded.disk.queue import DiskFailed
from gnsqsync.embedded.disk.records import decode, encode
from tests.support.memoryfiles import Killed, MemoryFiles, failure
from tests.unit.embedded.disk.queues import BEGAN, LIMITS, Bench, bodies, record, records

SIZE = len(record(0))


def test_the_format_is_nsqds() -> None:
    bench = Bench()
    bench.put(encode(1, 2, b"0123456789abcdef", b"body"))
    assert bench.files.contents == {
        "t.diskqueue.000000.dat": bytes.fromhex("0000001e 0000000000000001 0002")
        + b"0123456789abcdefbody"
    }
    bench.queue.sync()
    assert bench.meta() == "1\n0,0\n0,34\n"
    assert decode(record(7, attempts=3)[4:])[:2] == (BEGAN + 7 * 10**9, 3)


def test_nothing_is_made_before_the_first_message() -> None:
    bench = Bench()
    assert (bench.queue.depth, bench.queue.head(), bench.files.contents) == (0, None, {})
    bench.queue.close()
    assert bench.meta() == "0\n0,0\n0,0\n"


def test_first_in_first_out() -> None:
    bench = Bench()
    bench.put(*records(3))
    assert bench.take(2) == bodies([0, 1])
    bench.put(*records(2, start=3))
    assert (bench.queue.depth, bench.drain(), bench.queue.depth) == (3, bodies([2, 3, 4]), 0)
    assert bench.sizes() == {0: 5 * SIZE}


def test_the_head_stays_until_it_is_taken() -> None:
    bench = Bench()
    bench.put(*records(2))
    assert bench.queue.head() == bench.queue.head() == record(0)[4:]
    assert bench.queue.depth == 2
    assert bench.stopped().drain() == bodies([0, 1])


@pytest.mark.parametrize(
    ("limit", "sizes", "meta"),
    [
        (2 * SIZE, {0: 64, 1: 64, 2: 64, 3: 32}, "6\n0,0\n3,0\n"),
        (2 * SIZE - 1, dict.fromkeys(range(7), SIZE), "6\n0,0\n6,0\n"),
        (0, dict.fromkeys(range(7), SIZE), "6\n0,0\n6,0\n"),
        (-5, dict.fromkeys(range(7), SIZE), "6\n0,0\n6,0\n"),
    ],
)
def test_rolling(limit: int, sizes: dict[int, int], meta: str) -> None:
    bench = Bench(limits=LIMITS._replace(max_bytes_per_file=limit))
    bench.put(*records(7))
    assert (bench.sizes(), bench.meta()) == (sizes, meta)
    for other in (bench, bench.killed(), bench.stopped(), bench.killed(LIMITS)):
        assert other.queue.depth == 7
        assert other.drain() == bodies(range(7))
        assert (other.bad(), other.queue.depth) == ([], 0)


def test_a_file_that_is_read_is_removed_at_once() -> None:
    bench = Bench(limits=LIMITS._replace(max_bytes_per_file=2 * SIZE))
    bench.put(*records(7))
    assert bench.take(3) == bodies([0, 1, 2])
    assert bench.sizes().keys() == {1, 2, 3}
    assert bench.take(1) == bodies([3])
    assert (bench.sizes().keys(), bench.meta()) == ({2, 3}, f"3\n2,0\n3,{SIZE}\n")


def test_a_reader_that_keeps_up_leaves_no_file_behind() -> None:
    bench = Bench(limits=LIMITS._replace(max_bytes_per_file=2 * SIZE))
    for number in range(9):
        bench.put(record(number))
        assert bench.take(1) == bodies([number])
    assert (bench.sizes(), bench.bad(), bench.log.count("ERROR")) == ({4: SIZE}, [], 0)


def test_names_of_other_queues() -> None:
    files = MemoryFiles()
    names = ("t", "t:c", "t.diskqueue.000001.dat", "tt")
    benches = [Bench(files, name=name) for name in names]
    for number, bench in enumerate(benches):
        bench.put(record(number))
        bench.queue.sync()
    benches[0].queue.empty()
    assert not any(
        name.startswith("t.diskqueue.0") and name.count("disk") == 1 for name in files.contents
    )
    for number, bench in enumerate(benches[1:], 1):
        assert bench.killed().drain() == bodies([number])


# -- sync ------------------------------------------------------------------------------------------


def test_sync_every_counts_writes_and_reads() -> None:
    bench = Bench(limits=LIMITS._replace(sync_every=5))
    bench.put(*records(4))
    assert bench.meta() is None
    bench.put(record(4))
    assert bench.meta() == f"5\n0,0\n0,{5 * SIZE}\n"
    bench.put(*records(3))
    bench.take(1)
    assert bench.meta() == f"5\n0,0\n0,{5 * SIZE}\n"
    bench.take(1)
    assert bench.meta() == f"6\n0,{2 * SIZE}\n0,{8 * SIZE}\n"


def test_sync_by_time() -> None:
    bench = Bench(limits=LIMITS._replace(sync_every=0))
    assert bench.queue.sync_at is None
    bench.put(*records(9))
    assert bench.queue.sync_at == 102.0
    bench.clock.now = 101.9
    bench.queue.tick()
    assert bench.meta() is None
    bench.clock.now = 102.0
    bench.queue.tick()
    assert (bench.meta(), bench.queue.sync_at) == (f"9\n0,0\n0,{9 * SIZE}\n", None)


def test_data_is_synced_before_the_positions() -> None:
    bench = Bench()
    bench.put(record(0))
    bench.files.operations.clear()
    bench.queue.sync()
    done = [operation for operation, _ in bench.files.operations]
    assert done == ["sync", "create", "truncate", "write", "sync", "rename"]


def test_a_failed_sync_is_tried_again_after_the_next_operation() -> None:
    bench = Bench(limits=LIMITS._replace(sync_every=2))

    def fail(operation: str, name: str) -> None:
        if operation == "sync":
            raise failure(errno.EIO, name)

    bench.files.before = fail
    bench.put(*records(2))
    assert (bench.meta(), bench.log.count("failed to sync - input/output error")) == (None, 1)
    bench.put(record(2))
    assert bench.log.count("failed to sync") == 2
    bench.files.before = lambda operation, name: None
    bench.put(record(3))
    assert bench.meta() == f"4\n0,0\n0,{4 * SIZE}\n"
    assert bench.stopped().drain() == bodies(range(4))


# -- emptying --------------------------------------------------------------------------------------


def test_emptying_removes_the_files_and_goes_on_with_the_next_number() -> None:
    bench = Bench(limits=LIMITS._replace(max_bytes_per_file=2 * SIZE))
    bench.files.contents["t.diskqueue.000001.dat.bad"] = bytearray(b"x")
    bench.put(*records(7))
    bench.take(1)
    bench.queue.empty()
    assert bench.files.contents.keys() == {"t.diskqueue.000001.dat.bad"}
    assert (bench.queue.depth, bench.queue.head(), bench.killed().queue.depth) == (0, None, 0)
    bench.put(*records(2))
    assert bench.sizes() == {4: 64}
    # nsqd would begin at 0 again and lose them.
    assert bench.killed().drain() == bodies([0, 1])
    assert bench.drain() == bodies([0, 1])


# -- a disk that fails -----------------------------------------------------------------------------


def test_a_full_disk() -> None:
    bench = Bench()
    bench.put(*records(3))
    bench.files.room = 3 * SIZE + 10
    with pytest.raises(DiskFailed) as caught:
        bench.queue.put(record(3))
    assert str(caught.value) == "write /Data/t.diskqueue.000000.dat: no space left on device"
    assert (bench.queue.depth, bench.sizes()) == (3, {0: 3 * SIZE})
    assert bench.killed().drain() == bodies(range(3))
    bench.files.room = None
    bench.put(record(4))
    assert (bench.sizes(), bench.drain()) == ({0: 4 * SIZE}, bodies([0, 1, 2, 4]))
    assert bench.log.count("ERROR") == 0


def test_a_short_write_goes_on() -> None:
    bench = Bench()
    write = bench.files.open("t.diskqueue.000000.dat", create=True).__class__.write
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "tests.support.memoryfiles.MemoryFile.write",
            lambda file, data, position: write(file, data[:7], position),
        )
        bench.put(*records(3))
    assert bench.drain() == bodies(range(3))


def test_a_file_that_cannot_be_made() -> None:
    bench = Bench()

    def fail(operation: str, name: str) -> None:
        if operation == "create":
            raise failure(errno.EROFS, name)

    bench.files.before = fail
    with pytest.raises(DiskFailed) as caught:
        bench.queue.put(record(0))
    assert str(caught.value) == "open /Data/t.diskqueue.000000.dat: read-only file system"
    assert bench.queue.depth == 0
    bench.files.before = lambda operation, name: None
    bench.put(record(1))
    assert bench.drain() == bodies([1])


def test_too_many_open_files_are_no_damage() -> None:
    bench = Bench()
    bench.put(*records(3))

    def fail(operation: str, name: str) -> None:
        if operation == "open":
            raise failure(errno.EMFILE, name)

    bench.files.before = fail
    assert (bench.drain(), bench.queue.depth) == ([], 3)
    assert bench.log.count("too many open files") == 1
    bench.files.before = lambda operation, name: None
    # It is not asked for again at every look.
    assert bench.drain() == []
    bench.clock.now += 2.0
    bench.queue.tick()
    assert (bench.drain(), bench.bad()) == (bodies(range(3)), [])


def test_a_disk_that_cannot_read_a_file() -> None:
    bench = Bench(limits=LIMITS._replace(max_bytes_per_file=2 * SIZE))
    bench.put(*records(5))

    def fail(operation: str, name: str) -> None:
        if operation == "read" and name.endswith("000001.dat"):
            raise failure(errno.EIO, name)

    bench.files.before = fail
    assert bench.drain() == bodies([0, 1, 4])
    assert bench.bad() == ["t.diskqueue.000001.dat.bad"]
    assert "positive depth at tail (2), resetting 0..." in bench.log
    assert bench.queue.depth == 0


def test_a_put_can_be_taken_back() -> None:
    bench = Bench(limits=LIMITS._replace(sync_every=1))
    bench.put(*records(2))
    bench.queue.put(record(2))
    bench.queue.take_back()
    bench.queue.sync_if_due()
    assert (bench.queue.depth, bench.meta()) == (2, f"2\n0,0\n0,{2 * SIZE}\n")
    bench.put(record(3))
    assert bench.drain() == bodies([0, 1, 3])


# -- killed at every operation ---------------------------------------------------------------------


def _work(bench: Bench, acknowledged: list[bytes], taken: list[bytes]) -> None:
    """Some of everything, in small files."""
    for number in range(12):
        bench.put(record(number))
        acknowledged.append(b"m%d" % number)
        if number % 3 == 2:
            # In flight from here on, whether or not the call returns.
            taken.append(b"m%d" % len(taken))
            bench.take(1)
    bench.queue.close()


@pytest.mark.parametrize("sync_every", [1, 5, 0])
def test_killed_at_every_operation(sync_every: int) -> None:
    limits = LIMITS._replace(max_bytes_per_file=3 * SIZE, sync_every=sync_every)
    whole = Bench(limits=limits)
    _work(whole, [], [])
    for last in range(len(whole.files.operations) - 1):
        bench = Bench(limits=limits)
        left = iter(range(last))

        def kill(operation: str, name: str, left: object = left) -> None:
            if next(left, None) is None:  # type: ignore[call-overload]
                raise Killed

        bench.files.before = kill
        acknowledged: list[bytes] = []
        taken: list[bytes] = []
        with pytest.raises(Killed):
            _work(bench, acknowledged, taken)
        after = bench.killed()
        # With another kill right after the start.
        again = after.killed()
        assert after.queue.depth == again.queue.depth
        found = again.drain()
        assert set(acknowledged) - set(taken) <= set(found), (last, bench.files.operations[last])
        assert found == sorted(found, key=lambda body: int(body[1:]))
        assert (again.bad(), len(found), again.queue.depth) == ([], after.queue.depth, 0)
        if sync_every == 1:
            # At most the one that was just being taken comes again.
            assert not set(taken[:-1]) & set(found)


def test_a_roll_while_a_message_is_read_ahead() -> None:
    bench = Bench(limits=LIMITS._replace(max_bytes_per_file=3 * SIZE))
    bench.put(record(0))
    assert bench.queue.head() is not None
    bench.put(*records(4, start=1))
    assert bench.drain() == bodies(range(5))
    assert (bench.queue.depth, bench.log.count("ERROR")) == (0, 0)


@pytest.mark.parametrize("seed", range(40))
def test_anything_in_any_order(seed: int) -> None:
    """Against a list; a clean stop loses and repeats nothing, nor does anything else."""
    chance = random.Random(seed)
    limits = LIMITS._replace(
        max_bytes_per_file=chance.choice([1, 100, 300]), sync_every=chance.choice([0, 1, 7])
    )
    bench = Bench(limits=limits)
    expected: list[bytes] = []
    for number in range(400):
        step = chance.random()
        if step < 0.5:
            body = b"m%d" % number + b"." * chance.randrange(60)
            bench.put(record(number, body))
            expected.append(body)
        elif step < 0.6:
            assert (bench.queue.head() is None) == (not expected)
        elif step < 0.65 and number:
            bench.put(record(number))
            bench.queue.take_back()
        elif step < 0.9:
            count = min(len(expected), chance.randrange(6))
            assert bench.take(count) == expected[:count]
            del expected[:count]
        elif step < 0.93:
            bench = bench.stopped()
        elif step < 0.95:
            bench.clock.now += chance.random() * 3
            bench.queue.tick()
        elif step < 0.97 and limits.sync_every == 1:
            bench.queue.sync_if_due()
            bench = bench.killed()
        elif step < 0.975:
            bench.queue.empty()
            expected.clear()
        assert bench.queue.depth == len(expected)
    assert bench.drain() == expected
    assert (bench.bad(), bench.log.count("ERROR")) == ([], 0)

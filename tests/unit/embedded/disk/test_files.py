"""The real file operations."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gnsqsync.daemon.golog import Log
from gnsqsync.embedded.disk.files import FolderFiles, reason
from gnsqsync.embedded.disk.queue import DiskFailed, DiskQueue
from gnsqsync.embedded.disk.records import decode
from tests.unit.embedded.disk.queues import LIMITS, Clock, bodies, records


def real_queue(folder: Path) -> DiskQueue:
    return DiskQueue("t:c", FolderFiles(str(folder)), LIMITS, Clock(), Log(""))


def test_a_queue_in_a_real_folder(tmp_path: Path) -> None:
    queue = real_queue(tmp_path)
    umask = os.umask(0)
    try:
        for one in records(5):
            queue.put(one)
        queue.close()
    finally:
        os.umask(umask)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"t:c.diskqueue.000000.dat": 0o600, "t:c.diskqueue.meta.dat": 0o600}
    queue = real_queue(tmp_path)
    found = []
    while queue.head() is not None:
        found.append(decode(queue.take()).body)
    assert found == bodies(range(5))
    queue.empty()
    assert os.listdir(tmp_path) == []


def test_errors_name_the_file(tmp_path: Path) -> None:
    files = FolderFiles(str(tmp_path))
    with pytest.raises(FileNotFoundError) as caught:
        files.open("x")
    assert caught.value.filename == f"{tmp_path}/x"
    file = files.open("x", create=True)
    file.write(b"abc", 2)
    file.truncate(4)
    assert (file.size(), file.read(10, 0)) == (4, b"\0\0ab")
    file.sync()
    file.close()
    for call in (
        lambda: file.read(1, 0),
        lambda: file.write(b"", 0),
        lambda: file.truncate(0),
        file.sync,
    ):
        with pytest.raises(OSError) as failed:
            call()
        assert failed.value.filename == f"{tmp_path}/x"
        assert reason(failed.value) == "bad file descriptor"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_the_error_of_a_full_disk(tmp_path: Path) -> None:
    name = "t:c.diskqueue.000000.dat"
    queue = real_queue(tmp_path)
    (tmp_path / name).symlink_to("/dev/full")
    with pytest.raises(DiskFailed, match=f"write {tmp_path}/{name}: no space left on device"):
        queue.put(records(1)[0])

"""Folders that the real nsqd wrote, read by our disk queue, and the other way round."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gnsqsync.daemon.golog import Log
from gnsqsync.embedded.disk.files import FolderFiles
from gnsqsync.embedded.disk.queue import DiskQueue, Limits
from gnsqsync.embedded.disk.records import Stored, decode, encode
from gnsqsync.embedded.guid import GuidFactory
from tests.conformance.rows import create_channel
from tests.support.rawclient import Message, channel_stats, post, topic_stats
from tests.support.servers import Server, Site

pytestmark = pytest.mark.parametrize("server_kind", ["real"])

# Several files of a few messages each.
FLAGS = ("-mem-queue-size=0", "-max-bytes-per-file=200", "-sync-every=1")
LIMITS = Limits(max_bytes_per_file=200, sync_every=1, sync_timeout=2.0, longest=1 << 20)


def open_queue(folder: Path, name: str) -> DiskQueue:
    return DiskQueue(name, FolderFiles(str(folder)), LIMITS, time.monotonic, Log("", level="error"))


def put(queue: DiskQueue, *bodies: bytes) -> list[Stored]:
    """Messages as the embedded nsqd makes them."""
    guid = GuidFactory(1)
    stored = []
    for body in bodies:
        now = time.time_ns()
        stored.append(Stored(now, 0, guid.new_id(now), body))
        queue.put(encode(*stored[-1]))
        queue.sync_if_due()
    return stored


def take(queue: DiskQueue, count: int) -> list[Stored]:
    found = []
    for _ in range(count):
        assert queue.head() is not None
        found.append(decode(queue.take()))
        queue.sync_if_due()
    return found


def bodies(start: int, stop: int) -> list[bytes]:
    return [b"%d" % number * (number + 1) for number in range(start, stop)]


def fields(messages: list[Message]) -> list[Stored]:
    return [Stored(m.timestamp, m.attempts - 1, m.id, m.body) for m in messages]


@pytest.fixture
def nsqd(site: Site) -> Server:
    """A real nsqd with topic t and channel c."""
    server = site.own_nsqd(*FLAGS)
    create_channel(server, "t", "c")
    return server


@pytest.fixture(params=["stopped", "killed"])
def end(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def end_server(server: Server, end: str) -> None:
    if end == "stopped":
        assert server.stop() == 0
    else:
        server.kill()


def test_ours_takes_over_from_the_real_one(site: Site, nsqd: Server, end: str) -> None:
    site.client(nsqd).publish("t", *bodies(0, 12))
    site.eventually(lambda: channel_stats(nsqd.http_address, "t", "c")["backend_depth"] == 12)
    client = site.client(nsqd)
    client.subscribe("t", "c", 5)
    client.fin(*client.messages(5))
    client.messages(5)
    # nsqd syncs after its answer.
    wait_for_depth(site, nsqd, "t:c", 2)
    end_server(nsqd, end)
    queue = open_queue(nsqd.data_path, "t:c")
    found = take(queue, queue.depth)
    assert queue.head() is None
    assert [stored.body for stored in found[:2]] == bodies(10, 12)
    # Those in flight: a clean stop puts them behind the others.
    in_flight = sorted((stored.body, stored.attempts) for stored in found[2:])
    assert in_flight == (sorted((b, 1) for b in bodies(5, 10)) if end == "stopped" else [])


def wait_for_depth(site: Site, server: Server, queue: str, depth: int) -> None:
    """Until the meta file says so."""
    path = server.data_path / f"{queue}.diskqueue.meta.dat"
    site.eventually(lambda: path.exists() and path.read_text().startswith(f"{depth}\n"))


def test_the_real_one_takes_over_from_ours(site: Site, nsqd: Server, end: str) -> None:
    assert nsqd.stop() == 0
    queue = open_queue(nsqd.data_path, "t:c")
    stored = put(queue, *bodies(0, 12))
    assert take(queue, 5) == stored[:5]
    if end == "stopped":
        queue.close()
    nsqd.start()
    assert channel_stats(nsqd.http_address, "t", "c")["depth"] == 7
    client = site.client(nsqd)
    client.subscribe("t", "c", 100)
    found = client.messages(7)
    assert fields(found) == stored[5:]
    client.fin(*found)
    site.client(nsqd).publish("t", b"new")
    assert client.message().body == b"new"
    assert "ERROR" not in nsqd.log


def test_turn_by_turn(site: Site, nsqd: Server, end: str) -> None:
    """One queue of a topic, filled and read by both, three times over."""
    assert post(nsqd.http_address, "/topic/pause?topic=t").status == 200
    expected: list[bytes] = []
    for turn in range(3):
        first, second = bodies(turn * 8, turn * 8 + 4), bodies(turn * 8 + 4, turn * 8 + 8)
        site.client(nsqd).publish("t", *first)
        expected += first
        wait_for_depth(site, nsqd, "t", len(expected))
        end_server(nsqd, end)
        queue = open_queue(nsqd.data_path, "t")
        assert queue.depth == len(expected)
        put(queue, *second)
        expected += second
        assert [stored.body for stored in take(queue, 3)] == expected[:3]
        del expected[:3]
        if end == "stopped":
            queue.close()
        nsqd.start()
        assert topic_stats(nsqd.http_address, "t")["depth"] == len(expected)
    assert post(nsqd.http_address, "/topic/unpause?topic=t").status == 200
    client = site.client(nsqd)
    client.subscribe("t", "c", 100)
    assert [message.body for message in client.messages(len(expected))] == expected
    assert not list(nsqd.data_path.glob("t.*.bad"))


@pytest.mark.parametrize("first", ["real", "embedded"])
def test_one_folder_for_both(site: Site, first: str) -> None:
    """Whoever comes second does not start, and the first one goes on."""
    other = "embedded" if first == "real" else "real"
    one = Server(first, "nsqd")
    two = Server(other, "nsqd", [f"-data-path={one.data_path}", "-log-prefix=x"])
    try:
        one.start()
        assert two.run_to_the_end() == 1
        assert "cannot flock directory" in two.log
        assert post(one.http_address, "/pub?topic=t", b"x").status == 200
        one.kill()
        # A lock ends with its process.
        two.start()
    finally:
        one.discard()
        two.discard()


def test_bytes_that_the_real_one_had_not_synced(site: Site) -> None:
    nsqd = site.own_nsqd("-mem-queue-size=0", "-sync-every=10", "-sync-timeout=1h")
    site.client(nsqd).publish("t", *bodies(0, 17))
    site.eventually(lambda: topic_stats(nsqd.http_address, "t")["depth"] == 17)
    nsqd.kill()
    queue = open_queue(nsqd.data_path, "t")
    # The real one would say 10, and with less than 10 it would lose all.
    assert queue.depth == 17
    assert [stored.body for stored in take(queue, 17)] == bodies(0, 17)


def test_bytes_that_ours_had_not_synced(site: Site) -> None:
    nsqd = site.own_nsqd("-mem-queue-size=0")
    assert post(nsqd.http_address, "/topic/create?topic=t").status == 200
    assert nsqd.stop() == 0
    files = FolderFiles(str(nsqd.data_path))
    queue = DiskQueue(
        "t", files, LIMITS._replace(sync_every=0), time.monotonic, Log("", level="error")
    )
    put(queue, *bodies(0, 3))
    queue.sync()
    put(queue, *bodies(3, 5))
    nsqd.start()
    create_channel(nsqd, "t", "c")
    client = site.client(nsqd)
    client.subscribe("t", "c", 100)
    assert [message.body for message in client.messages(5)] == bodies(0, 5)

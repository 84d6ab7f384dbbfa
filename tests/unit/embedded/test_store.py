"""What the embedded nsqd keeps in its data folder over a clean stop."""

from __future__ import annotations

import errno
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from gnsqsync.daemon.golog import Log
from gnsqsync.daemon.options import OptionsError, StartError
from gnsqsync.embedded.broker import Broker
from gnsqsync.embedded.channel import Channel
from gnsqsync.embedded.options import NsqdOptions
from gnsqsync.embedded.queueing import QueuedMessage
from gnsqsync.embedded.store import Store
from gnsqsync.embedded.topic import Topic

Fields = tuple[bytes, int, int, bytes]


def make_store(folder: Path, **flags: Any) -> Store:
    options = NsqdOptions(data_path=str(folder), **flags)
    return Store(options, Log("", stream=io.StringIO()))


def make_broker(store: Store | None = None, **flags: Any) -> Broker:
    broker = Broker(NsqdOptions(**flags))
    if store is not None:
        broker.open_queue = store.open_queue
    return broker


def reloaded(folder: Path, **flags: Any) -> Broker:
    store = make_store(folder)
    broker = make_broker(store, **flags)
    store.load(broker)
    return broker


def waiting(owner: Topic | Channel) -> list[Fields]:
    """All that waits, which is taken."""
    found = []
    while owner.has_waiting():
        found.append(owner.oldest(owner.unread) if owner.unread else owner.queue.popleft())
    return fields(found)


def message(number: int, body: bytes = b"body", attempts: int = 0) -> QueuedMessage:
    return QueuedMessage(b"%016x" % number, number, body, 0.0, attempts)


def fields(messages: object) -> list[Fields]:
    return [(m.id, m.timestamp, m.attempts, m.body) for m in messages]  # type: ignore[attr-defined]


def test_names_and_paused_flags(tmp_path: Path) -> None:
    broker = make_broker()
    broker.topic("t").channel("c").pause(True)
    broker.topic("t").channel("gone#ephemeral")
    broker.topic("paused").pause(True)
    broker.topic("gone#ephemeral").channel("c")
    make_store(tmp_path).save_names(broker, lambda write: write())
    assert json.loads((tmp_path / "nsqd.dat").read_bytes()) == {
        "topics": [
            {"name": "t", "paused": False, "channels": [{"name": "c", "paused": True}]},
            {"name": "paused", "paused": True, "channels": []},
        ],
        "version": "1.3.0",
    }
    assert os.listdir(tmp_path) == ["nsqd.dat"]
    found = reloaded(tmp_path)
    assert found.topics.keys() == {"t", "paused"}
    assert (found.topics["paused"].paused, found.topics["t"].channels["c"].paused) == (True, True)


@pytest.mark.parametrize("max_bytes_per_file", [1 << 20, 100, 1])
@pytest.mark.parametrize("mem_queue_size", [0, 5, 10000])
def test_messages_survive_with_everything_but_their_delay(
    tmp_path: Path, max_bytes_per_file: int, mem_queue_size: int
) -> None:
    store = make_store(tmp_path, max_bytes_per_file=max_bytes_per_file)
    broker = make_broker(store, mem_queue_size=mem_queue_size)
    channel = broker.topic("t").channel("c")
    kept = [message(n, b"x" * n * 7, attempts=n) for n in range(1, 20)]
    for one in kept:
        channel.put(one)
    deferred = message(77)
    deferred.delay = 60.0
    channel.put(deferred)
    broker.topic("waiting").publish([b"x"])
    assert channel.backend_depth == 19 - min(19, mem_queue_size)
    store.save(broker)
    assert broker.trouble is None

    found = reloaded(tmp_path, mem_queue_size=mem_queue_size)
    channel = found.topics["t"].channels["c"]
    assert (channel.depth, channel.backend_depth, channel.message_count) == (20, 20, 0)
    # What was on disk comes first, then what was in memory.
    cut = min(19, mem_queue_size)
    wanted = fields([*kept[cut:], *kept[:cut], message(77)])
    assert waiting(channel) == wanted
    assert found.topics["waiting"].depth == 1


def test_messages_of_a_topic_go_on_to_all_its_channels(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    broker = make_broker(store)
    topic = broker.topic("t")
    topic.pause(True)
    for name in ("c", "d", "e"):
        topic.channel(name)
    topic.publish([b"x"])
    store.save(broker)
    found = reloaded(tmp_path).topics["t"]
    assert (found.depth, found.channels["c"].depth) == (1, 0)
    found.pause(False)
    assert found.depth == 0
    assert [channel.depth for channel in found.channels.values()] == [1, 1, 1]


def test_messages_that_waited_in_an_unpaused_topic_reach_all_its_channels(
    tmp_path: Path,
) -> None:
    store = make_store(tmp_path)
    broker = make_broker(store)
    broker.topic("t").publish([b"x"])
    store.save(broker)
    channels = [{"name": name} for name in "cde"]
    names = {"topics": [{"name": "t", "channels": channels}]}
    (tmp_path / "nsqd.dat").write_text(json.dumps(names))
    found = reloaded(tmp_path).topics["t"]
    assert [channel.depth for channel in found.channels.values()] == [1, 1, 1]


def test_files_that_cannot_be_read_leave_the_queue_in_memory(tmp_path: Path) -> None:
    (tmp_path / "t.diskqueue.meta.dat").mkdir()
    broker = make_broker(make_store(tmp_path), mem_queue_size=1)
    broker.topic("t").publish([b"x", b"y"])
    assert (broker.topics["t"].depth, broker.topics["t"].backlog) == (2, None)


def test_deleting_removes_the_files_of_that_queue_only(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    broker = make_broker(store, mem_queue_size=0)
    for name in ("t", "t.x", "t.diskqueue.1"):
        broker.topic(name).publish([b"x"])
    broker.topic("t").channel("c")
    assert broker.topics["t"].channels["c"].backend_depth == 1
    broker.delete_topic("t")
    left = {path.name for path in tmp_path.glob("*.diskqueue.*")}
    assert left == {"t.x.diskqueue.000000.dat", "t.diskqueue.1.diskqueue.000000.dat"}
    assert broker.topic("t").depth == 0


@pytest.mark.parametrize(
    "content",
    [
        "",
        "\0\0\0",
        "{",
        "{} x",
        "[]",
        '{"topics":{}}',
        '{"topics":[5]}',
        '{"topics":[{"name":5}]}',
        '{"topics":[{"name":"t","paused":1}]}',
        '{"topics":[{"name":"t","channels":{}}]}',
        '{"topics":[{"name":"t","channels":[5]}]}',
    ],
)
def test_an_unreadable_nsqd_dat_stops_the_start(tmp_path: Path, content: str) -> None:
    path = tmp_path / "nsqd.dat"
    path.write_text(content)
    with pytest.raises(StartError) as caught:
        make_store(tmp_path).load(make_broker())
    text = f"failed to load metadata - failed to parse metadata in {path} - "
    assert str(caught.value).startswith(text)
    assert "restore it from a copy, or move it away" in str(caught.value)


def test_a_killed_nsqd_leaves_no_files_for_ever(tmp_path: Path) -> None:
    begun = ["nsqd.dat.4711.tmp", "nsqd.dat.8674665223082153551.tmp", f".tmp-{'0a' * 16}"]
    others = ["nsqd.dat", "nsqd.dat.bak", ".tmp-mine", "nsqd.dat.x.tmp"]
    for name in begun + others:
        (tmp_path / name).touch()
    store = make_store(tmp_path)
    store.open()
    store.close()
    assert sorted(os.listdir(tmp_path)) == sorted(others)


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_an_nsqd_dat_that_the_disk_does_not_take_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    store = make_store(tmp_path)
    store.save_first_names(make_broker())
    before = (tmp_path / "nsqd.dat").read_bytes()

    def fail(*arguments: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, name, fail)
    broker = make_broker()
    broker.topic("t")
    with pytest.raises(StartError, match=r"failed to persist metadata - .*input/output error"):
        store.save_first_names(broker)
    assert (tmp_path / "nsqd.dat").read_bytes() == before
    assert os.listdir(tmp_path) == ["nsqd.dat"]


def test_an_nsqd_dat_that_cannot_be_opened_is_not_taken_for_empty(tmp_path: Path) -> None:
    (tmp_path / "nsqd.dat").mkdir()
    text = f"failed to load metadata - failed to read metadata from {tmp_path}/nsqd.dat - read "
    with pytest.raises(StartError, match=re.escape(text) + ".*: is a directory"):
        make_store(tmp_path).load(make_broker())
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match=r"open .*/file/nsqd\.dat: not a directory"):
        make_store(tmp_path / "file").load(make_broker())


@pytest.mark.parametrize("content", ["null", "{}", '{"topics":null}', '{"topics":[null,{}]}'])
def test_a_field_missing_in_nsqd_dat_is_empty(tmp_path: Path, content: str) -> None:
    (tmp_path / "nsqd.dat").write_text(content)
    assert reloaded(tmp_path).topics == {}


def test_invalid_names_are_skipped(tmp_path: Path) -> None:
    topics = [{"name": "../x"}, {"name": "t", "channels": [{"name": "a/b"}]}]
    (tmp_path / "nsqd.dat").write_text(json.dumps({"topics": topics}))
    found = reloaded(tmp_path)
    assert found.topics.keys() == {"t"}
    assert found.topics["t"].channels == {}


def test_the_lock(tmp_path: Path) -> None:
    one, two = make_store(tmp_path), make_store(tmp_path)
    one.open()
    with pytest.raises(OptionsError) as caught:
        two.open()
    assert str(caught.value) == (
        f"failed to lock data-path: cannot flock directory {tmp_path} - resource temporarily"
        " unavailable (possibly in use by another instance of nsqd)"
    )
    one.close()
    two.open()
    two.close()
    with pytest.raises(OptionsError) as caught:
        make_store(tmp_path / "missing").open()
    assert str(caught.value) == (
        f"failed to lock data-path: open {tmp_path}/missing: no such file or directory"
    )


def test_a_folder_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "nsqd.dat").mkdir()
    with pytest.raises(StartError, match=r"failed to persist metadata - open .*/nsqd"):
        make_store(tmp_path).save_first_names(make_broker())

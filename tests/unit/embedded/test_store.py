"""What the embedded nsqd keeps in its data folder over a clean stop."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path

import pytest

from gnsqsync.embedded.broker import Broker
from gnsqsync.embedded.channel import QueuedMessage
from gnsqsync.embedded.golog import Log
from gnsqsync.embedded.options import NsqdOptions, OptionsError, StartError
from gnsqsync.embedded.store import Store

Fields = tuple[bytes, int, int, bytes]


def make_store(folder: Path, max_bytes_per_file: int = 1 << 20) -> Store:
    return Store(str(folder), Log("", stream=io.StringIO()), max_bytes_per_file)


def make_broker() -> Broker:
    return Broker(NsqdOptions())


def reloaded(folder: Path) -> Broker:
    broker = make_broker()
    make_store(folder).load(broker)
    return broker


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
    make_store(tmp_path).save_names(broker)
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
def test_messages_survive_with_everything_but_their_delay(
    tmp_path: Path, max_bytes_per_file: int
) -> None:
    broker = make_broker()
    channel = broker.topic("t").channel("c")
    kept = [message(n, b"x" * n * 7, attempts=n) for n in range(1, 20)]
    channel.restore(kept)
    deferred = message(77)
    deferred.delay = 60.0
    channel.put(deferred)
    broker.topic("waiting").restore([message(1)])
    make_store(tmp_path, max_bytes_per_file).save(broker)

    found = reloaded(tmp_path)
    channel = found.topics["t"].channels["c"]
    assert fields(channel.queue) == fields([*kept, message(77)])
    assert channel.message_count == 0
    assert fields(found.topics["waiting"].queue) == fields([message(1)])
    assert os.listdir(tmp_path) == ["nsqd.dat"]


def test_messages_of_a_topic_go_on_to_its_channels(tmp_path: Path) -> None:
    broker = make_broker()
    topic = broker.topic("t")
    topic.pause(True)
    topic.channel("c")
    topic.publish([b"x"])
    make_store(tmp_path).save(broker)
    found = reloaded(tmp_path).topics["t"]
    assert (found.depth, found.channels["c"].depth) == (1, 0)
    found.pause(False)
    assert (found.depth, found.channels["c"].depth) == (0, 1)


def test_nsqds_own_files_from_a_read_position_on(tmp_path: Path) -> None:
    """A queue that nsqd has read in part: file 3 from byte 34, then file 4."""
    broker = make_broker()
    broker.topic("t").restore([message(1), message(2), message(3)])
    make_store(tmp_path, max_bytes_per_file=80).save(broker)
    size = 4 + 26 + len(b"body")
    for number in (0, 1):
        old = tmp_path / f"t.diskqueue.{number:06d}.dat"
        old.rename(tmp_path / f"t.diskqueue.{number + 3:06d}.dat")
    (tmp_path / "t.diskqueue.meta.dat").write_text(f"2\n3,{size}\n4,{size}\n")
    assert fields(reloaded(tmp_path).topics["t"].queue) == fields([message(2), message(3)])


def test_a_broken_queue_file_is_put_aside(tmp_path: Path) -> None:
    broker = make_broker()
    broker.topic("t").restore([message(1)])
    broker.topic("u").restore([message(2)])
    make_store(tmp_path).save(broker)
    path = tmp_path / "t.diskqueue.000000.dat"
    path.write_bytes(b"\x7f" + path.read_bytes()[1:])
    (tmp_path / "u.diskqueue.meta.dat").write_text("nonsense")
    found = reloaded(tmp_path)
    assert (found.topics["t"].depth, found.topics["u"].depth) == (0, 0)
    assert (tmp_path / "t.diskqueue.000000.dat.bad").exists()


def test_saving_again_leaves_nothing_of_before(tmp_path: Path) -> None:
    store = make_store(tmp_path, max_bytes_per_file=1)
    broker = make_broker()
    broker.topic("t").restore([message(n) for n in range(5)])
    store.save(broker)
    broker.topic("t").empty()
    store.save(broker)
    assert os.listdir(tmp_path) == ["nsqd.dat"]


def test_deleting_forgets_the_files_of_that_queue_only(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    broker = make_broker()
    for name in ("t", "t.x", "t.diskqueue.1"):
        broker.topic(name).restore([message(1)])
    broker.topic("t").channel("c").restore([message(1)])
    store.save(broker)
    store.forget("t", "c")
    store.forget("t", None)
    left = {path.name for path in tmp_path.glob("*.diskqueue.0*")}
    assert left == {"t.x.diskqueue.000000.dat", "t.diskqueue.1.diskqueue.000000.dat"}


@pytest.mark.parametrize(
    "content",
    [
        "",
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


def test_a_mistake_in_nsqd_dat_leaves_the_queues_before_it_alone(tmp_path: Path) -> None:
    store, broker = make_store(tmp_path), make_broker()
    broker.topic("t").restore([message(1)])
    store.save(broker)
    before = sorted(os.listdir(tmp_path))
    (tmp_path / "nsqd.dat").write_text('{"topics":[{"name":"t"},{"name":5}]}')
    with pytest.raises(StartError):
        make_store(tmp_path).load(make_broker())
    assert sorted(os.listdir(tmp_path)) == before


def test_what_cannot_be_opened_is_no_empty_nsqd_dat(tmp_path: Path) -> None:
    (tmp_path / "nsqd.dat").mkdir()
    text = f"failed to load metadata - failed to read metadata from {tmp_path}/nsqd.dat - read "
    with pytest.raises(StartError, match=re.escape(text) + ".*: is a directory"):
        make_store(tmp_path).load(make_broker())
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match=r"open .*/file/nsqd\.dat: not a directory"):
        make_store(tmp_path / "file").load(make_broker())


@pytest.mark.parametrize("content", ["null", "{}", '{"topics":null}', '{"topics":[null,{}]}'])
def test_what_is_missing_in_nsqd_dat_is_empty(tmp_path: Path, content: str) -> None:
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

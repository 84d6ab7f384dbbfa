"""Writers that an application may store at import: each call goes to the one that counts."""

from __future__ import annotations

import pytest

from gnsqsync.testing.keepable import KeepableMemoryWriter, KeepableWriter
from gnsqsync.testing.memory import MemoryWriter
from gnsqsync.writer.writer import Writer


def test_each_call_goes_to_the_writer_of_that_moment() -> None:
    meant: list[Writer] = []
    kept = KeepableWriter("127.0.0.1:1", current=lambda: meant[-1])
    other = MemoryWriter()
    meant.append(other)
    kept.publish("t", "a")
    kept.publish_many("t", ["b", "c"])
    assert kept.publish_async("t", "d").result(0) is None
    kept.connect()
    kept.ping()
    assert kept.is_connected == other.is_connected
    assert kept.stats() == other.stats()
    assert [message.body for message in kept.messages] == [b"a", b"b", b"c", b"d"]
    # Nobody else is meant: what it publishes would leave the process.
    meant.append(kept)
    assert not kept.is_connected
    assert kept.stats().published == 0
    with pytest.raises(AttributeError, match="has no messages"):
        _ = kept.messages


def test_a_kept_writer_shows_the_messages_of_the_current_writer() -> None:
    meant: list[Writer] = []
    kept = KeepableMemoryWriter(current=lambda: meant[-1])
    meant.append(kept)
    kept.publish("t", "a")
    assert [message.body for message in kept.messages] == [b"a"]
    meant.append(MemoryWriter())
    kept.publish("t", "b")
    assert [message.body for message in kept.messages] == [b"b"]

"""A data path that a former version left: each message is there, and each state."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gnsqsync import Message, NsqdHTTP, Reader
from gnsqsync.embedded import Nsqd
from tests.support.left_behind import DATA


def read(nsqd: Nsqd, topic: str, channel: str, count: int) -> list[str]:
    found: list[str] = []

    def handle(message: Message) -> None:
        found.append(message.body.decode())
        if len(found) == count:
            reader.stop()

    reader = Reader(topic, channel, handle, nsqd_tcp_addresses=nsqd.tcp_address)
    reader.start()
    return sorted(found)


@pytest.mark.parametrize("times", [1, 2])
def test_messages_topics_and_pauses(tmp_path: Path, times: int) -> None:
    """With ``times`` 2 a start and a stop lie between."""
    folder = tmp_path / "nsqd"
    shutil.copytree(DATA / "nsqd", folder)
    for _ in range(times - 1):
        with Nsqd(data_path=folder):
            pass
    with Nsqd(data_path=folder) as nsqd:
        orders = sorted(f"order {number}" for number in range(20))
        assert read(nsqd, "orders", "shop", 20) == orders
        assert read(nsqd, "unread", "new", 20) == sorted(f"unread {n}" for n in range(20))
        with NsqdHTTP(nsqd.http_address) as http:
            (topic,) = http.stats("orders").topics
            (paused,) = (one for one in topic.channels if one.channel_name == "paused")
            assert paused.paused and paused.depth == 20
            http.unpause_channel("orders", "paused")
        assert read(nsqd, "orders", "paused", 20) == orders

"""The lines of a command on Readers that have begun to consume."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gnsqsync.commands.integrations import _Started


def reader(channel: str, connections: tuple[str, ...] = ()) -> Any:
    stats = SimpleNamespace(topic="t", channel=channel, connections=connections, received=0)
    return SimpleNamespace(stats=lambda: stats, found=stats)


def test_a_reader_consumes_when_it_is_connected_and_is_missed_once() -> None:
    said: list[str] = []
    here, late = reader("here", ("a:1",)), reader("late")
    started = _Started([("one", here), ("two", late)], said.append)
    started.look()
    assert said == ["one consumes t/here"]
    for _ in range(8):
        started.look()
    assert said[1:] == ["two is not connected to an nsqd of t/late yet"]
    late.found.connections = ("a:1",)
    started.look()
    started.look()
    assert said[2:] == ["two consumes t/late"]

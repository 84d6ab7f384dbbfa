"""How often a Reader shares RDY anew when nothing happens."""

from __future__ import annotations

from typing import Any

import pytest

from gnsqsync.policy.rdy import RdyAllocator
from gnsqsync.policy.rdy_turns import Looks
from tests.component.conftest import Client, names
from tests.support.scripted import ScriptedNsqd
from tests.support.worlds import World


def test_rdy_is_shared_anew_each_interval(
    client: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[float] = []
    update = RdyAllocator.update

    def count(allocator: Any, now: float, loads: Any) -> Any:
        rounds.append(now)
        return update(allocator, now, loads)

    monkeypatch.setattr(RdyAllocator, "update", count)
    with ScriptedNsqd() as nsqd:
        client.consume(print, nsqd, rdy_redistribute_interval=0.05)
        world.eventually(lambda: nsqd.received("RDY"))
        before = len(rounds)
        # Five seconds is the default, and when an idle nsqd is found to be one comes after ten.
        world.eventually(lambda: len(rounds) >= before + 5)
        assert rounds[before + 4] - rounds[before] >= 0.15


def test_rdy_0_leaves_before_the_fin_of_a_turn_in_the_same_write(
    client: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And RDY 1 goes to the other nsqd after it."""
    # No look ends before the message is here.
    monkeypatch.setattr(Looks, "seconds", lambda looks, slots, is_wanted: 60.0)
    writes: list[tuple[str, bytes]] = []
    with ScriptedNsqd() as one, ScriptedNsqd() as other:
        reader = client.consume(lambda message: None, one, other, max_in_flight=1)
        world.eventually(lambda: len(reader.stats().connections) == 2)
        for connection in reader._running().subscription.connections():
            record_writes(connection, writes)

        def has_turn() -> list[ScriptedNsqd]:
            return [n for n in (one, other) if names(n)[-1] == "RDY 1"]

        for handled in range(1, 5):
            world.eventually(has_turn)
            has_turn()[0].connections[0].message(b"x")
            world.eventually(
                lambda: len(one.received("FIN") + other.received("FIN")) == handled  # noqa: B023
            )
        world.eventually(has_turn)
        # Without what the losses at the end cause.
        writes = [(name, data) for name, data in writes if b"RDY" in data]
    assert [data[:10] for _, data in writes] == [b"RDY 0\nFIN ", b"RDY 1\n"] * 4
    turns = [name for name, data in writes if data == b"RDY 1\n"]
    ends = [name for name, data in writes if data != b"RDY 1\n"]
    assert turns[:-1] == ends[1:]
    assert all(one != two for one, two in zip(turns, ends, strict=True))


def record_writes(connection: Any, writes: list[tuple[str, bytes]]) -> None:
    queue = connection.send_queue
    send = queue._send_some

    def record(data: Any) -> Any:
        writes.append((connection.nsqd_address, bytes(data)))
        return send(data)

    queue._send_some = record

"""How often a Reader shares RDY anew when nothing happens."""

from __future__ import annotations

from typing import Any

import pytest

from gnsqsync.policy.rdy import RdyAllocator
from tests.component.conftest import Client
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

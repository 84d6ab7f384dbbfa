"""A signal or fork that interrupts coverage does not wait for coverage's lock."""

from __future__ import annotations

import os
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tests import conftest


def test_each_lock_may_be_taken_by_who_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    by_events = SimpleNamespace(sysmon_on=True, lock=threading.Lock())
    by_frames = SimpleNamespace()
    tracers = [by_events, by_frames]
    collector = SimpleNamespace(data_lock=threading.Lock(), tracers=tracers)
    current = SimpleNamespace(current=lambda: SimpleNamespace(_collector=collector))
    monkeypatch.setitem(sys.modules, "coverage", SimpleNamespace(Coverage=current))
    hooks: dict[str, Any] = {}
    monkeypatch.setattr(os, "register_at_fork", lambda **given: hooks.update(given))
    conftest._free_the_locks_of_coverage()
    with collector.data_lock:
        by_events.lock_data()
        by_events.unlock_data()
    # A fork waits for the other threads, and the child may take what its parent had.
    hooks["before"]()
    with by_events.lock:
        pass
    hooks["after_in_parent"]()
    assert hooks["after_in_child"] == hooks["after_in_parent"]
    assert vars(by_frames) == {}


def test_without_coverage_nothing_is_to_be_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "coverage", raising=False)
    conftest._free_the_locks_of_coverage()

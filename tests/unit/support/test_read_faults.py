"""The faults that strike a read task in tests: where they do, and what is no fault."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from tests.support.read_faults import Faults


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *args: made.append(args))
    return made


def test_a_kill_at_every_passing(kills: list[tuple[int, int]]) -> None:
    faults = Faults("after_create:kill")
    faults("before_create")
    assert kills == []
    faults("after_create")
    faults("after_create")
    assert kills == [(os.getpid(), signal.SIGKILL)] * 2


def test_at_one_passing_only(kills: list[tuple[int, int]]) -> None:
    faults = Faults("before_create#2:kill")
    faults("before_create")
    assert kills == []
    faults("before_create")
    faults("before_create")
    assert len(kills) == 1


def test_once_over_all_processes(kills: list[tuple[int, int]], tmp_path: Path) -> None:
    for _ in range(2):
        Faults(f"emit:kill_once={tmp_path / 'mark'}")("emit")
    assert len(kills) == 1


def test_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    faults = Faults("emit:delay=0.5;collected:delay=1-2")
    faults("emit")
    for _ in range(20):
        faults("collected")
    assert slept[0] == 0.5
    assert all(1 <= seconds <= 2 for seconds in slept[1:])
    assert len(set(slept[1:])) > 1


def test_a_failure() -> None:
    with pytest.raises(OSError, match="a fault that a test asked for, at emit"):
        Faults("emit:fail")("emit")


@pytest.mark.parametrize(
    "text",
    ["emit", "nowhere:kill", "emit:explode", "emit#x:kill", "emit:delay", "emit:delay=x", ":kill"],
)
def test_a_text_that_is_no_fault_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not point:action"):
        Faults(text)

"""The simulation itself: a seed is a history, known histories pass, deliberate faults are seen."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.simulation.faults import FAULTS
from tests.support.servers import ROOT


def simulate(*words: str) -> tuple[int, str]:
    """The exit code and the output of the program."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=110,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("seed", ["2", "6", "78"])
def test_two_runs_of_a_seed_are_equal_to_the_byte(seed: str) -> None:
    code, first = simulate("--seed", seed)
    assert code == 0, first[-3000:]
    assert first.count("\n") > 50
    assert simulate("--seed", seed) == (0, first)


def test_what_once_failed() -> None:
    code, output = simulate("--known")
    assert code == 0, output
    assert " 0 failed" in output


@pytest.mark.parametrize(
    "fault",
    [
        "answers in the wrong order",
        "backoff that never ends",
        "EOF unread while the turn is lent",
        "FIN in two places",
        "lookup connection left",
        "no sweep of unsent FINs",
        "sends for others without end",
    ],
)
def test_a_deliberate_fault_is_seen(fault: str) -> None:
    assert fault in FAULTS
    code, output = simulate("--fault", fault, "--seeds", "200")
    assert code == 0, output
    assert output.startswith("history "), output

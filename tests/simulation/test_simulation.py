"""The simulation itself: a seed is a history, known histories pass, deliberate faults are seen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.simulation.faults import FAULTS
from tests.support.servers import ROOT

# A history takes seconds of a processor; where others want it, too, a minute.
pytestmark = pytest.mark.timeout(300)


def simulate(*words: str) -> tuple[int, str]:
    """The exit code and the output of the program."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("seed", ["2", "78", "106", "race:4", "race:24"])
def test_two_runs_of_a_seed_are_equal_to_the_byte(seed: str) -> None:
    code, first = simulate("--seed", seed)
    assert code == 0, first[-3000:]
    assert first.count("\n") > 50
    assert simulate("--seed", seed) == (0, first)


def test_new_histories_are_kept_and_run_with_another_chance() -> None:
    code, output = simulate("--explore", "--seeds", "12")
    assert code == 0, output
    assert "of them reached pairs that none before had" in output
    assert output.splitlines()[-1].startswith("12 histories, ")


def test_a_history_is_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "history.svg"
    code, output = simulate("--seed", "106", "--picture", str(picture))
    assert code == 0, output
    root = ElementTree.parse(picture).getroot()
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "publishes" in words
    assert any(word is not None and word.startswith("reader 0 ") for word in words)


def test_a_failure_gets_smaller() -> None:
    _, whole = simulate("--fault", "FIN in two places", "--seed", "race:1")
    code, smaller = simulate("--fault", "FIN in two places", "--shrink", "race:1")
    assert code == 1
    assert "a second FIN" in smaller
    assert smaller.count("\n") < whole.count("\n")


@pytest.mark.parametrize("words", [[], ["--many"]], ids=["few", "many"])
def test_histories_that_once_failed(words: list[str]) -> None:
    """The first history of each fault; in the third ring all histories."""
    code, output = simulate("--known", *words)
    assert code == 0, output
    assert " 0 failed" in output


# From the seed on with which each was seen, as told by --faults; and some more, should what a seed
# means have changed.
SEEN = {
    "answers in the wrong order": "1",
    "a child that uses its parent's connections": "2",
    "a pause that never ends": "6",
    "an nsqd forgotten": "34",
    "an nsqd that never gets its turn": "65",
    "backoff that never ends": "6",
    "connections left at the close": "1",
    "EOF unread while the turn is lent": "12",
    "FIN in two places": "1",
    "lookup connection left": "45",
    "looks that never grow": "24",
    "no sweep of unsent FINs": "6",
    "RDY 1 raised while another is open": "12",
    "sends for others without end": "61",
}


@pytest.mark.parametrize("fault", SEEN)
def test_a_deliberate_fault_is_seen(fault: str) -> None:
    assert fault in FAULTS
    code, output = simulate("--fault", fault, "--first", SEEN[fault], "--seeds", "200")
    assert code == 0, output
    assert output.startswith("history "), output

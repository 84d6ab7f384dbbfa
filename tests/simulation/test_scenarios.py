"""The scenarios of ``scenarios_*.py``, each on threads and on greenlets. All run in one process."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.simulation.scenario import scenarios
from tests.support.servers import ROOT

pytestmark = pytest.mark.timeout(900)

NAMES = [f"{name} {kind}" for name in scenarios() for kind in ("threads", "greenlets")]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--scenarios"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=880,
    )
    assert done.stdout, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_scenario(name: str, outcomes: dict[str, str]) -> None:
    assert outcomes.pop(name) == ""


def test_these_are_all(outcomes: dict[str, str]) -> None:
    assert not outcomes.keys() - set(NAMES)

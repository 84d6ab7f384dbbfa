"""The outcomes of scenarios, for the tests: one process runs those of a file."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.simulation.scenario import scenarios
from tests.support.servers import ROOT

__all__ = ["names", "outcomes"]


def names(*subjects: str) -> list[str]:
    """Return the names of the outcomes: each scenario on threads and on greenlets."""
    return [f"{name} {kind}" for name in scenarios(*subjects) for kind in ("threads", "greenlets")]


def outcomes(*words: str) -> dict[str, str]:
    """Run the scenarios of the files ``words``; an outcome is "" for a scenario that holds."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--scenarios", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=880,
    )
    assert done.stdout, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found

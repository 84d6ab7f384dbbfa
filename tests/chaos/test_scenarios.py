"""The short form of ``python -m tests.chaos``: every scenario once, in threads and on gevent."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.chaos import field
from tests.chaos.conftest import Run, Runs
from tests.chaos.scenarios import SCENARIOS
from tests.support import seeds
from tests.support.servers import ROOT

# The sample that is no campaign.
SAMPLE = "cuts"
RUNS = [
    pytest.param(Run(name) if name == SAMPLE else Run(name, seed=seeds.seed()), id=name)
    for name in SCENARIOS
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("run", RUNS)
def test_nothing_is_lost_and_everything_is_explained(run: Run, runs: Runs) -> None:
    reason = field.unavailable(SCENARIOS[run.scenario].needs)
    if reason:
        pytest.skip(reason)
    finished = runs.result(run)
    print(finished.output)
    assert finished.status == 0, f"\n{finished.output}"
    assert "nothing lost, everything explained" in finished.output


def test_the_list_names_every_scenario_and_says_what_it_does() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--list"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert [line.split()[0] for line in listed.splitlines()] == list(SCENARIOS)
    assert all(len(line.split()) > 4 for line in listed.splitlines())

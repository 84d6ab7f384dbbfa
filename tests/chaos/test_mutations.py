"""The test of the tests: three deliberate bugs in gnsqsync, each of which the harness must report.

That the same scenarios are right without the bugs is in test_scenarios.py.
"""

from __future__ import annotations

import pytest

from tests.chaos.conftest import Run, Runs
from tests.chaos.mutations import MUTATIONS
from tests.chaos.scenarios import SCENARIOS

# The scenario in which it shows, and what the report then says.
CASES = {
    "answer-to-the-wrong-publish": ("torn", "threads: lost: number "),
    "fin-dropped-at-close": ("stop-clean", "threads: unexplained duplicate: number "),
    "rdy-not-given-back": ("cuts", "threads: wrong: at rest the RDY of a Reader is not given out"),
}
RUNS = [
    pytest.param(Run(scenario, "threads", mutation), report, id=mutation)
    for mutation, (scenario, report) in CASES.items()
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("run", "report"), RUNS)
def test_a_deliberate_bug_is_reported(run: Run, report: str, runs: Runs) -> None:
    finished = runs.result(run)
    assert finished.status == 1, f"\n{finished.output}"
    assert report in finished.output, f"\n{finished.output}"
    assert "FAILED" in finished.output


def test_every_mutation_has_a_scenario() -> None:
    assert CASES.keys() == MUTATIONS.keys()
    assert {scenario for scenario, _ in CASES.values()} <= SCENARIOS.keys()

"""Scenarios at their full size, also those that are shorter in the first ring."""

from __future__ import annotations

import pytest

from tests.simulation.outcomes import names, outcomes

# The first test runs all of them.
pytestmark = pytest.mark.timeout(900)

NAMES = names()


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    return outcomes("--many")


@pytest.mark.parametrize("name", NAMES)
def test_scenario(name: str, found: dict[str, str]) -> None:
    assert found[name] == ""


def test_each_file_is_run_by_a_test_of_its_own() -> None:
    """And the first ring has what runs here."""
    from pathlib import Path

    from tests.simulation.scenario import SUBJECTS

    folder = Path(__file__).parent
    files = {path.stem.removeprefix("scenarios_") for path in folder.glob("scenarios_*.py")}
    tests = {path.stem.removeprefix("test_scenarios_") for path in folder.glob("test_scenarios_*")}
    assert files == set(SUBJECTS) == tests - {"at_full_size"}
